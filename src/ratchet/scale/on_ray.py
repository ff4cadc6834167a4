"""The engine `ray`: core tasks of a Ray cluster. Ray is installed from requirements-ray.txt."""

import contextlib
import json
import os
import signal
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.code.closure import PACKAGES, module_path
from ratchet.code.syntax import source_files
from ratchet.errors import PlatformError, first_line
from ratchet.scale.calls import ShardCall, result_of
from ratchet.settings.model import ScaleSettings

__all__ = ["run"]

_LOOK = 1.0  # seconds between two looks for Ctrl-C
_RETRIES = 3  # of a task whose worker or machine was lost
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_TOKEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def run(calls: Sequence[ShardCall], settings: ScaleSettings, state: Path) -> Iterator[tuple[int, Any]]:
    """Carry out the calls by tasks, at most `settings.workers` at a time, and yield (place, result) as they end.

    Ray repeats a task whose worker or machine was lost. An error of the function is not repeated.

    Raises:
        PlatformError: Ray is not installed, the cluster does not answer or is open to others, or a task failed.
    """
    ray = _connected(settings.address, _code_zip(state))
    try:
        if others := _other_machines(ray.nodes(), ray.get_runtime_context().get_node_id()):
            _require_token(f"a cluster with {', '.join(others)}")
        task = ray.remote(max_retries=_RETRIES, retry_exceptions=False, num_cpus=1, scheduling_strategy="SPREAD")(_task)
        yield from _results(ray, task, calls, settings.workers)
    finally:
        ray.shutdown()


def _task(call: str) -> str:
    """Answer one call: JSON in, JSON out."""
    from ratchet.scale.calls import answer

    return json.dumps(answer(json.loads(call)))


def _results(ray: Any, task: Any, calls: Sequence[ShardCall], most: int) -> Iterator[tuple[int, Any]]:
    running: dict[Any, int] = {}
    waiting = iter(enumerate(calls))
    try:
        while True:
            while len(running) < most and (following := next(waiting, None)):
                place, call = following
                running[task.remote(json.dumps(call.data))] = place
            if not running:
                return
            for reference in ray.wait(list(running), timeout=_LOOK)[0]:
                place = running.pop(reference)
                try:
                    content = ray.get(reference)
                except ray.exceptions.RayError as error:
                    raise PlatformError(f"a task of the Ray cluster failed: {_cause(error)}") from error
                yield place, result_of(json.loads(content))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _cause(error: Exception) -> str:
    """Return the last line of a task's traceback, or the first of Ray's own message."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines and "Traceback" in str(error) else first_line(error)


def _connected(address: str, code: Path) -> Any:
    """Connect this process to the cluster, and return Ray.

    Raises:
        PlatformError: Ray is not installed, there is no such cluster, or it is elsewhere and there is no token.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    host = address.removeprefix("ray://").rpartition(":")[0]
    if address != "auto" and host not in _LOOPBACK:
        _require_token(address)
    try:
        import ray
    except ImportError:
        raise PlatformError(
            "scale.engine: ray is not installed. Fix: uv pip install --require-hashes -r requirements-ray.txt; in a "
            "project without that file: pip install 'ratchet[ray]'"
        ) from None
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            namespace="ratchet",
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"working_dir": str(code)},
        )
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise PlatformError(
            f"scale.address: the Ray cluster at {address} does not answer ({first_line(error)}). Fix: `ray start "
            "--head`, or another address"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray has replaced it
    return ray


def _other_machines(nodes: Sequence[Mapping[str, Any]], own: str) -> list[str]:
    """Return the addresses of the living nodes that are not on the machine of the node `own`."""
    addresses = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in nodes if node["Alive"]}
    return sorted(set(addresses.values()) - {addresses.get(own)})


def _require_token(cluster: str) -> None:
    """Check that a cluster beyond this machine has a token.

    Raises:
        PlatformError: it has none.
    """
    if not any(map(os.environ.get, _TOKEN)):
        raise PlatformError(
            f"scale.address: found {cluster}, and no token: without one everybody who reaches the cluster can run code "
            "on it. Allowed: a cluster of this machine alone, or one with tokens. Fix: start it with "
            "RAY_AUTH_MODE=token, and set RAY_AUTH_TOKEN_PATH here"
        )


def _code_zip(state: Path) -> Path:
    """Return a zip of the packages of this project, named by its digest, which workers import instead of their own."""
    sources = {
        f"{package}/{path.relative_to(top.parent).as_posix()}": path
        for package in PACKAGES
        if (top := module_path(package))
        for path in source_files(top.parent)
    }
    digest = files.digest_json({name: files.digest_file(path) for name, path in sources.items()})
    place = state / "scale" / f"code-{digest[:16]}.zip"
    if not place.is_file():
        with files.draft_file(place) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, path in sorted(sources.items()):
                archive.writestr(zipfile.ZipInfo(name), path.read_bytes())
        for old in place.parent.glob("code-*.zip"):
            if old != place:
                with contextlib.suppress(FileNotFoundError):
                    old.unlink()
    return place
