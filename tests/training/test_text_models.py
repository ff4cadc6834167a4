"""Tokenizers and networks for texts.

Expected ids and outputs are computed here in plain Python, one text or token at a time.
"""

import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.evaluation.text_explanations import word_contributions
from ratchet.kinds import ModelSpec, TextInput
from ratchet.problems import Classes, Labels, Numbers
from ratchet.tokens.tokenizers import PADDING, UNKNOWN, encode, fit_tokenizer, id_count, words_of
from ratchet.training.models import Model
from ratchet.training.models.text import Bag, Transformer, load_vectors
from ratchet.training.texts import TextSplit

TEXTS = [
    "A good film. It's GOOD!", "a bad, bad film", "", "   ", "Über größe ﬁlm", "映画が good", "हिन्दी फ़िल्म",
    "one", "naïve café d\u2019été", "x" * 300, "emoji 🎬🎬 👍🏽", "lone \ud800 half", "tab\tnew\nline\u2028sep",
]  # fmt: skip
TARGET = Classes(("bad", "good"))


def hashed(**changes: int) -> TextInput:
    return replace(fit_tokenizer(TEXTS, "hashed"), **changes)


def vocabulary() -> TextInput:
    return fit_tokenizer(["a good film", "a bad film", "a good one", "rare"], "words")


def make(network: Callable[..., nn.Module], described: TextInput, target: object = TARGET) -> nn.Module:
    """Return a network with random weights in eval mode."""
    torch.manual_seed(0)
    built = network(described, target)
    with torch.no_grad():
        for weight in built.parameters():
            weight.normal_(std=0.3)
        built.embedding.weight[PADDING] = 0.0
    return built.eval()


NETWORKS = pytest.mark.parametrize(
    ("network", "described"),
    [(Bag, hashed(buckets=4096)), (Bag, vocabulary()), (Transformer, vocabulary())],
    ids=["bag-hashed", "bag-words", "transformer"],
)


def test_words_of_a_text() -> None:
    assert words_of("A good film. It's GOOD!") == ["a", "good", "film", ".", "it's", "good", "!"]
    assert words_of("ﬁlm d\u2019été 2,5") == ["film", "d\u2019été", "2", ",", "5"]
    assert words_of("映画が good") == ["映", "画", "が", "good"]
    assert words_of("हिन्दी") == ["हिन्दी"]
    assert words_of("Cafe\u0301") == ["café"]
    assert words_of(" \t\n") == []


def test_joined_words_are_the_same_words() -> None:
    for text in TEXTS:
        assert words_of(" ".join(words_of(text))) == words_of(text)


def test_hashed_ids_are_sets_of_words_pairs_and_beginnings() -> None:
    rows = encode(TEXTS, hashed())
    assert rows.values.dtype == np.int32
    assert len(rows) == len(TEXTS)
    assert rows.values.min() > UNKNOWN
    assert rows.values.max() < id_count(hashed())
    for row, text in enumerate(TEXTS):
        ids = rows.values[rows.starts[row] : rows.starts[row + 1]]
        split = words_of(text)
        features = {
            *split,
            *pairwise(split),
            *((4, w[:4]) for w in split),
            *((4, w[:6]) for w in split),
        }
        assert len(set(ids)) == len(ids) == len(features), text


def test_same_text_has_the_same_ids_among_others() -> None:
    together = encode(TEXTS * 500, hashed())  # more than one block
    for row, text in enumerate(TEXTS):
        alone = encode([text], hashed())
        for copy in (row, row + 499 * len(TEXTS)):
            assert (together.values[together.starts[copy] : together.starts[copy + 1]] == alone.values).all()


def test_ids_are_the_same_in_every_process() -> None:
    program = (
        "from ratchet.tokens.tokenizers import encode, fit_tokenizer; "
        "print(encode(['A good film', 'größe'], fit_tokenizer(['x'], 'hashed', longest=9)).values.tolist())"
    )
    printed = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env).stdout
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    }
    described = fit_tokenizer(["x"], "hashed", longest=9)
    assert printed == {f"{encode(['A good film', 'größe'], described).values.tolist()}\n"}


def test_vocabulary_has_the_commonest_words_first() -> None:
    described = fit_tokenizer(["b b b a a c c d", "e"], "words")
    assert described.vocabulary == ("b", "a", "c")
    assert fit_tokenizer(["d", "c"], "words").vocabulary == ("c", "d")
    assert id_count(described) == 5
    rows = encode(["c unknown B", ""], described)
    assert rows.values.tolist() == [4, UNKNOWN, 2]
    assert rows.starts.tolist() == [0, 3, 3]


