"""Looking at something every few seconds, in a thread beside the work, for as long as the process lives."""

import threading
import time
from collections.abc import Callable

__all__ = ["look_out"]

_EVERY = 10.0  # seconds between two looks: one takes milliseconds


def look_out(look: Callable[[], None], what: str) -> None:
    """Begin to call `look` for ever. An error is printed, once, with `what` it looks for; the next may do better."""
    threading.Thread(target=_stay, args=(look, what), name=what, daemon=True).start()


def _stay(look: Callable[[], None], what: str) -> None:
    trouble = ""
    while True:
        time.sleep(_EVERY)
        try:
            look()
        except Exception as error:  # whatever it is
            if repr(error) != trouble:
                print(f"ratchet: the look for {what} failed: {error!r}", flush=True)
            trouble = repr(error)
