"""Requests that wait are computed together; one that fails or comes late harms no other one.

The clock stands until a model or a test advances it.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from waiting import until_in_loop

from ratchet.serving.lifetime import Lifetime
from ratchet.serving.versions.batching import Batcher, Overloaded
from ratchet.serving.versions.loaded import LoadedVersion

LONG = 60.0  # seconds


class Clock:
    """A clock that stands until it is advanced."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def lifetime(self, seconds: float = LONG) -> Lifetime:
        return Lifetime(self.now + seconds, clock=self)


class Model:
    """A model whose predictions are its rows, which waits for `free` before each batch, and takes `seconds` for it."""

    def __init__(
        self, check: Callable[[np.ndarray], Any] = lambda rows: rows, *, engine: str = "torch", seconds: float = 0.0
    ) -> None:
        self.check, self.engine, self.seconds = check, engine, seconds
        self.clock, self.free, self.taken = Clock(), threading.Event(), threading.Event()
        self.batches, self.threads = list[int](), list[str]()
        self.free.set()

    def predict(self, arrays: tuple[np.ndarray, ...]) -> Any:
        self.taken.set()
        self.free.wait()
        self.clock.now += self.seconds
        self.batches.append(len(arrays[0]))
        self.threads.append(threading.current_thread().name)
        return self.check(arrays[0])

    @property
    def loaded(self) -> LoadedVersion:
        return cast(LoadedVersion, self)


def run(
    model: Model, requests: list[Any], *, deadline: float = LONG, queue: int = 1024, passing: float = 0.0
) -> list[Any]:
    """Return the answers, or exceptions, to requests that arrive while the first one is computed.

    The deadline is that of the others. So many seconds are `passing` before the model is free.
    """

    async def ask() -> list[Any]:
        batcher = Batcher(queue_rows=queue, clock=model.clock)

        async def one(values: Any, seconds: float) -> Any:
            arrays = (np.array(values, np.float32),)
            return await batcher.predict(model.loaded, arrays, model.clock.lifetime(seconds))

        model.free.clear()
        first = asyncio.create_task(one(requests[0], LONG))
        await until_in_loop(model.taken.is_set)
        others = [asyncio.create_task(one(values, deadline)) for values in requests[1:]]

        def arrived() -> bool:
            waiting = [len(rows) for rows, task in zip(requests[1:], others, strict=True) if not task.done()]
            return batcher.waiting == sum(waiting)

        await until_in_loop(arrived)
        model.clock.now += passing
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


def test_full_queue_refuses_and_answers_the_others() -> None:
    model = Model()
    first, fits, refused, last = run(model, [[[0.0]], [[1.0]] * 3, [[2.0]] * 2, [[3.0]]], queue=4)
    assert isinstance(refused, Overloaded)
    assert [answer.ravel().tolist() for answer in (first, fits, last)] == [[0.0], [1.0] * 3, [3.0]]
    assert model.batches == [1, 4]


@pytest.mark.parametrize(("passing", "is_late"), [(0.5, False), (1.5, True)])
def test_request_is_computed_before_its_deadline_only(passing: float, is_late: bool) -> None:
    model = Model()
    _, second = run(model, [[[0.0]], [[1.0]]], deadline=1.0, passing=passing)
    assert isinstance(second, Overloaded) is is_late
    assert model.batches == ([1] if is_late else [1, 1])


def answers_of(model: Model, *, requests: int, deadline: float = LONG) -> list[float]:
    """Ask for one row at a time, each when the thread waits again."""

    async def ask() -> list[float]:
        batcher, answers = Batcher(queue_rows=64, clock=model.clock), list[float]()
        for value in range(requests):
            await until_in_loop(lambda: not batcher.is_busy)
            row = np.array([[value]], np.float32)
            answer = await batcher.predict(model.loaded, (row,), model.clock.lifetime(deadline))
            answers.append(answer.item())
        await asyncio.to_thread(batcher.close)
        return answers

    return asyncio.run(ask())


def test_an_idle_model_answers_after_a_slow_batch() -> None:
    model = Model(seconds=1.5)
    assert answers_of(model, requests=4, deadline=1.0) == [0.0, 1.0, 2.0, 3.0]


def test_busy_model_refuses_what_it_expects_to_answer_late() -> None:
    async def ask() -> None:
        model = Model(seconds=1.5)
        batcher, row = Batcher(queue_rows=64, clock=model.clock), (np.zeros((1, 1), np.float32),)
        await batcher.predict(model.loaded, row, model.clock.lifetime())
        model.taken.clear()
        model.free.clear()
        running = asyncio.create_task(batcher.predict(model.loaded, row, model.clock.lifetime()))
        await until_in_loop(model.taken.is_set)
        with pytest.raises(Overloaded, match=r"busy for about 1\.50 s"):
            await batcher.predict(model.loaded, row, model.clock.lifetime(2.9))
        third = asyncio.create_task(batcher.predict(model.loaded, row, model.clock.lifetime(3.1)))
        await until_in_loop(lambda: batcher.waiting == 1)
        model.free.set()
        await asyncio.gather(running, third)
        await asyncio.to_thread(batcher.close)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("engine", "seconds", "thread"),
    [("onnxruntime", 0.0001, "MainThread"), ("onnxruntime", 0.005, "batches"), ("torch", 0.0001, "batches")],
)
def test_only_short_batches_are_computed_in_the_event_loop(engine: str, seconds: float, thread: str) -> None:
    model = Model(engine=engine, seconds=seconds)
    assert answers_of(model, requests=6) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert model.threads == ["batches"] + 5 * [thread]  # at first nothing is known about the model's speed
