"""Waits of tests. The only place that sleeps: a test waits for a condition, and its failure says which one."""

import asyncio
import contextlib
import inspect
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT = 600.0  # seconds; a busy machine is no fault


def until(
    condition: Callable[[], T],
    *,
    process: "subprocess.Popen[bytes] | subprocess.Popen[str] | None" = None,
    log: Path | None = None,
    seconds: float = LIMIT,
    pause: float | None = None,
) -> T:
    """Wait until the condition is true, and return its value. A refused connection counts as false.

    Args:
        condition: asked again and again.
        process: must live until then.
        log: shown if the process ends or the time is over.
        seconds: the longest wait.
        pause: seconds between two questions. None: more and more, since questions to a server take processor time.
    """
    began = time.monotonic()
    while True:
        value: T | OSError
        try:
            value = condition()
            if value:
                return value
        except OSError as error:
            value = error
        if process is not None and (code := process.poll()) is not None:
            raise AssertionError(f"the process ended with {code} before {_source(condition)}{_end(log)}")
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"{seconds:g} s were not enough for {_source(condition)}: {value!r}{_end(log)}")
        time.sleep(min(0.5, 0.01 + waited / 20) if pause is None else pause)


async def until_in_loop(condition: Callable[[], object], seconds: float = LIMIT) -> None:
    """Wait until the condition is true, while the event loop runs."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, f"{seconds:g} s were not enough for {_source(condition)}"
        await asyncio.sleep(0.001)


async def let_turn(turns: int) -> None:
    """Let the event loop have so many turns."""
    for _ in range(turns):
        await asyncio.sleep(0)


def until_or_end(
    condition: Callable[[], object], process: "subprocess.Popen[bytes] | subprocess.Popen[str]", **limits: Any
) -> bool:
    """Wait until the condition is true or the process has ended. Return the condition."""
    met = False

    def is_over() -> bool:
        nonlocal met
        met = bool(condition())
        return met or process.poll() is not None

    until(is_over, **limits)
    return met


def let_run(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", seconds: float) -> None:
    """Let a process run for some time, or until its end: to kill it at a random moment."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _source(condition: Callable[[], object]) -> str:
    """Return the code of a lambda, or the name of another function."""
    name = getattr(condition, "__qualname__", repr(condition))
    if owner := getattr(condition, "__self__", None):
        return f"{name} of {owner}"
    if "<lambda>" not in name:
        return name
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return name


def _end(log: Path | None) -> str:
    return f"\n{log.read_text(errors='replace')[-5000:]}" if log and log.exists() else ""
