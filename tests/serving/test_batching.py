"""Requests that wait are computed together; one that fails or comes late harms no other one."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from ratchet.serving.lifetime import Lifetime
from ratchet.serving.versions.batching import Batcher, Overloaded
from ratchet.serving.versions.loaded import LoadedVersion

ENOUGH = 60.0  # seconds


class Model:
    """A model whose predictions are its rows, and which waits for `free` before each batch."""

    def __init__(self, check: Callable[[np.ndarray], Any] = lambda rows: rows, engine: str = "torch") -> None:
        self.check, self.free, self.batches = check, threading.Event(), list[int]()
        self.taken = threading.Event()
        self.engine, self.threads = engine, list[str]()
        self.free.set()

    def predict(self, arrays: tuple[np.ndarray, ...]) -> Any:
        self.taken.set()
        self.free.wait()
        self.batches.append(len(arrays[0]))
        self.threads.append(threading.current_thread().name)
        return self.check(arrays[0])


def run(model: Model, requests: list[Any], *, deadline: float = ENOUGH, queue: int = 1024) -> list[Any]:
    """Return the answers, or exceptions, to requests that arrive while the first one is computed.

    The deadline is that of the others.
    """

    async def ask() -> list[Any]:
        batcher = Batcher(queue_rows=queue)
        loaded = cast(LoadedVersion, model)

        async def one(values: Any, seconds: float) -> Any:
            ends = time.monotonic() + seconds
            return await batcher.predict(loaded, (np.array(values, np.float32),), Lifetime(ends))

        model.free.clear()
        first = asyncio.create_task(one(requests[0], ENOUGH))
        while not model.taken.is_set():
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(one(values, deadline)) for values in requests[1:]]
        await asyncio.sleep(0.05)
        model.free.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        await asyncio.to_thread(batcher.close)
        return list(results)

    return asyncio.run(ask())


def test_what_waits_is_one_batch() -> None:
    model = Model()
    answers = run(model, [[[1.0]], [[2.0], [3.0]], [[4.0]]])
    assert [answer.ravel().tolist() for answer in answers] == [[1.0], [2.0, 3.0], [4.0]]
    assert model.batches == [1, 3]


def test_rows_of_another_shape_are_another_batch() -> None:
    model = Model()
    answers = run(model, [[[1.0]], [[2.0]], [[3.0, 4.0]], [[5.0]]])
    assert [answer.ravel().tolist() for answer in answers] == [[1.0], [2.0], [3.0, 4.0], [5.0]]
    assert model.batches == [1, 2, 1]


@pytest.mark.parametrize("fault", [ValueError("9"), SystemExit(9)])
def test_only_the_request_that_fails_gets_the_error(fault: BaseException) -> None:
    def check(rows: np.ndarray) -> np.ndarray:
        if (rows == 9.0).any():
            raise fault
        return rows

    first, good, bad, last = run(Model(check), [[[0.0]], [[1.0]], [[9.0]], [[2.0]]])
    assert isinstance(bad, ValueError | RuntimeError)
    assert [answer.ravel().tolist() for answer in (first, good, last)] == [[0.0], [1.0], [2.0]]


def test_a_model_that_returns_nothing_is_an_error() -> None:
    answers = run(Model(lambda rows: None), [[[0.0]], [[1.0]]])
    assert all(isinstance(answer, Exception) for answer in answers)


def test_an_idle_model_answers_after_a_slow_batch() -> None:
    slow = iter([1.5])

    def check(rows: np.ndarray) -> np.ndarray:
        time.sleep(next(slow, 0.0))
        return rows

    async def ask() -> list[float]:
        batcher, loaded = Batcher(queue_rows=9), cast(LoadedVersion, Model(check))
        rows = (np.ones((1, 1), np.float32),)
        await batcher.predict(loaded, rows, Lifetime(time.monotonic() + ENOUGH))
        answers = [await batcher.predict(loaded, rows, Lifetime(time.monotonic() + 1.0)) for _ in range(3)]
        await asyncio.to_thread(batcher.close)
        return [float(answer[0, 0]) for answer in answers]

    assert asyncio.run(ask()) == [1.0, 1.0, 1.0]


def test_a_full_queue_and_a_late_request_are_refused() -> None:
    full = run(Model(), [[[0.0]], [[1.0]] * 3, [[2.0]] * 2], queue=4)
    assert isinstance(full[2], Overloaded)
    late = run(Model(), [[[0.0]], [[1.0]]], deadline=0.02)
    assert isinstance(late[1], Overloaded)


def threads_of(model: Model, *, requests: int, until: str = "") -> list[str]:
    """Ask for one row at a time, at most so often; return the names of the threads that computed."""

    async def ask() -> None:
        batcher = Batcher(queue_rows=64)
        for value in range(requests):
            row, deadline = np.array([[value]], np.float32), time.monotonic() + ENOUGH
            answer = await batcher.predict(cast(LoadedVersion, model), (row,), Lifetime(deadline))
            assert answer.item() == value
            await asyncio.sleep(0.001)  # the thread waits again
            if model.threads[-1] == until:
                break
        await asyncio.to_thread(batcher.close)

    asyncio.run(ask())
    return model.threads


def test_short_batches_are_computed_in_the_event_loop() -> None:
    first, *others = threads_of(Model(engine="onnxruntime"), requests=5000, until="MainThread")
    assert first == "batches"  # nothing is known about the model's speed
    assert others[-1] == "MainThread"


def slowly(rows: np.ndarray) -> np.ndarray:
    time.sleep(0.005)
    return rows


@pytest.mark.parametrize("model", [Model(slowly, "onnxruntime"), Model(engine="torch")], ids=["slow", "torch"])
def test_other_batches_are_computed_in_the_thread(model: Model) -> None:
    assert set(threads_of(model, requests=20)) == {"batches"}
