"""The call of a function for one shard. Every engine carries it out by `answer`, wherever its process is."""

import functools
import importlib
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ratchet import errors
from ratchet.errors import PlatformError, RatchetError
from ratchet.scale.result_folder import ResultFolder

__all__ = ["ShardCall", "answer", "named", "result_of", "versions"]

_PROGRAMS = ("ratchet", "torch", "onnxruntime", "polars", "pyarrow", "numpy")  # that compute and write results


@dataclass(frozen=True)
class ShardCall:
    """One call, as plain data.

    Attributes:
        function: package.module:function.
        content: the shard, which is the function's argument.
        key: name of the result in the folder.
        folder: path or URL of the folder of results; empty: the result is only returned.
        versions: of the programs of the process that asks; other versions may give other bytes.
    """

    function: str
    content: Any
    key: str = ""
    folder: str = ""
    versions: Mapping[str, str] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The call as JSON data."""
        return asdict(self)


def named(name: str) -> Callable[..., Any]:
    """Return the function package.module:function."""
    module, _, function = name.partition(":")
    function_object: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return function_object


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the programs that decide a result here."""
    installed = {"python": platform.python_version()}
    for name in _PROGRAMS:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:  # Ratchet's code can come as a zip
            continue
    return installed


def answer(call: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function, and store its result under its key. Return {"result"}, or {"error", "class"}."""
    try:
        _require_same(call["versions"] or {})
        result = named(call["function"])(call["content"])
        if call["folder"]:
            ResultFolder(call["folder"]).write_json(f"{call['key']}.json", result)
    except RatchetError as error:
        return {"error": str(error), "class": type(error).__name__}
    return {"result": result}


def result_of(answer: Mapping[str, Any]) -> Any:
    """Return the result of an answer.

    Raises:
        RatchetError: of the class that the function raised.
    """
    if "error" in answer:
        kind = getattr(errors, answer["class"], RatchetError)
        raise kind.__new__(kind, answer["error"])
    return answer["result"]


def _require_same(wanted: Mapping[str, str]) -> None:
    """Check that results of this process have the same bytes as those of the process that asks."""
    others = [
        f"{name} {here} instead of {wanted[name]}"
        for name, here in versions().items()
        if name in wanted and wanted[name] != here
    ]
    if others:
        raise PlatformError(
            f"{platform.node()}: a worker has {', '.join(others)}, so its results could differ. Fix: install the same "
            "requirements.txt there"
        )
