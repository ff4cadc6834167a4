"""Tokenizers and windows of a token stream. The truth is Python's own text, and runs that were not interrupted."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec, TokensInput
from ratchet.problems import NextToken
from ratchet.settings.model import TrainingSettings
from ratchet.tokens.token_ids import TOKENIZERS, UNKNOWN, decode, encode, encode_utf8, tokens, unknown
from ratchet.tokens.token_ids import fit as fit_tokenizer
from ratchet.training import CheckpointStore, Finished, Plan, Stopped, TrainingInputs, fit
from ratchet.training.streams import IGNORED, StreamSplit, Windows, shift
from tasks import training_job

CPU = torch.device("cpu")
TEXT = 'First Citizen:\nBefore we proceed  any further, hear me speak.\n\nAll:\n"Speak, speak!" naïve 日本語 🎭\té_x1\n'
EVERY_CHARACTER = "".join(map(chr, itertools.chain(range(0xD800), range(0xE000, 0x110000))))


def make_plan(*, seed: int = 0, **changes: Any) -> Plan:
    return replace(training_job.make_plan(TrainingSettings(), NextToken(9), seed=seed), **changes)


def bytes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", [TEXT, "a", " ", "\n\n", "é\u0301 x", EVERY_CHARACTER[:3000]])
def test_decoded_text_is_the_text(kind: str, text: str) -> None:
    described = fit_tokenizer(text, kind, context=8)
    ids = encode(text, described)
    assert ids.dtype == np.int64
    assert ids.max() < tokens(described)
    assert decode(ids, described) == text
    assert unknown(text, described) == []
    assert fit_tokenizer(bytes_of(text), kind, context=8) == described
    assert np.array_equal(encode_utf8(bytes_of(text), described), ids)


def test_every_character_has_its_own_id() -> None:
    described = fit_tokenizer(EVERY_CHARACTER, "characters", context=8)
    assert tokens(described) == len(EVERY_CHARACTER) + 1
    assert np.array_equal(encode(EVERY_CHARACTER, described), np.arange(len(EVERY_CHARACTER)))


@pytest.mark.parametrize("kind", ["characters", "words"])
def test_unknown_tokens_share_the_last_id(kind: str) -> None:
    described = fit_tokenizer("to be or not to be", kind, context=8)
    assert encode("zzz", described)[-1] == tokens(described) - 1
    assert unknown("be z", described)[-1].strip() == "z"
    assert decode([tokens(described) - 1], described) == UNKNOWN


def test_words_are_in_order_of_frequency_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.tokens.token_ids.LARGEST_VOCABULARY", 3)
    described = fit_tokenizer("to be or not to be to to\n", "words", context=8)
    assert described.vocabulary == (" to", " be", "\n")


def test_a_stream_in_pieces_has_the_ids_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT * 30 + "no line end " * 400 + "\n" + TEXT
    for kind in TOKENIZERS:
        described = fit_tokenizer(text, kind, context=8)
        whole = encode(text, described)
        monkeypatch.setattr("ratchet.tokens.token_ids._PIECE", 97)
        assert fit_tokenizer(bytes_of(text), kind, context=8) == described
        assert np.array_equal(encode_utf8(bytes_of(text), described), whole)
        monkeypatch.undo()


def test_ids_take_little_memory() -> None:
    assert encode_utf8(bytes_of(TEXT), fit_tokenizer(TEXT, "characters", context=8)).dtype == np.uint8
    content = bytes_of(TEXT)
    assert encode_utf8(content, TokensInput("bytes", (), 8)) is content


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"found 'pieces'. Allowed: bytes, characters, words"):
        fit_tokenizer(TEXT, "pieces", context=8)


@pytest.mark.parametrize("length", [2, 7, 8, 9, 16, 17, 18, 100])
def test_validation_predicts_every_token_exactly_once(length: int) -> None:
    stream = np.arange(1000, 1000 + length)
    split = StreamSplit.of("validation", stream, 8)
    predicted = []
    for rows in split.in_order(3):
        (ids,), targets = split.batch(rows, CPU)
        assert ids.shape == targets.shape == (len(rows), 8)
        assert np.array_equal(split.host_targets(rows), targets)
        assert np.array_equal(split.gather(rows)[0], ids)
        counts = targets != IGNORED
        assert torch.equal(ids[counts] + 1, targets[counts])  # the token before each
        predicted += targets[counts].tolist()
    assert predicted == stream[1:].tolist()


@pytest.mark.parametrize("length", [16, 17, 31, 32, 100])
def test_an_epoch_of_training_covers_the_stream_once(length: int) -> None:
    split = StreamSplit.of("train", np.arange(length), 8)
    for epoch in range(20):
        (ids,), targets = split.batch(np.arange(len(split)), CPU, plan=make_plan(seed=3), epoch=epoch)
        first = shift(3, epoch, 8)
        assert 0 <= first < 8
        assert ids.flatten().tolist() == list(range(first, first + 8 * len(split)))
        assert torch.equal(targets, ids + 1)
        assert length - 8 * len(split) <= 2 * 8


@pytest.mark.parametrize("name", ["train", "validation"])
@pytest.mark.parametrize("length", [63, 64, 65, 203])
def test_windows_on_the_device_are_those_of_the_host(name: str, length: int) -> None:
    """Of a whole split and of some of its rows; the last window of validation is short."""
    device, plan = torch.device("cpu"), make_plan()
    whole = StreamSplit.of(name, np.arange(length).astype(np.uint8), 16)
    for split in (whole, whole.only(np.arange(len(whole))[::-2])):
        pieces = [np.arange(len(split))[:2], np.arange(len(split))[-1:]]
        resident = split._resident_batches(split._whole(device), pieces, device, plan, 3)
        for rows, ((ids,), targets) in zip(pieces, resident, strict=True):
            (same_ids,), same_targets = split.batch(rows, device, plan=plan, epoch=3)
            assert torch.equal(ids, same_ids)
            assert torch.equal(targets, same_targets)
            assert ids.stride() == same_ids.stride()
            assert targets.stride() == same_targets.stride()


def test_shifts_of_epochs_differ_and_depend_on_the_seed() -> None:
    assert {shift(0, epoch, 8) for epoch in range(60)} == set(range(8))
    assert [shift(0, epoch, 64) for epoch in range(9)] != [shift(1, epoch, 64) for epoch in range(9)]


def test_some_rows_of_a_split_are_those_of_the_whole() -> None:
    split = StreamSplit.of("train", np.arange(200), 8)
    rows = np.array([7, 2, 11])
    part = split.only(rows).only(np.array([2, 0]))
    assert len(part) == 2
    for plan in (None, make_plan()):
        (ids,), targets = part.batch(np.arange(2), CPU, plan=plan, epoch=5)
        (expected,), following = split.batch(np.array([11, 7]), CPU, plan=plan, epoch=5)
        assert torch.equal(ids, expected)
        assert torch.equal(targets, following)


@pytest.mark.parametrize(("name", "length"), [("train", 15), ("validation", 1), ("test", 0)])
def test_a_stream_without_a_window_is_refused(name: str, length: int) -> None:
    with pytest.raises(TrainingError, match=rf"split {name} has {length} tokens.*needs at least"):
        StreamSplit.of(name, np.arange(length), 8)


def test_windows_do_not_read_past_the_end() -> None:
    windows = Windows(np.arange(10), 4)
    assert windows.gather(np.array([2])).tolist() == [[8, 9, IGNORED, IGNORED, IGNORED]]


@pytest.fixture
def inputs() -> TrainingInputs:
    text = "the quick brown fox jumps over the lazy dog\n" * 20
    described = fit_tokenizer(text, "characters", context=16)
    spec = ModelSpec("decoder", described, NextToken(tokens(described)))
    plan = make_plan(
        epochs=3, batch_size=8, device="cpu", precision="bf16", optimizer="muon", learning_rate=0.01, decay_all=False,
        checkpoint_steps=2, max_steps=13, flip="none",
    )  # fmt: skip
    ids = encode(text, described)
    splits = StreamSplit.of("train", ids[:700], 16), StreamSplit.of("validation", ids[700:], 16)
    return TrainingInputs(*splits, spec, plan, identity={"data": "d"})


def test_a_training_resumed_inside_the_stream_equals_the_undisturbed_one(inputs: TrainingInputs, tmp_path) -> None:
    *_, undisturbed = fit(inputs, store=CheckpointStore(tmp_path / "undisturbed"))
    assert isinstance(undisturbed, Finished)
    assert undisturbed.step == 13
    losses = [epoch["validation/loss"] for epoch in undisturbed.history]
    assert losses[-1] < losses[0] < np.log(tokens(inputs.spec.input))
    for step in (1, 4, 5, 6, 12):
        store = CheckpointStore(tmp_path / str(step))
        calls = iter(range(100))
        *_, stopped = fit(inputs, store=store, stop=lambda calls=calls, step=step: next(calls) == step)
        assert stopped == Stopped(step)
        *_, resumed = fit(inputs, store=CheckpointStore(tmp_path / str(step)))
        assert resumed.history == undisturbed.history
        assert all(torch.equal(resumed.weights[name], weight) for name, weight in undisturbed.weights.items())
