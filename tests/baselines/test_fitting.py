"""Baselines as a whole: equal bits for equal data, and the accuracy that others measured on real data."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ratchet.baselines import FittedBaseline, fit_baseline
from ratchet.kinds import Column, TableInput, TextInput, TokensInput
from ratchet.problems import Classes, NextToken, Target
from ratchet.tokens.words_and_pairs import encode_terms, learn_terms
from ratchet.training import models
from ratchet.training.models.baseline_nets import BASELINES, blend_weights, blended
from ratchet.training.models.tabular import TableFront

CATEGORICAL = (1, 3, 5, 6, 7, 8, 9, 13)  # columns of adult.data
BINARY = Classes(("0", "1"))


def dataset(name: str) -> Path:
    folder = os.environ.get("RATCHET_DATASETS")
    if not folder or not (path := Path(folder, name)).exists():
        pytest.skip(f"RATCHET_DATASETS names no folder with {name}")
    return path


def outputs(fitted: FittedBaseline, target: Target, *inputs: torch.Tensor) -> NDArray[np.float32]:
    network = BASELINES[fitted.network_name](input=fitted.input, target=target)
    network.load_state_dict(fitted.weights)
    with torch.no_grad():
        answer: NDArray[np.float32] = network.eval()(*inputs).numpy()
    return answer


def assert_same(first: FittedBaseline, other: FittedBaseline) -> None:
    assert first.weights.keys() == other.weights.keys()
    for name, tensor in first.weights.items():
        assert torch.equal(tensor, other.weights[name]), name


def test_trees_have_equal_bits_for_any_number_of_threads() -> None:
    generator = np.random.default_rng(0)
    rows = 11_000  # enough for early stopping
    numbers = generator.normal(size=(rows, 6)).astype(np.float32)
    codes = generator.integers(0, 30, (rows, 1))
    labels = (numbers[:, 0] * numbers[:, 1] + codes[:, 0] / 15 - 1 + generator.normal(size=rows) > 0).astype(np.int64)
    names = tuple(map(str, range(28)))
    table = TableInput(
        (*(Column(str(number), "numeric") for number in range(6)), Column("c", "categorical", categories=names))
    )
    fits = []
    for threads in (1, 2, 3):
        with threadpool_limits(threads):
            fits.append(fit_baseline({"numbers": numbers, "codes": codes}, labels, table, BINARY, seed=1))
    assert_same(fits[0], fits[1])
    assert_same(fits[0], fits[2])


def test_a_class_of_one_row_does_not_stop_the_trees() -> None:
    numbers = np.arange(12_000, dtype=np.float32)[:, None] / 6000
    labels = (numbers[:, 0] > 1).astype(np.int64)
    labels[7] = 2  # in a split for early stopping it would be on one side only
    table = TableInput((Column("n", "numeric", mean=1.0),))
    arrays = {"numbers": numbers, "codes": np.zeros((12_000, 0), np.int64)}
    target = Classes(("a", "b", "c"))
    fitted = fit_baseline(arrays, labels, table, target, seed=0)
    standardised = torch.tensor([[-0.9], [0.9]])
    answer = outputs(fitted, target, standardised, torch.zeros(2, 1), torch.zeros(2, 0, dtype=torch.int64))
    assert answer.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_few_rows_or_one_class_give_the_majority(rows: int) -> None:
    table = TableInput((Column("n", "numeric"),))
    arrays = {"numbers": np.zeros((rows, 1), np.float32), "codes": np.zeros((rows, 0), np.int64)}
    fitted = fit_baseline(arrays, np.ones(rows, np.int64), table, BINARY, seed=0)
    assert (fitted.name, fitted.network_name) == ("majority class", "constant")


def test_a_table_without_any_value_gives_the_majority() -> None:
    table = TableInput((Column("n", "numeric"), Column("c", "categorical")))
    arrays = {"numbers": np.full((40, 1), np.nan, np.float32), "codes": np.zeros((40, 1), np.int64)}
    assert fit_baseline(arrays, np.arange(40) % 2, table, BINARY, seed=0).name == "majority class"


def test_columns_without_any_value_are_left_out() -> None:
    table = TableInput(
        (Column("n", "numeric"), Column("a", "categorical"), Column("b", "categorical", categories=("x", "y")))
    )
    codes = np.stack([np.zeros(200, np.int64), np.tile([2, 3], 100)], 1)
    arrays = {"numbers": np.full((200, 1), np.nan, np.float32), "codes": codes}
    fitted = fit_baseline(arrays, codes[:, 1] - 2, table, BINARY, seed=0)
    answer = outputs(fitted, BINARY, torch.zeros(2, 1), torch.ones(2, 1), torch.tensor([[0, 2], [1, 3]]))
    assert answer.argmax(1).tolist() == [0, 1]


def test_the_rarest_of_many_categories_share_one() -> None:
    names = tuple(map(str, range(1000)))
    table = TableInput((Column("c", "categorical", categories=names),))
    codes = np.concatenate([np.repeat(np.arange(2, 102), 40), np.arange(102, 1002)])[:, None]
    labels = codes[:, 0] % 2
    arrays = {"numbers": np.zeros((len(codes), 0), np.float32), "codes": codes}
    fitted = fit_baseline(arrays, labels, table, BINARY, seed=0)
    categories = fitted.weights["categories"][0]
    assert categories.max() == 255
    assert len(categories[2:102].unique()) == 100
    assert (categories[256:] == 255).all()
    assert categories[:2].tolist() == [0, 0]
    answer = outputs(fitted, BINARY, torch.zeros(100, 0), torch.zeros(100, 0), torch.arange(2, 102)[:, None])
    assert (answer.argmax(1) == np.arange(100) % 2).mean() > 0.95


def test_texts_without_words_give_the_frequencies() -> None:
    arrays = {"text": np.frombuffer(b"!?!?", np.uint8), "starts": np.arange(5)}
    fitted = fit_baseline(arrays, np.array([0, 1, 1, 1]), TextInput(), BINARY, seed=0)
    answer = outputs(fitted, BINARY, torch.zeros(1, 2, dtype=torch.int64))
    np.testing.assert_allclose(BINARY.predictions(answer), [[0.3, 0.7]], rtol=1e-6)


def test_a_saved_baseline_and_its_blend_load_as_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TableInput((Column("n", "numeric"), Column("c", "categorical", categories=("x", "y"))))
    generator = np.random.default_rng(0)
    arrays = {
        "numbers": generator.normal(size=(300, 1)).astype(np.float32),
        "codes": generator.integers(0, 4, (300, 1)),
    }
    labels = (arrays["numbers"][:, 0] + arrays["codes"][:, 0] > 1).astype(np.int64)
    fitted = fit_baseline(arrays, labels, table, BINARY, seed=0)
    networks = models._networks("table")
    monkeypatch.setitem(networks, "trees", BASELINES["trees"])
    build = blended("blend:mlp+trees", networks)
    assert build is not None
    monkeypatch.setitem(networks, "blend:mlp+trees", build)
    inputs = (torch.from_numpy(arrays["numbers"]), torch.from_numpy(arrays["codes"]))
    members = {}
    for name in ("trees", "mlp"):
        spec = models.ModelSpec(name, table, BINARY)
        with torch.random.fork_rng():
            weights = models.build(spec).state_dict()
        if name == "trees":
            weights |= {f"network.{key}": value for key, value in fitted.weights.items()}
        models.save_model(tmp_path / name, weights, spec, about={})
        members[name], _ = models.load_model(tmp_path / name)
    state = blend_weights(members["mlp"].network.state_dict(), fitted.weights)
    spec = models.ModelSpec("blend:mlp+trees", table, BINARY)
    weights = {"temperature": torch.ones(()), **{f"network.{key}": value for key, value in state.items()}}
    models.save_model(tmp_path / "blend", weights, spec, about={})
    blend, _ = models.load_model(tmp_path / "blend")
    with torch.no_grad():
        first, second, both = (
            BINARY.predictions(model(*inputs).numpy()) for model in (members["mlp"], members["trees"], blend)
        )
    assert (second.argmax(1) == labels).mean() > 0.9
    np.testing.assert_allclose(both, (first + second) / 2, atol=1e-6)


def read_adult(path: Path) -> tuple[TableInput, dict[str, NDArray[np.generic]], NDArray[np.int64]]:
    with path.open(encoding="utf-8") as content:
        rows = [[value.strip() for value in row] for row in csv.reader(content) if row]
    described, numbers, codes = [], [], []
    for column in range(14):
        values = [row[column] for row in rows]
        if column in CATEGORICAL:
            names = sorted(set(values) - {"?"})
            code = {name: number for number, name in enumerate(names, 2)} | {"?": 0}
            described.append(Column(str(column), "categorical", categories=tuple(names)))
            codes.append([code[value] for value in values])
        else:
            numbers.append(np.array(values, np.float32))
            described.append(
                Column(str(column), "numeric", mean=float(numbers[-1].mean()), std=float(numbers[-1].std()))
            )
    arrays: dict[str, NDArray[np.generic]] = {"numbers": np.stack(numbers, 1), "codes": np.array(codes).T.copy()}
    return TableInput(tuple(described)), arrays, np.array([row[14] == ">50K" for row in rows], np.int64)


def test_trees_reach_the_known_accuracy_on_adult() -> None:
    table, arrays, labels = read_adult(dataset("tabular/adult.data"))
    held_back = np.random.default_rng(0).random(len(labels)) < 0.2
    train = {name: array[~held_back] for name, array in arrays.items()}
    fitted = fit_baseline(train, labels[~held_back], table, BINARY, seed=0)
    inputs = [torch.from_numpy(arrays[name][held_back]) for name in ("numbers", "codes")]
    answer = outputs(fitted, BINARY, *TableFront(table)(*inputs))
    assert (answer.argmax(1) == labels[held_back]).mean() > 0.865


def test_linear_bag_reaches_the_known_accuracy_on_reviews() -> None:
    folder = dataset("text/rt-polarity")
    parts = [(folder / f"rt-polarity.{name}").read_text(encoding="utf-8").splitlines() for name in ("neg", "pos")]
    texts, labels = parts[0] + parts[1], np.repeat([0, 1], [len(part) for part in parts])
    held_back = np.random.default_rng(0).random(len(texts)) < 0.1
    train = [text for text, out in zip(texts, held_back, strict=True) if not out]
    test = [text for text, out in zip(texts, held_back, strict=True) if out]
    ids, starts = encode_terms(train, learn := learn_terms(train))
    fitted = fit_baseline({"ids": ids, "starts": starts}, labels[~held_back], learn, BINARY, seed=0)
    ids, starts = encode_terms(test, learn)
    inside = np.arange(np.diff(starts).max()) < np.diff(starts)[:, None]
    rows = np.zeros(inside.shape, np.int64)
    rows[inside] = ids
    accuracy = (outputs(fitted, BINARY, torch.from_numpy(rows)).argmax(1) == labels[held_back]).mean()
    assert 0.75 < accuracy < 0.83


def test_ngrams_of_a_part_of_a_stream_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    described, target = TokensInput("bytes", (), 8), NextToken(256)
    ids = np.random.default_rng(0).integers(0, 9, 5000).astype(np.uint8)
    whole = fit_baseline({"ids": ids[:2000]}, ids[:0], described, target, seed=0)
    monkeypatch.setattr("ratchet.baselines.ngrams._MOST_TOKENS", 2000)
    part = fit_baseline({"ids": ids}, ids[:0], described, target, seed=0)
    assert (whole.name, part.name) == ("5-gram counts", "5-gram counts of the first 2,000 tokens")
    assert_same(whole, part)


def test_ngrams_reach_the_known_loss_on_shakespeare() -> None:
    text = dataset("tinyshakespeare.txt").read_text(encoding="utf-8")
    characters = sorted(set(text))
    number = {character: place for place, character in enumerate(characters)}
    ids = np.array([number[character] for character in text])
    cut, context = len(ids) * 9 // 10, 64
    described, target = TokensInput("characters", tuple(characters), context), NextToken(len(characters))
    fitted = fit_baseline({"ids": ids[:cut]}, np.zeros(0), described, target, seed=0)
    assert_same(fitted, fit_baseline({"ids": ids[:cut]}, np.zeros(0), described, target, seed=1))
    rows = np.lib.stride_tricks.sliding_window_view(ids[cut:], context + 1)[::context]
    answer = outputs(fitted, target, torch.from_numpy(rows[:, :-1].copy()))
    loss = -np.take_along_axis(answer, rows[:, 1:, None], 2).mean()
    assert loss == pytest.approx(1.61, abs=0.01)  # nats per character
