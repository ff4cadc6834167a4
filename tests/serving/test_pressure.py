"""The model server under pressure: what waits is bounded, what no client waits for stops, and an end does not wait."""

import asyncio
import gzip
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
import pytest
from PIL import Image
from starlette.requests import ClientDisconnect
from waiting import until_in_loop

from ratchet.kinds import ImageInput
from ratchet.kinds.input_warnings import InputWarning
from ratchet.kinds.protocol import TooManyRows
from ratchet.kinds.registry import kind_of
from ratchet.serving.canary import Canary
from ratchet.serving.formats.request_formats import ModelRequest, RatchetFormat
from ratchet.serving.handler import Call, PredictEndpoint, RequestHandler, ServedRequest
from ratchet.serving.http_request import Bodies, Refused, TooLarge
from ratchet.serving.lifetime import Lifetime
from ratchet.serving.recent import RecentAnswers
from ratchet.serving.sequential import Slower
from ratchet.serving.shadow import Shadow
from ratchet.serving.versions.alias_watcher import PinnedVersion
from ratchet.serving.versions.batching import Batcher, Overloaded, Raw
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.serving.worker_thread import Worker
from ratchet.settings.model import ServingSettings
from tests.serving.test_loaded import store
from tests.serving.test_metrics import SPEC

ENOUGH = 60.0  # seconds
IMAGES = ImageInput(8, 8, 3, (120.0,) * 3, (60.0,) * 3)
WARNING = InputWarning(0, "range", "age: found -1e+38, far from the training values 20 to 59")


class Model:
    """A model whose predictions are its rows. It computes once `free` is set."""

    engine = "torch"

    def __init__(self) -> None:
        self.taken, self.free, self.batches = threading.Event(), threading.Event(), list[int]()
        self.threads = set[str]()

    def predict(self, arrays: tuple[np.ndarray, ...]) -> Any:
        self.taken.set()
        assert self.free.wait(ENOUGH)
        self.batches.append(len(arrays[0]))
        self.threads.add(threading.current_thread().name)
        return arrays[0]

    @property
    def loaded(self) -> LoadedVersion:
        return cast(LoadedVersion, self)


@dataclass
class Read:
    """A request that was read."""

    arrays: tuple[np.ndarray, ...] = ()
    unencoded: Any = None

    @property
    def rows(self) -> int:
        return len(self.arrays[0]) if self.arrays else 0


def rows(count: int) -> tuple[np.ndarray, ...]:
    return (np.arange(count, dtype=np.float32)[:, None],)


def soon() -> Lifetime:
    return Lifetime(time.monotonic() + ENOUGH)


async def busy(batcher: Batcher, model: Model) -> "asyncio.Task[Any]":
    """Ask for one row, and return once the model computes it."""
    first = asyncio.create_task(batcher.predict(model.loaded, rows(1), soon()))
    await until_in_loop(model.taken.is_set)
    return first


def test_many_rows_take_turns_with_other_requests() -> None:
    async def ask() -> None:
        batcher, model = Batcher(queue_rows=1024), Model()
        first = await busy(batcher, model)
        large = asyncio.create_task(batcher.predict(model.loaded, rows(100), soon()))
        small = asyncio.create_task(batcher.predict(model.loaded, rows(2), soon()))
        await until_in_loop(lambda: batcher.waiting == 102)
        model.free.set()
        np.testing.assert_array_equal(await large, rows(100)[0])
        np.testing.assert_array_equal(await small, rows(2)[0])
        await first
        assert model.batches == [1, 32, 32, 32, 4] or sum(model.batches) == 103
        assert model.batches.index(32) == 1
        assert batcher.waiting == 0
        batcher.close()

    asyncio.run(ask())


