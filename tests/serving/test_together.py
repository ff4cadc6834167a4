"""Requests that are encoded together get the arrays, or the error, that each gets alone."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from waiting import until_in_loop

from ratchet.data.tables import encode as encoding
from ratchet.kinds import Column, Input, TableInput, TextInput
from ratchet.kinds.protocol import InputError
from ratchet.kinds.registry import kind_of
from ratchet.problems import Classes
from ratchet.serving.formats.request_formats import MlflowFormat, ModelRequest, encode_together
from ratchet.serving.lifetime import Lifetime
from ratchet.serving.versions.additions import VersionAdditions
from ratchet.serving.versions.batching import Batcher, Raw
from ratchet.serving.versions.loaded import LoadedVersion

TABLE = TableInput(
    (
        Column("age", "numeric", 40.0, 10.0, (20.0, 60.0)),
        Column("when", "datetime", 1.7e9, 1e6, (1.6e9, 1.8e9), form="%d.%m.%Y"),
        Column("class", "categorical", categories=("first", "second", "7", "3.5")),
        Column("member", "categorical", categories=("True", "False")),
    )
)
PLAIN = TableInput((TABLE.columns[0], TABLE.columns[2]))
VALUES: dict[str, list[Any]] = {
    "age": [31, 31.5, "31", " 32.5 ", None, 2**53 - 1, 2**60, -0.0, "?", True],
    "when": ["24.12.2026", "2026-12-24T10:00:00", 1.7e9, 1_700_000_000, None, ""],
    "class": ["first", "third", " second", 7, 7.0, 3.5, None, "NA", False],
    "member": ["True", "FALSE", True, None, 1],
}
WORDS = ("good", "bad", "film", "a")
TEXTS: dict[str, Input] = {
    "hashed": TextInput("hashed", buckets=512, longest=64),
    "words": TextInput("words", vocabulary=WORDS, longest=8),
}


class Version:
    """The part of a loaded version that reads requests."""

    engine = "torch"

    def __init__(self, described: Input) -> None:
        self.input, self.kind = described, kind_of(described)
        self.spec = cast(Any, self)
        self.additions = VersionAdditions("named/1", Classes(("a", "b")), Path("none"), full=Path("none"))

    def given(self, values: Any, field: str, **_: Any) -> Any:
        return self.kind.read(values, self.input, field)

    def read(self, rows: list[Any]) -> ModelRequest:
        body = json.dumps({"inputs": rows}).encode()
        return MlflowFormat(1024).read(body, {}, cast(LoadedVersion, self))


def alone(request: ModelRequest) -> Any:
    """Return the bytes of the arrays of a request, or the message that refuses it."""
    try:
        return content(encode_together([request])[0])
    except InputError as error:
        return str(error)


def content(request: ModelRequest) -> list[tuple[tuple[int, ...], bytes]]:
    return [(array.shape, array.tobytes()) for array in request.arrays]


def tables(described: TableInput, count: int, seed: int) -> list[ModelRequest]:
    random, version = np.random.default_rng(seed), Version(described)
    names = [column.name for column in described.columns]

    def row() -> dict[str, Any]:
        return {name: VALUES[name][random.integers(len(VALUES[name]))] for name in names}

    return [version.read([row() for _ in range(random.integers(0, 3))]) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("described", [TABLE, PLAIN], ids=["dates", "plain"])
def test_tables_have_the_arrays_that_they_have_alone(described: TableInput, seed: int) -> None:
    requests = tables(described, 40, seed)
    expected = [alone(request) for request in requests]
    good = [place for place, each in enumerate(expected) if not isinstance(each, str)]
    assert len(good) > 10
    results = encode_together([requests[place] for place in good])
    assert [content(result) for result in results] == [expected[place] for place in good]
    if len(good) < len(requests):
        with pytest.raises(InputError):
            encode_together(requests)


@pytest.mark.parametrize("described", TEXTS.values(), ids=TEXTS)
def test_texts_have_the_arrays_that_they_have_alone(described: Input) -> None:
    random, version = np.random.default_rng(0), Version(described)
    requests = [
        version.read([" ".join(random.choice([*WORDS, "plot", "Übel"], random.integers(0, 12))) for _ in range(rows)])
        for rows in random.integers(0, 4, 40)
    ]
    assert [content(result) for result in encode_together(requests)] == [alone(request) for request in requests]


def test_waiting_requests_are_encoded_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are those beside one that is refused. Nothing else than the number of calls is replaced."""
    calls, encode = list[int](), encoding.encode

    def counted(frame: Any, described: Input) -> Any:
        calls.append(len(frame))
        return encode(frame, described)

    monkeypatch.setattr(encoding, "encode", counted)
    taken, free = threading.Event(), threading.Event()

    class RequestHandler(Version):
        """A model whose predictions are the codes of its rows, once `free` is set."""

        def predict(self, arrays: tuple[np.ndarray, ...]) -> Any:
            taken.set()
            free.wait()
            return arrays[1]

    async def ask() -> list[Any]:
        batcher, version = Batcher(queue_rows=1024), RequestHandler(TABLE)
        loaded, forever = cast(LoadedVersion, version), Lifetime(float("inf"))

        async def one(row: dict[str, Any]) -> Any:
            raw = Raw(lambda: version.read([row]), 100, encode_together)
            return (await batcher.answer(loaded, raw, forever)).predictions.tolist()

        rows = [{"age": 1.5 * row, "when": "24.12.2026", "class": "third", "member": "True"} for row in range(31)]
        first = asyncio.create_task(one(rows[0]))
        await until_in_loop(taken.is_set)
        others = [asyncio.create_task(one(row)) for row in rows[1:]]
        await until_in_loop(lambda: batcher.waiting == 30)
        free.set()
        answers = await asyncio.gather(first, *others)
        taken.clear()
        free.clear()
        first = asyncio.create_task(one(rows[0]))
        await until_in_loop(taken.is_set)
        others = [asyncio.create_task(one(row)) for row in (rows[1], rows[2] | {"age": "old"}, rows[3])]
        await until_in_loop(lambda: batcher.waiting == 3)
        free.set()
        answers += await asyncio.gather(first, *others, return_exceptions=True)
        await asyncio.to_thread(batcher.close)
        return list(answers)

    answers = asyncio.run(ask())
    assert answers[:31] == [[[1, 2]]] * 31
    assert calls[:2] == [1, 30]
    first, good, bad, last = answers[31:]
    assert first == good == last == [[1, 2]]
    assert str(bad) == "inputs: column 'age': 'old' is no number. Fix: correct it, or leave it empty"