def test_long_texts_are_cut_by_words() -> None:
    for kind in ("hashed", "words"):
        described = fit_tokenizer(["a b c d e f g"] * 2, kind, longest=3)
        cut, short = (encode([text], described).values for text in ("a b c d e f g", "a b c"))
        assert cut.tolist() == short.tolist()


def test_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"model\.tokenizer: found 'letters'. Allowed for texts: hashed, words"):
        fit_tokenizer(["a"], "letters")


def test_gathered_rows_are_padded() -> None:
    rows = encode(["a good film", "", "a"], vocabulary())
    ids = rows.gather(np.array([2, 0, 1, 0]))
    assert ids.dtype == np.int64
    assert ids.shape == (4, 3)
    assert ids[0].tolist()[1:] == [PADDING, PADDING]
    assert (ids[1] == ids[3]).all()
    assert rows.gather(np.array([1])).tolist() == [[PADDING]]
    assert rows.gather(np.array([], np.int64)).shape == (0, 1)


def test_split_reads_what_ingest_packed(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    content = [text.encode() for text in ("a good film", "", "größe")]
    arrays = {
        "text": np.frombuffer(b"".join(content), np.uint8),
        "starts": np.cumsum([0, *map(len, content)]),
        "targets": np.array([1, 0, 1]),
        "keys": np.arange(3, dtype=np.uint64),
    }
    for name, values in arrays.items():
        np.save(tmp_path / "train" / f"{name}.npy", values)
    listed = {name: [{"file": f"train/{name}.npy"}] for name in ("text", "starts")}
    split = TextSplit.read(tmp_path, "train", {"splits": {"train": {"arrays": listed}}}, vocabulary())
    chosen = split.only(np.array([2, 0]))
    assert chosen.texts(np.array([0, 1])) == ["größe", "a good film"]
    (ids,), targets = chosen.batch(np.array([0, 1]), torch.device("cpu"))
    assert targets.tolist() == [1, 1]
    assert ids[0].tolist() == [UNKNOWN, PADDING, PADDING]
    assert len(split.only(np.array([1])).only(np.array([0])).texts(np.array([0]))) == 1


@NETWORKS
def test_padding_and_other_texts_change_nothing(network: type[nn.Module], described: TextInput) -> None:
    built = make(network, described)
    rows = encode(TEXTS, described)
    alone = torch.cat([built(torch.from_numpy(rows.gather(np.array([row])))) for row in range(len(rows))])
    padded = nn.functional.pad(torch.from_numpy(rows.gather(np.arange(len(rows)))), (0, 7))
    torch.testing.assert_close(built(padded), alone, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(alone).all()


@NETWORKS
def test_text_without_tokens_can_be_learned(network: type[nn.Module], described: TextInput) -> None:
    built = make(network, described).train()
    outputs = built(torch.zeros(3, 1, dtype=torch.int64))
    outputs.square().sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in built.parameters() if weight.grad is not None)


@NETWORKS
@pytest.mark.parametrize(
    "target", [Labels(tuple("abc")), Numbers(("a",), (0.0,), (1.0,)), Classes(tuple(map(str, range(50))))]
)
def test_every_target_has_its_width(network: type[nn.Module], described: TextInput, target: object) -> None:
    assert make(network, described, target)(torch.ones(2, 5, dtype=torch.int64)).shape == (2, target.outputs)


def test_bag_is_a_sum_over_the_root_of_the_count() -> None:
    described = vocabulary()
    built = make(Bag, described)
    ids = encode(["a good film"], described).gather(np.array([0]))
    weight = built.embedding.weight.detach().double()
    expected = sum(weight[number] for number in ids[0]) / 3**0.5 + built.bias.detach().double()
    torch.testing.assert_close(built(torch.from_numpy(ids))[0].double(), expected)


def test_transformer_refuses_a_tokenizer_without_order() -> None:
    with pytest.raises(TrainingError, match=r"model\.tokenizer=words"):
        Transformer(hashed(), TARGET)


@NETWORKS
def test_training_is_deterministic_and_learns(network: type[nn.Module], described: TextInput) -> None:
    texts = ["a good film", "a bad film", "good", "bad"] * 8
    labels = torch.tensor([1, 0, 1, 0] * 8)
    rows = encode(texts, described)
    ids = torch.from_numpy(rows.gather(np.arange(len(rows))))
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        built = network(described, TARGET)
        optimizer = torch.optim.AdamW(built.parameters(), lr=0.01)
        for _ in range(30):
            loss = nn.functional.cross_entropy(built(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ends.append(torch.cat([weight.detach().flatten() for weight in built.parameters()]))
        assert (built.eval()(ids).argmax(1) == labels).all()
        assert not built.embedding.weight[PADDING].any()
    assert torch.equal(*ends)


@NETWORKS
def test_exported_program_agrees(network: type[nn.Module], described: TextInput) -> None:
    built = make(network, described)
    example = torch.from_numpy(encode(TEXTS[:2], described).gather(np.arange(2)))
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens")}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", module=r"torch|onnxscript|copyreg")
        exported = torch.export.export(built, (example,), dynamic_shapes=(sizes,), strict=False)
        program = torch.onnx.export(
            exported, dynamic_shapes=({0: "rows", 1: "tokens"},), input_names=["ids"], verbose=False
        )
    content = io.BytesIO()
    content.write(program.model_proto.SerializeToString())
    session = onnxruntime.InferenceSession(content.getvalue(), providers=["CPUExecutionProvider"])
    for texts in (TEXTS, TEXTS[:1], ["", ""]):
        ids = encode(texts, described).gather(np.arange(len(texts)))
        (answers,) = session.run(None, {"ids": ids})
        np.testing.assert_allclose(answers, built(torch.from_numpy(ids)).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("header", ["", "2 3\n"])
def test_word_vectors_are_loaded_by_name(tmp_path: Path, header: str) -> None:
    described = vocabulary()
    path = tmp_path / "vectors.txt"
    path.write_text(f"{header}good 1 2 3\nelsewhere 4 5 6\nfilm -1 -2 -3\n")
    torch.manual_seed(0)
    built = Transformer(described, TARGET)
    before = built.embedding.weight.detach().clone()
    report = load_vectors(built, described, path)
    assert report.summary == f"word vectors of width 3: 2 of {len(described.vocabulary)} words of the vocabulary"
    good, film = (described.vocabulary.index(word) + 2 for word in ("good", "film"))
    weight = built.embedding.weight.detach()
    torch.testing.assert_close(weight[good, :3] / weight[good, 0], torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(weight[film, :3], -weight[good, :3])
    unchanged = torch.ones(len(weight), dtype=torch.bool)
    unchanged[[good, film]] = False
    assert torch.equal(weight[unchanged], before[unchanged])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("good 1 2\nfilm 1\n", "line 2 is not a word and 2 finite numbers"),
        ("good 1 nan\n", "line 1 is not a word"),
        ("good x y\n", "line 1 is not a word"),
        ("strange 1 2\n", "has none of the"),
        ("", "has none of the"),
    ],
)
def test_bad_word_vectors_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(content)
    with pytest.raises(TrainingError, match=message):
        load_vectors(Transformer(vocabulary(), TARGET), vocabulary(), path)
    with pytest.raises(TrainingError, match="words"):
        load_vectors(Bag(hashed(), TARGET), hashed(), path)
    with pytest.raises(TrainingError, match="No such file"):
        load_vectors(Bag(vocabulary(), TARGET), vocabulary(), tmp_path / "none")


def test_contributions_are_what_a_left_out_word_changes() -> None:
    described = vocabulary()
    built = make(Bag, described)
    spec = ModelSpec("bag", described, TARGET)
    model = Model(built, spec).eval()

    def margin(text: str) -> float:
        outputs = built(torch.from_numpy(encode([text], described).gather(np.array([0]))))[0]
        return float((outputs[1] - outputs[0]).detach())

    contributions = word_contributions(model, spec, "A good  FILM", 1)
    assert [word for word, _ in contributions] == ["a", "good", "film"]
    for (_, value), rest in zip(contributions, ("good film", "a film", "a good"), strict=True):
        assert value == pytest.approx(margin("a good film") - margin(rest), abs=1e-5)
    assert word_contributions(model, spec, "", 0) == []
    spec, many = (
        replace(spec, input=replace(described, longest=0)),
        " ".join(["good", "film"] * 50),
    )  # more than one batch
    assert len(word_contributions(model, spec, many, 1)) == 100
    checks = iter([None] * 70)

    def check() -> None:
        if next(checks, "ended") == "ended":
            raise TimeoutError

    with pytest.raises(TimeoutError):
        word_contributions(model, spec, many, 1, check)