def test_request_whose_client_left_is_not_computed() -> None:
    async def ask() -> None:
        batcher, model, gone, read = Batcher(queue_rows=1024), Model(), threading.Event(), list[str]()
        first = await busy(batcher, model)
        lifetime = Lifetime(time.monotonic() + ENOUGH, gone.is_set)
        arrays = asyncio.create_task(batcher.predict(model.loaded, rows(5), lifetime))
        raw = Raw(lambda: read.append("left"), 10)
        unread = asyncio.create_task(batcher.answer(model.loaded, raw, lifetime))
        await until_in_loop(lambda: batcher.waiting == 6)
        gone.set()
        model.free.set()
        for task in (arrays, unread):
            with pytest.raises(ClientDisconnect):
                await task
        await first
        assert (model.batches, read, batcher.waiting) == ([1], [], 0)
        batcher.close()

    asyncio.run(ask())


def test_requests_are_read_by_the_thread_that_computes() -> None:
    async def ask() -> None:
        batcher, model, threads = Batcher(queue_rows=1024), Model(), set[str]()

        def read() -> Read:
            threads.add(threading.current_thread().name)
            return Read(rows(3))

        first = await busy(batcher, model)
        tasks = [asyncio.create_task(batcher.answer(model.loaded, Raw(read, 10), soon())) for _ in range(4)]
        await until_in_loop(lambda: batcher.waiting == 4)
        model.free.set()
        for task in tasks:
            np.testing.assert_array_equal((await task).predictions, rows(3)[0])
        await first
        assert threads == model.threads == {"batches"}
        assert model.batches == [1, 12]
        batcher.close()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("sizes", "text", "expected"),
    [([600_000, 600_000, 10, 20, 2_000_000, 30], "long", [2, 3, 1]), ([224 * 224 * 3] * 32, None, [32])],
    ids=["texts", "images"],
)
def test_large_requests_are_encoded_apart(sizes: list[int], text: str | None, expected: list[int]) -> None:
    """No deadline ends the encoding of several long texts. Images need none, and share a batch."""

    async def ask() -> None:
        batcher, model, together = Batcher(queue_rows=1024, clock=lambda: 0.0), Model(), list[int]()

        def complete(requests: list[Any]) -> list[Any]:
            together.append(len(requests))
            return requests

        first = await busy(batcher, model)
        raw = [Raw(lambda: Read(rows(1), text), size, complete) for size in sizes]
        tasks = [asyncio.create_task(batcher.answer(model.loaded, each, soon())) for each in raw]
        await until_in_loop(lambda: batcher.waiting == len(sizes))
        model.free.set()
        await asyncio.gather(first, *tasks)
        assert together == expected
        batcher.close()

    asyncio.run(ask())


def test_full_queue_refuses_before_the_body_is_read() -> None:
    async def ask() -> None:
        batcher, model = Batcher(queue_rows=2), Model()
        first = await busy(batcher, model)
        batcher.check(10, time.monotonic() + ENOUGH)
        waiting = [asyncio.create_task(batcher.predict(model.loaded, rows(1), soon())) for _ in range(2)]
        await until_in_loop(lambda: batcher.waiting == 2)
        with pytest.raises(Overloaded):
            batcher.check(10, time.monotonic() + ENOUGH)
        model.free.set()
        await asyncio.gather(first, *waiting)
        batcher.check(10, time.monotonic() + ENOUGH)
        batcher.close()

    asyncio.run(ask())


def test_close_drops_what_waits_though_the_model_hangs() -> None:
    async def ask() -> None:
        batcher, model = Batcher(queue_rows=1024), Model()
        first = await busy(batcher, model)
        waiting = asyncio.create_task(batcher.predict(model.loaded, rows(1), soon()))
        await until_in_loop(lambda: batcher.waiting == 1)
        batcher.close()
        with pytest.raises(Overloaded):
            await waiting
        with pytest.raises(Overloaded):
            await batcher.predict(model.loaded, rows(1), soon())
        assert not first.done()
        model.free.set()
        await first

    asyncio.run(ask())


