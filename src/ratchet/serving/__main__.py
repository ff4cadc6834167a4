"""The model server as a service of `ratchet up`: python -m ratchet.serving --host HOST --port PORT."""

import argparse
import logging
import sys

from ratchet.errors import RatchetError
from ratchet.serving.process import serve
from ratchet.workspace import Workspace

_LOG = logging.getLogger("ratchet.serving.process")


def main() -> int:
    """Serve the workspace that the working folder is in."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model")
    parser.add_argument("--wait", action="store_true", help="start before there is a version")
    arguments = parser.parse_args()
    try:
        workspace = Workspace.find()
        workspace.make_importable()
        serve(workspace, say=_LOG.info, **vars(arguments))
    except RatchetError as error:
        print(f"ratchet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while it loads; a server that answers ends by the signal itself
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
