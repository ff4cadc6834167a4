"""`ratchet up --foreground`: up, stay, and down when told to go, which is what a service manager wants of a program."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ratchet.platform.alerts import NOBODY
from ratchet.platform.lifecycle import down, turn, up
from ratchet.platform.record import Record
from ratchet.settings.model import AlertSettings, PlatformSettings
from ratchet.workspace import Workspace

__all__ = ["stay"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK = 1.0  # seconds between two looks at the keepers


class _Told(BaseException):
    """A signal says: go."""


def stay(
    workspace: Workspace,
    settings: PlatformSettings,
    *,
    tracking_uri: str,
    artifacts: str,
    told: AlertSettings = NOBODY,
    say: Callable[[str], None],
) -> None:
    """`up`, until SIGTERM, SIGINT, SIGHUP or another's `ratchet down`; then `down`.

    The keepers look after the parts; this looks after the keepers. Arguments as for `up`.

    Raises:
        PlatformError: as `up`. Was all up before, it is stopped.
    """
    stood = False
    with _told_by_signals():
        try:
            while not stood or _keeper_lost(workspace, say):
                up(workspace, settings, tracking_uri=tracking_uri, artifacts=artifacts, told=told, say=say)
                say("stays here: SIGTERM, Ctrl-C or `ratchet down` ends it")
                stood = True
        except _Told as signalled:
            say(f"{signalled}: stopping")
        except Exception:
            _be_deaf()
            if stood:
                down(workspace, say=say)
            raise
        _be_deaf()
        down(workspace, say=say)


def _keeper_lost(workspace: Workspace, say: Callable[[str], None]) -> bool:
    """Wait. True: a part has nobody who looks after it; False: somebody has stopped what was started."""
    while parts := Record.read(workspace).parts:
        if not all(part.alive() for part in parts.values()):
            with turn(workspace, say):  # another `up` or `down` may be replacing it
                parts = Record.read(workspace).parts
            if any(not part.alive() for part in parts.values()):
                return True
        time.sleep(_LOOK)
    return False


@contextmanager
def _told_by_signals() -> Iterator[None]:
    def go(number: int, frame: object) -> None:
        _be_deaf()
        raise _Told(signal.Signals(number).name)

    before = {number: signal.signal(number, go) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _be_deaf() -> None:
    """Once told is enough: what comes now is not to be cut off."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
