"""The process of the model server: its version, its address, and what stands before it."""

import contextlib
import gc
import math
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from ratchet import settings
from ratchet.errors import PlatformError, RegistryError
from ratchet.registry.models import ModelRegistry
from ratchet.registry.versions import REFERENCE
from ratchet.request_filter import HOSTS_FIX, RequestFilter
from ratchet.serving import log_lines
from ratchet.serving.process_group import process_count, run_group, threads_each
from ratchet.serving.shared_state import Member, SharedStates
from ratchet.settings.model import Params
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.request_log import RequestLog
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from types import FrameType

    import uvicorn

    from ratchet.serving.app import ModelServer
    from ratchet.serving.keys import KeyStore

_LAST = 1.0  # seconds after the deadline of the last requests, until the process is ended
_OBJECTS = 5000  # new ones before a collection, which walks through the objects of all waiting requests
_ACCEPTS_IN_GROUP = 4  # connections that a process of several accepts in one turn of its event loop
_NOT_STARTED = 3  # exit status, as uvicorn's
__all__ = ["check_free", "configuration", "configured", "run", "serve"]
_SWITCH = 0.0005  # seconds for which a thread, such as the log's, may hold up the event loop; Python's default: 5 ms


def serve(
    workspace: Workspace,
    *,
    model: str | None = None,
    host: str | None = None,
    port: int | None = None,
    wait: bool = False,
    say: Callable[[str], None],
) -> None:
    """Answer requests until a signal ends the process.

    Args:
        model, host, port: replace serving.model, platform.host and serving.port.
        wait: start before there is a version, and serve the first one.
        say: gets the line for the user.

    Raises:
        PlatformError: the address is taken, or there is no API key where one is needed.
        RegistryError: there is no model of this name, unless `wait`.
    """
    from ratchet.serving.keys import KeyStore, require_key

    member, store = Member.enter(), KeyStore.of(workspace)
    params = Params.model_validate_json(member.settings) if member else settings.load(workspace.params)
    host, port = host or params.platform.host, port or params.serving.port
    if member is None:
        count = process_count(params.serving)
        require_key(store, host, always=params.serving.keys == "required")
        check_free(host, port, named=("platform.host", "serving.port"))
        if count > 1:
            with contextlib.suppress(RegistryError):  # the first process reports it, or waits for the data
                model = model or configured(workspace, params)
            command = [sys.executable, "-m", "ratchet.serving", "--host", host, "--port", str(port)]
            command += [*(["--model", model] if model else []), *(["--wait"] if wait else [])]
            frozen, deadline = params.model_dump_json().encode(), params.serving.deadline
            run_group(command, count, settings=frozen, host=host, port=port, deadline=deadline, say=say)
    server = _server(workspace, params, lambda: model or configured(workspace, params), wait=wait, member=member)
    run(server, store, host=host, port=port, allowed=params.platform.allowed_hosts, say=say, member=member)


def _server(
    workspace: Workspace, params: Params, reference: Callable[[], str], *, wait: bool, member: Member | None
) -> "ModelServer":
    """Return the application, with the versions that the settings name beside the served one."""
    from ratchet.serving.app import ModelServer
    from ratchet.serving.canary import Canary
    from ratchet.serving.versions.alias_watcher import AliasWatcher

    serving, registry = params.serving, ModelRegistry(workspace, params)
    if serving.shadow != "none" and not serving.log:
        raise PlatformError("serving.shadow: needs the request log. Fix: `ratchet set serving.log=true`")
    watch = partial(
        AliasWatcher,
        registry,
        folder=workspace.state / "served",
        threads=threads_each(serving, process_count(serving)),
        variant=serving.variant,
    )
    if not wait:
        _check_exists(registry, reference())
    served = watch(reference)
    if not wait or member:  # the other processes answer meanwhile
        served.check()

    def beside(name: str) -> "AliasWatcher | None":
        return None if name == "none" else watch(lambda: name)

    canary = beside(serving.canary)
    return ModelServer(
        served,
        serving,
        log=_log(workspace, params),
        fallback=beside(serving.fallback),
        shadow=beside(serving.shadow),
        canary=Canary(canary, serving, workspace.state / "canary.json") if canary else None,
        group=SharedStates(member) if member else None,
    )


def check_free(host: str, port: int, *, named: tuple[str, str]) -> None:
    """Refuse an address that is taken.

    Raises:
        PlatformError: with `named`, the settings or options of host and port.
    """
    from ratchet.servers.ports import port_holder

    if holder := port_holder(host, port, named=named[0]):
        raise PlatformError(f"{named[1]}: {port} is taken by {holder}. Fix: stop it, or add `--port {port + 1}`")


