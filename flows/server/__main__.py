"""Prefect's server behind `RequestFilter`, with the notification blocks and watchers that `ratchet up` needs.

`prefect server start` accepts requests from every web page. This serves the same application with uvicorn.
"""

import argparse
import threading
import time
from contextlib import suppress

_PRESSURE, _STALE, _SERVING = "machine pressure", "stale workers", "the model server"
_INTERVAL = 10.0  # seconds between two checks of a watcher; one takes milliseconds


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description="Prefect's server")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--origins", required=True, nargs="+", help="its own addresses, http://HOST:PORT")
    parser.add_argument("--api", help="its API's address, for the watchers in this process")
    parser.add_argument("--private", action="store_true", help="for one run: no alerts, no watchers")
    options = parser.parse_args()

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    from flows.server.database import make_database
    from ratchet.request_filter import RequestFilter

    if not options.private:
        import flows.server.blocks  # noqa: F401  (Prefect finds the classes of imported blocks)

        for name in (_PRESSURE, _STALE, _SERVING):
            threading.Thread(target=_watch, args=(options.api, name), name=name, daemon=True).start()
    settings = get_current_settings().server
    if settings.database.connection_url:
        make_database(settings.database.connection_url.get_secret_value())
    uvicorn.run(
        RequestFilter(create_app(final=True), origins=options.origins),
        host=options.host,
        port=options.port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )


def _watch(api: str, name: str) -> None:
    """Check for `name` every few seconds, forever. A new error is printed once, and the check is repeated."""
    from httpx import HTTPError

    from flows.server.client import prefect_client
    from flows.server.pressure_events import PressureWatch
    from flows.server.runs_of_dead_workers import StaleWorkers
    from flows.server.serving_events import ServingWatch
    from ratchet.workspace import Workspace

    kinds = {_PRESSURE: PressureWatch, _STALE: StaleWorkers, _SERVING: ServingWatch}
    printed = ""
    with prefect_client(api) as client:
        check = kinds[name](Workspace.find(), client).check
        while True:
            time.sleep(_INTERVAL)
            try:
                with suppress(HTTPError):  # the server is still starting, or is busy
                    check()
            except Exception as error:  # a watcher must survive whatever happens in one check
                if repr(error) != printed:
                    print(f"ratchet: the check for {name} failed: {error!r}", flush=True)
                printed = repr(error)


if __name__ == "__main__":
    main()
