"""`ratchet serve`: the model server in this process."""

import typer

from ratchet import settings
from ratchet.data.manifest import Manifest
from ratchet.errors import PlatformError, RegistryError
from ratchet.registry.models import ModelRegistry
from ratchet.registry.versions import REFERENCE
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["serve"]


def serve(workspace: Workspace, model: str | None, port: int | None) -> None:
    """Answer requests until a signal ends the process. `model` and `port` replace the settings.

    Raises:
        PlatformError: the address is not loopback, or it is taken.
        RegistryError: there is no model of this name.
    """
    import uvicorn

    from ratchet.request_filter import RequestFilter
    from ratchet.servers.addresses import address, is_loopback, own_origins
    from ratchet.servers.ports import port_holder
    from ratchet.serving.app import ModelServer
    from ratchet.serving.following import Follower

    params = settings.load(workspace.params)
    host, chosen = params.platform.host, port or params.serving.port
    if not is_loopback(host):
        raise PlatformError(
            f"platform.host: found {host}; the model server asks for no password. Allowed: loopback. Fix: `ratchet set "
            "platform.host=127.0.0.1`, and connect by SSH or by a proxy that asks for one"
        )
    if holder := port_holder(host, chosen):
        raise PlatformError(
            f"serving.port: {chosen} is taken by {holder}. Fix: stop it, or `ratchet serve --port {chosen + 1}`"
        )
    registry = ModelRegistry(workspace, params)
    reference = model or _configured(workspace, params)
    match = REFERENCE.match(reference)
    if match is None or not registry.exists(match["name"]):
        registry.find(reference)  # raises the error that says what there is
    follower = Follower(registry, reference, threads=params.serving.threads)
    follower.check()
    server, place = ModelServer(follower, params.serving), address(host, chosen)
    served = follower.current.identity if follower.current else f"no version yet ({follower.problem})"
    typer.echo(f"{served} at {place}; Ctrl-C ends it")
    origins = own_origins(host, chosen, public=place, allowed=params.platform.allowed_hosts)
    filtered = RequestFilter(server.app, origins=origins, uploads=("/v2/models/",))
    uvicorn.run(filtered, host=host, port=chosen, log_level="warning", access_log=False)


def _configured(workspace: Workspace, params: Params) -> str:
    """Return serving.model; of auto, the champion of the model that these settings register."""
    if params.serving.model != "auto":
        return params.serving.model
    if params.registry.model != "auto":
        return f"{params.registry.model}@champion"
    if not (workspace.packed / "manifest.json").exists():
        raise RegistryError(
            "serving.model: found auto, and there are no packed data that name the model. Fix: `ratchet train`, or "
            "name it: `ratchet serve --model NAME@champion`"
        )
    return f"{Manifest.read(workspace.packed).name}@champion"