def run(
    server: "ModelServer",
    store: "KeyStore",
    *,
    host: str,
    port: int,
    allowed: Collection[str],
    say: Callable[[str], None],
    fix: str = HOSTS_FIX,
    member: Member | None = None,
) -> None:
    """Answer requests at an address until a signal ends the process.

    Args:
        server: the application.
        store: of the API keys.
        host, port: the address.
        allowed: further names of it, as platform.allowed_hosts.
        say: gets the line for the user.
        fix: sentence that says how to add a name.
        member: place of this process among several, whose parent writes the line.
    """
    from ratchet.data.reading.images import pillow_settings
    from ratchet.servers.addresses import address
    from ratchet.serving.http_protocol import Server

    log_lines.set_up(f"process {member.number} " if member else "")
    watcher = server.watcher
    served = watcher.current.identity if watcher.current else f"no version yet ({watcher.problem})"
    if member is None:
        say(f"{served} at {address(host, port)}; Ctrl-C ends it")
    sys.setswitchinterval(_SWITCH)
    gc.collect()
    gc.set_threshold(_OBJECTS, 10, 10)
    gc.freeze()  # each request makes thousands of objects, and a collection would walk through all of the libraries'
    sockets = [socket.socket(fileno=member.listening)] if member else None
    listening = Server(configuration(server, store, host=host, port=port, allowed=allowed, fix=fix))
    listening.accepts = _ACCEPTS_IN_GROUP if member else listening.accepts
    with pillow_settings():  # files of clients fill no log
        _run_until_signal(listening, server.settings.deadline + _LAST, sockets)


def configuration(
    server: "ModelServer", store: "KeyStore", *, host: str, port: int, allowed: Collection[str], fix: str = HOSTS_FIX
) -> "uvicorn.Config":
    """Return uvicorn's configuration of the server and what stands before it. Arguments are those of `run`."""
    import uvicorn

    from ratchet.servers.addresses import address, is_loopback, own_origins
    from ratchet.serving.app import asks_model, envelope_of
    from ratchet.serving.entrance import Entrance, busy_app
    from ratchet.serving.formats.uploads import UPLOADS
    from ratchet.serving.http_protocol import HeadLimits, allow_connections
    from ratchet.serving.keys import KeyFilter
    from ratchet.serving.server_metrics import Meter

    origins = own_origins(host, port, public=address(host, port), allowed=allowed)
    keyed = KeyFilter(server, store, required=server.settings.keys == "required" or not is_loopback(host))
    server.problems.append(lambda: keyed.problem)
    filtered = RequestFilter(keyed, origins=origins, types=UPLOADS, uploads=("/v2/models/",), fix=fix)
    meter, deadline = Meter(filtered, server.metrics, envelope_of), server.settings.deadline
    entrance = Entrance(deadline, server.handler.has_room)
    server.metrics.waiting.set_function(lambda: len(entrance))
    attributes = {
        "most": allow_connections(),
        "refused": staticmethod(meter.refuse),
        "entrance": entrance,
        "asks_model": staticmethod(asks_model),
        "busy": staticmethod(Meter(busy_app(deadline), server.metrics, envelope_of)),
    }
    protocol = type("Protocol", (HeadLimits,), attributes)
    return uvicorn.Config(
        meter,
        host=host,
        port=port,
        http=protocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=math.ceil(deadline),
    )


def _run_until_signal(server: "uvicorn.Server", seconds: float, sockets: list[socket.socket] | None) -> None:
    """Run the server. A signal ends the process within so many seconds, whatever a user's model does."""
    handle_exit = server.handle_exit

    def end(sig: int, frame: "FrameType | None") -> None:
        handle_exit(sig, frame)
        timer = threading.Timer(seconds, os._exit, (128 + sig,))
        timer.daemon = True
        timer.start()

    server.handle_exit = end  # type: ignore[method-assign]
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets)
    if not server.started:
        sys.exit(_NOT_STARTED)


def configured(workspace: Workspace, params: Params) -> str:
    """Return serving.model; of auto, the champion of the model that these settings register.

    Raises:
        RegistryError: there are no data that name the model.
    """
    from ratchet.registry.names import registered_name

    if params.serving.model != "auto":
        return params.serving.model
    if params.registry.model == "auto" and not (workspace.packed / "manifest.json").exists():
        raise RegistryError(
            "serving.model: found auto, and there are no packed data that name the model. Fix: `ratchet train`, or "
            "name it: `ratchet serve --model NAME@champion`"
        )
    return f"{registered_name(params, workspace)}@champion"


def _log(workspace: Workspace, params: Params) -> RequestLog | None:
    from ratchet.monitoring.sketch_log import SketchLog

    serving, folder = params.serving, log_folder(workspace)
    if not serving.log:
        return None
    return RequestLog(
        folder,
        share=serving.log_share,
        inputs=serving.log_inputs,
        days=serving.log_days,
        mib=serving.log_mib,
        window=params.monitoring.window,
        sketches=SketchLog(folder, window=params.monitoring.window),
    )


def _check_exists(registry: ModelRegistry, reference: str) -> None:
    match = REFERENCE.match(reference)
    if match is None or not registry.exists(match["name"]):
        registry.find(reference)  # raises the error that says what there is