def test_generations_take_turns_and_end_with_their_client() -> None:
    async def ask() -> None:
        batcher, model, order = Batcher(queue_rows=1024), Model(), list[str]()
        gone = threading.Event()
        left = Lifetime(time.monotonic() + ENOUGH, gone.is_set)

        def texts(name: str, lifetime: Lifetime) -> Iterator[str]:
            for number in range(3):
                lifetime.check()
                order.append(name)
                if name == "left":
                    gone.set()
                yield f"{name} {number}"

        first = await busy(batcher, model)
        lifetimes = {"one": soon(), "two": soon(), "left": left}
        tasks = [
            asyncio.create_task(batcher.take_turns(texts(name, lifetime), lifetime, count=3, tokens=5))
            for name, lifetime in lifetimes.items()
        ]
        await until_in_loop(lambda: batcher.waiting == 9)
        model.free.set()
        await first
        assert await tasks[0] == ["one 0", "one 1", "one 2"]
        assert await tasks[1] == ["two 0", "two 1", "two 2"]
        with pytest.raises(ClientDisconnect):
            await tasks[2]
        assert order == ["one", "two", "left", "one", "two", "one", "two"]
        assert batcher.waiting == 0
        batcher.close()

    asyncio.run(ask())


def sender(*parts: bytes) -> Callable[[], Any]:
    """Return a `receive` of ASGI for the parts of a body."""
    left = list(parts)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


def test_bodies_in_memory_have_a_common_limit() -> None:
    async def read() -> None:
        bodies = Bodies(ServingSettings(body_mib=1.0))
        bodies.limit = 3 << 20
        part = b"a" * (1 << 19)
        with bodies.hold() as first, bodies.hold() as second:
            assert await first.read(sender(part, part), {}) == part + part
            await second.read(sender(part, part), {})
            with bodies.hold() as third, bodies.hold() as fourth:
                await third.read(sender(part), {})
                receive = sender(part, part)
                with pytest.raises(Refused, match="the bodies of all requests") as refused:
                    await fourth.read(receive, {})
                assert refused.value.status == 503
                assert bodies.size == 5 * len(part)  # the refused body is not kept
        assert bodies.size == 0
        with pytest.raises(TooLarge, match="larger than 1 MiB"):
            bodies.check({"content-length": "99000000"})
        empty = [gzip.compress(b"") * 10_000] * 9
        with bodies.hold() as endless, pytest.raises(Refused, match="larger than 1 MiB") as refused:
            await endless.read(sender(*empty), {"content-encoding": "gzip"})
        assert (refused.value.status, bodies.size) == (413, 0)

    asyncio.run(read())


def test_remembered_answers_count_their_warnings() -> None:
    recent, warnings = RecentAnswers(), (WARNING,) * 10_000
    for place in range(50):
        recent.add((str(place),), ModelRequest(rows(1), warnings=warnings), np.zeros((1, 3), np.float32))
    assert recent.get(("0",)) is None
    assert recent.get(("49",)) is not None


def image_file(width: int) -> bytes:
    file = BytesIO()
    Image.new("L", (width, width)).save(file, "PNG")
    return file.getvalue()


def test_pixels_of_all_files_are_counted_before_decoding() -> None:
    bomb = image_file(6320)  # 38 KB
    with pytest.raises(TooManyRows, match=r"more than 100,000,000 pixels in 3 of 60 image files"):
        kind_of(IMAGES).read([bomb] * 60, IMAGES, "input")


def test_decoding_stops_when_no_client_waits() -> None:
    calls = iter([None, None, None, TimeoutError()])

    def check() -> None:
        if error := next(calls):
            raise error

    with pytest.raises(TimeoutError):
        kind_of(IMAGES).read([image_file(8), image_file(9)], IMAGES, "input", check)


def answered(run: str = "served", *, client: str = "", seconds: float = 0.01, upload: float = 0.0) -> ServedRequest:
    """An answer to one row."""
    loaded = SimpleNamespace(identity=SimpleNamespace(run_id=run), spec=SimpleNamespace())
    answer = SimpleNamespace(id="0" * 32, instead="", predictions=np.zeros((1, 3), np.float32))
    call = SimpleNamespace(envelope="own", client=client)
    fields: Any = (call, ModelRequest(rows(1)), answer, loaded, 0.0, seconds + upload, seconds)
    return ServedRequest(*fields)


