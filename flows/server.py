"""Prefect's server, as we start it: behind `RequestFilter`, and with the blocks and watches that `ratchet up` needs.

`prefect server start` accepts requests from every web page. This serves the same application with uvicorn.
"""

import argparse


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description="Prefect's server")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--origins", required=True, nargs="+", help="its own addresses, http://HOST:PORT")
    parser.add_argument("--api", help="where its API answers, for what runs in this process")
    parser.add_argument("--private", action="store_true", help="for one run: no alerts, no watches")
    asked = parser.parse_args()

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    from ratchet.request_filter import RequestFilter

    if not asked.private:
        _watch(asked.api)
    served = get_current_settings().server
    uvicorn.run(
        RequestFilter(create_app(final=True), origins=asked.origins),
        host=asked.host,
        port=asked.port,
        timeout_keep_alive=served.api.keepalive_timeout,
        ws_ping_interval=served.api.websocket_ping_interval,
        ws_ping_timeout=served.api.websocket_ping_timeout,
        log_level=served.logging_level.lower(),
    )


def _watch(api: str) -> None:
    """Let this process know the blocks that send alerts, and watch the machine and the workers."""
    import flows.alerts  # noqa: F401  (Prefect finds the blocks' classes by their having been imported)
    from ratchet.platform.lookout import look_out
    from ratchet.platform.lost import LostWorkers
    from ratchet.platform.pressure import Watch
    from ratchet.workspace import Workspace

    workspace = Workspace.find()
    look_out(Watch(workspace, api).look, "machine pressure")
    look_out(LostWorkers(workspace, api).look, "lost workers")


if __name__ == "__main__":
    main()
