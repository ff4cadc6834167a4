"""`ratchet up --foreground`: start, stay, and stop on a signal, as a service manager expects of a program."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flows.server.lifecycle import down, exclusive, up
from ratchet.servers.server_record import ServerRecord
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["stay"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_INTERVAL = 1.0  # seconds between two checks of the supervisor


class _Signalled(BaseException):
    """Raised when a signal asks this process to stop."""


def stay(workspace: Workspace, params: Params, *, say: Callable[[str], None]) -> None:
    """Run `up`, wait for SIGTERM, SIGINT, SIGHUP or another process's `ratchet down`, then run `down`.

    The supervisor watches the services; this function watches the supervisor. Arguments as for `up`.

    Raises:
        PlatformError: as `up`. If all services were up before, they are stopped.
    """
    was_up = False
    with _raise_on_signals() as raise_again:
        try:
            while not was_up or _supervisor_died(workspace, say, raise_again):
                up(workspace, params, say=say)
                raise_again()
                say("staying in the foreground: SIGTERM, Ctrl-C or `ratchet down` ends it")
                was_up = True
        except _Signalled as signalled:
            say(f"{signalled}: stopping")
        except Exception:
            _ignore_signals()
            if was_up:
                down(workspace, say=say)
            raise
        _ignore_signals()
        down(workspace, say=say)


def _supervisor_died(workspace: Workspace, say: Callable[[str], None], raise_again: Callable[[], None]) -> bool:
    """Wait. Returns True when the supervisor has died, False when everything was stopped by `ratchet down`."""
    while ServerRecord.read(workspace).alive():
        raise_again()
        time.sleep(_INTERVAL)
    with exclusive(workspace, say):  # another `up` or `down` may be replacing it
        return bool(ServerRecord.read(workspace).services)


@contextmanager
def _raise_on_signals() -> Iterator[Callable[[], None]]:
    """Raise on a signal. Yield a function that raises again: a callback of a library can swallow what is raised in it.

    Nothing else would stop this process then, because it ignores further signals.
    """
    received: list[str] = []

    def stop(number: int, frame: object) -> None:
        _ignore_signals()
        received.append(signal.Signals(number).name)
        raise _Signalled(received[0])

    def raise_again() -> None:
        if received:
            raise _Signalled(received[0])

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield raise_again
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """Ignore further signals, so that stopping is not interrupted."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