def test_slow_shadow_drops_requests_and_its_end_does_not_wait() -> None:
    taken, free = threading.Event(), threading.Event()

    class Hung:
        is_named, reference = True, "image/2"
        is_closed = False

        @property
        def current(self) -> Any:
            if threading.current_thread().name == "shadow":
                taken.set()
                free.wait(ENOUGH)
            return object()

        def close(self) -> None:
            self.is_closed = True

    watcher, log = Hung(), SimpleNamespace(share=1.0)
    shadow = Shadow(cast(Any, watcher), cast(Any, log))
    shadow.observe(answered())
    assert taken.wait(ENOUGH)

    async def receive() -> Any: ...

    connection = weakref.ref(receive)
    shadow.observe(answered()._replace(call=Call("own", {}, {}, "", "", receive, 0.0)))
    del receive
    assert connection() is None, "a request that waits keeps its connection"
    for _ in range(4999):
        shadow.observe(answered())
    assert shadow.dropped == 5000 - 1024
    shadow.close()
    assert shadow.dropped == 5000
    assert watcher.is_closed
    free.set()


def test_requests_that_wait_long_are_not_shadowed() -> None:
    clock, begun, ended = Clock(), list[float](), threading.Event()

    class Watcher:
        is_named, reference = True, "image/2"

        @property
        def current(self) -> Any:
            if threading.current_thread().name != "shadow":
                return object()
            begun.append(clock.now)
            ended.set()
            return None

        def close(self) -> None: ...

    shadow = Shadow(cast(Any, Watcher()), cast(Any, SimpleNamespace(share=1.0)), clock=clock)
    with shadow._changed:  # so that its thread waits
        shadow.observe(answered())
        clock.now = 61.0
        shadow.observe(answered())
    assert ended.wait(ENOUGH)
    shadow.close()
    assert (shadow.dropped, begun) == (1, [61.0])


def test_worker_is_bounded_and_its_end_does_not_wait() -> None:
    async def ask() -> None:
        worker, taken, free = Worker("test"), threading.Event(), threading.Event()

        def hang() -> None:
            taken.set()
            free.wait(ENOUGH)

        tasks = [asyncio.create_task(worker.run(hang, soon()))]
        await until_in_loop(taken.is_set)
        tasks += [asyncio.create_task(worker.run(hang, soon())) for _ in range(16)]
        await until_in_loop(lambda: len(worker._jobs) == 16)
        with pytest.raises(Overloaded):
            await worker.run(hang, soon())
        worker.close()
        free.set()
        assert await tasks[0] is None
        for task in tasks[1:]:
            with pytest.raises(Overloaded):
                await task

    asyncio.run(ask())


class Clock:
    """A clock that stands until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[tuple[Canary, Clock]]:
    """A canary on trial beside the version `served`, and its clock."""
    clock = Clock()
    loaded = SimpleNamespace(identity=SimpleNamespace(run_id="canary"))
    watcher: Any = SimpleNamespace(current=loaded, is_named=True, problem="", close=lambda: None)
    canary = Canary(watcher, ServingSettings(canary_latency=1.5), tmp_path / "canary.json", clock=clock)
    canary._follow(cast(Any, loaded), answered().loaded)
    yield canary, clock
    canary.close()


def test_outcomes_of_one_client_count_once_in_a_span(canary: tuple[Canary, Clock]) -> None:
    trial, clock = canary
    for _ in range(500):
        trial.failed(answered("canary").loaded, "one client")
        trial.answered(answered("served", client="one client"))
    assert trial.withdrawn == ""
    for span in range(1, 40):
        clock.now = float(span)
        trial.failed(answered("canary").loaded, "one client")
        trial.answered(answered("served", client="one client"))
    assert "of its requests failed" in trial.withdrawn


def test_withdrawal_outlasts_a_restart_with_the_same_share(canary: tuple[Canary, Clock], tmp_path: Path) -> None:
    trial, _ = canary
    for client in range(500):
        trial.failed(answered("canary").loaded, str(client))
        trial.answered(answered("served", client=str(client)))
    assert "of its requests failed" in trial.withdrawn
    for share, reason in ((ServingSettings().canary_share, trial.withdrawn), (0.4, "")):
        settings = ServingSettings(canary_latency=1.5, canary_share=share)
        again = Canary(trial.watcher, settings, tmp_path / "canary.json")
        again._follow(cast(Any, trial.watcher.current), answered().loaded)
        assert again.withdrawn == reason
        again.close()


@pytest.mark.parametrize("content", [None, "{", "[]", '{"run": "run-2"}'])
def test_no_canary_answers_while_its_record_is_unreadable(
    canary: tuple[Canary, Clock], tmp_path: Path, content: str | None
) -> None:
    trial, _ = canary
    record = tmp_path / "unreadable.json"
    record.write_text(content) if content else record.mkdir()
    again = Canary(trial.watcher, ServingSettings(), record)
    again._follow(cast(Any, trial.watcher.current), answered().loaded)
    assert f"{record}, cannot be read" in again.withdrawn
    again.close()


def test_slow_uploads_withdraw_no_canary(canary: tuple[Canary, Clock]) -> None:
    trial, _ = canary
    for client in range(2000):
        trial.answered(answered("canary", client=str(client), upload=5.0))
        trial.answered(answered("served", client=str(client)))
    assert trial.state["latency"] == {"pairs": 2000, "slower": 0}
    assert trial.withdrawn == ""


def test_late_end_of_an_upload_fails_no_canary(tmp_path: Path) -> None:
    """The version hangs. Of the deadline of 10 s the client takes 7.5, or 0.5, for sending the body."""
    store(tmp_path, SPEC)
    served, hung = (LoadedVersion(Identity("a", n, f"run-{n}", None), tmp_path) for n in "12")
    watcher: Any = SimpleNamespace(current=hung, is_named=True, problem="", close=lambda: None)
    body = orjson.dumps({"input": np.zeros((1, 8, 8, 3), int).tolist()})

    async def ask(upload: float) -> tuple[int, list[bool]]:
        """Return the status, and the failures of the canary that were counted."""
        settings, free, sent = ServingSettings(canary_share=1.0, deadline=10.0), threading.Event(), list[Any]()
        hung._run = lambda arrays: free.wait(ENOUGH) and arrays[0]
        handler = RequestHandler(PinnedVersion(served), Batcher(queue_rows=64), settings)
        handler.canary = trial = Canary(watcher, settings, tmp_path / "canary.json")
        began, sticky = time.monotonic() - upload, (b"x-canary-key", b"user")
        scope = {"type": "http", "path": "/", "headers": [sticky], "ratchet.began": began}

        async def send(message: Any) -> None:
            sent.append(message)

        await PredictEndpoint(handler, "own", RatchetFormat(64))(scope, sender(body), send)
        free.set()
        trial.close()
        handler.batcher.close()
        assert trial._trial
        return sent[0]["status"], list(trial._trial.outcomes[True])

    assert asyncio.run(ask(7.5)) == (503, [])
    assert asyncio.run(ask(0.5)) == (503, [True])


def test_canary_that_becomes_slow_later_is_withdrawn(canary: tuple[Canary, Clock]) -> None:
    trial, _ = canary
    for client in range(5000):
        trial.answered(answered("canary", client=str(client)))
        trial.answered(answered("served", client=str(client)))
    for client in range(100):
        trial.answered(answered("canary", client=f"later {client}", seconds=0.1))
        trial.answered(answered("served", client=f"later {client}"))
    assert "times the seconds of the served version" in trial.withdrawn


def test_evidence_of_good_pairs_is_not_stored() -> None:
    test = Slower(1.5)
    for _ in range(5000):
        test.add(1.0, 1.0)
    before = test.evidence
    for _ in range(60):
        test.add(2.0, 1.0)
    assert before < 0.01
    assert test.evidence >= 200
