"""The doctor on tables, texts, token streams, and images with numbers or labels: each planted fault is reported.

Every kind has one sound network of its own, as a user writes it. Faults are added to it one at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ratchet.doctor import Finding, describe_finding, examine
from ratchet.kinds import Column, ImageInput, Input, ModelSpec, TableInput
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target
from ratchet.tokens.token_ids import encode, tokens
from ratchet.tokens.token_ids import fit as fit_stream
from ratchet.tokens.tokenizers import PADDING, fit_tokenizer, id_count
from ratchet.tokens.tokenizers import encode as encode_texts
from ratchet.training import ImageSplit, Split, TableSplit, build
from ratchet.training.batches import ShardedArray
from ratchet.training.models import Model
from ratchet.training.streams import StreamSplit
from ratchet.training.texts import TextSplit
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
WORDS = ["film", "plot", "actor", "scene", "music", "end", "story", "light", "voice", "room", "house", "day"]
TABLE = TableInput(
    (
        Column("size", "numeric", mean=50.0, std=20.0),
        Column("colour", "categorical", categories=("red", "green", "blue")),
        Column("seen", "datetime", mean=1.6e9, std=1e7),
    )
)
CLASSES, LABELS, NUMBERS = Classes(("small", "big")), Labels(("big", "red")), Numbers(("price",), (100.0,), (40.0,))
TARGETS: dict[str, Target] = {"classes": CLASSES, "labels": LABELS, "numbers": NUMBERS}


def targets_of(hidden: Any, target: Target) -> Any:
    """Return targets that depend on two hidden values of each sample, (n, 2), both about normal."""
    if isinstance(target, Classes):
        return (hidden[:, 0] > 0).astype(np.int64)
    if isinstance(target, Labels):
        return (hidden > 0).astype(np.float32)
    return (100 + 40 * hidden[:, :1]).astype(np.float32)


def row_split(name: str, rows: int, first: int, target: Target) -> TableSplit:
    generator = np.random.default_rng(first)
    hidden, codes = generator.normal(size=(rows, 2)), generator.integers(0, 5, (rows, 1))
    numbers = (hidden * (20.0, 1e7) + (50.0, 1.6e9)).astype(np.float32)
    numbers[generator.random((rows, 2)) < 0.05] = np.nan
    keys = np.arange(first, first + rows, dtype=np.uint64)
    return TableSplit(name, (ShardedArray([numbers]), ShardedArray([codes])), targets_of(hidden, target), keys)


def written(rows: int, first: int) -> tuple[list[str], Any]:
    """Return texts of random words, and two hidden values that decide how often "good" and "dark" are in them."""
    generator = np.random.default_rng(first)
    hidden = generator.normal(size=(rows, 2))
    texts = []
    for values in hidden:
        drawn = generator.choice(WORDS, generator.integers(6, 20)).tolist()
        drawn += ["good"] * int(4 + 2 * values[0]) + ["dark"] * int(4 + 2 * values[1])
        texts.append(" ".join(generator.permutation(drawn)))
    return texts, hidden


def text_split(name: str, rows: int, first: int, target: Target) -> TextSplit:
    texts, hidden = written(rows, first)
    content = [text.encode() for text in texts]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in content])]).astype(np.int64)
    keys = np.arange(first, first + rows, dtype=np.uint64)
    return TextSplit(
        name, (encode_texts(texts, TEXTS),), targets_of(hidden, target), keys,
        content=np.frombuffer(b"".join(content), np.uint8), starts=starts, rows=np.arange(rows),
    )  # fmt: skip


def stream_split(name: str, rows: int, first: int, _target: Target) -> StreamSplit:
    text = "\n".join(written(rows, first)[0])
    split = StreamSplit.of(name, encode(text, STREAM), STREAM.context)
    return replace(split, text=np.frombuffer(text.encode(), np.uint8), input_spec=STREAM)


def image_split(name: str, rows: int, first: int, target: Target) -> ImageSplit:
    generator = np.random.default_rng(first)
    hidden = generator.normal(size=(rows, 2))
    levels = np.repeat(hidden, 4, 1)[:, None, :, None] * 30 + 110
    images = np.clip(levels + generator.normal(0, 15, (rows, 8, 8, 1)), 0, 255).astype(np.uint8)
    return ImageSplit.of(name, [images], targets_of(hidden, target), np.arange(first, first + rows, dtype=np.uint64))


TEXTS = fit_tokenizer(written(400, 0)[0], "words")
STREAM = fit_stream("\n".join(written(400, 0)[0]), "characters", context=32)
IMAGES = ImageInput(8, 8, 1, (110.0,), (35.0,))


class Net(nn.Module):
    """A sound network for any kind; subclasses get one thing wrong."""

    def __init__(self, input: Input, target: Target) -> None:
        super().__init__()
        self.input, self.target = input, target
        self.front, width = self.made_front()
        self.hidden = nn.Sequential(nn.Linear(width, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, target.outputs)

    def made_front(self) -> tuple[nn.Module, int]:
        match self.input:
            case TableInput():
                return nn.Embedding(5, 4), 8
            case ImageInput():
                return nn.Flatten(), 64
            case _ if isinstance(self.target, NextToken):
                return nn.Embedding(self.target.tokens, 16), 16
            case _:
                return nn.Embedding(id_count(self.input), 16, padding_idx=PADDING), 16

    def sample(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return one vector for each sample; for each token of a stream."""
        match self.input:
            case TableInput():
                numbers, missing, codes = inputs
                return torch.cat([numbers, missing, self.front(codes).flatten(1)], 1)
            case ImageInput():
                return self.front(inputs[0])
            case _ if isinstance(self.target, NextToken):
                return self.mixed(self.front(inputs[0]))
            case _:
                return self.pooled(self.front(inputs[0]), inputs[0] != PADDING)

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None]
        return x[:, 0] + functional.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]

    def pooled(self, x: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        return x.sum(1) / known.sum(1, keepdim=True).clamp(min=1)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.sample(*inputs)))


@dataclass(frozen=True)
class Case:
    """Sound data of one kind and problem."""

    split: Callable[..., Split]
    input: Input
    target: Target

    @cache  # noqa: B019  # a few cases, kept as long as the module
    def splits(self) -> tuple[Split, Split]:
        return self.split("train", 300, 0, self.target), self.split("validation", 100, 5000, self.target)

    def look(self, folder: Path, network: Callable[..., nn.Module] | str = Net, **changes: Any) -> list[Finding]:
        """Examine a training that is sound except for the network, or for `train`, `validation` or the plan."""
        train, validation = self.splits()
        train, validation = changes.pop("train", train), changes.pop("validation", validation)
        torch.manual_seed(0)
        name = network if isinstance(network, str) else "mlp"
        spec = ModelSpec(name, self.input, self.target)
        model: Model = build(replace(spec, name=name if isinstance(network, str) else BUILT_IN[self.input.kind][0]))
        if isinstance(network, str):
            if (initialise := getattr(model.network, "initialise", None)) is not None:
                initialise(*model.prepared(*train.batch(np.arange(len(train)), CPU)[0]))
        else:
            model.network = network(self.input, self.target)
            model.fixed = frozenset()
        plan = replace(
            make_plan(target=self.target, epochs=10, batch_size=32, device="cpu", precision="fp32"), **changes
        )
        findings = examine(
            train, validation, spec, plan, model=model, device=CPU, precision="fp32", pretrained=None,
            checkpoints=folder / "checkpoints",
        )  # fmt: skip
        assert all(describe_finding(finding).fix for finding in findings)
        return findings


BUILT_IN = {"image": ["convnet"], "table": ["mlp", "tabm"], "text": ["transformer", "bag"], "tokens": ["decoder"]}
CASES = {
    **{f"table, {name}": Case(row_split, TABLE, target) for name, target in TARGETS.items()},
    **{f"text, {name}": Case(text_split, TEXTS, target) for name, target in TARGETS.items()},
    "image, labels": Case(image_split, IMAGES, LABELS),
    "image, numbers": Case(image_split, IMAGES, NUMBERS),
    "tokens": Case(stream_split, STREAM, NextToken(tokens(STREAM))),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def after(change: Callable[[torch.Tensor], torch.Tensor]) -> type[nn.Module]:
    """A net whose outputs are changed."""

    class Changed(Net):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return change(super().forward(*inputs))

    return Changed


def between(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> type[nn.Module]:
    """A net whose features are changed."""

    class Changed(Net):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.head(change(self, self.hidden(self.sample(*inputs))))

    return Changed


class PlainList(Net):
    def __init__(self, input: Input, target: Target) -> None:
        super().__init__(input, target)
        self.blocks = [nn.Linear(32, 32)]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks[0](self.hidden(self.sample(*inputs))))


class EvalInForward(Net):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.hidden.eval()
        return super().forward(*inputs)


def mixed(_: Any, features: torch.Tensor) -> torch.Tensor:
    return features - features.mean(0)


FAULTS: dict[str, tuple[type[Net], str]] = {
    "layer in a plain list": (PlainList, "unregistered-parameters"),
    "left in eval mode": (EvalInForward, "wrong-mode"),
    "detached": (between(lambda _, features: features.detach()), "no-gradient"),
    "faint features": (between(lambda _, features: 1e-7 * features), "cannot-overfit"),
    "loud outputs": (after(lambda outputs: 1000 * outputs), "first-loss"),
    "batch mean subtracted": (between(mixed), "mixed-samples"),
    "divided by the batch size": (after(lambda outputs: outputs / len(outputs)), "batch-size-dependence"),
}


@every_case
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_a_network_is_reported(tmp_path: Path, case: Case, fault: str) -> None:
    network, rule = FAULTS[fault]
    findings = case.look(tmp_path, network)
    assert rule in [finding.rule for finding in findings], findings


@every_case
def test_sound_network_gets_no_finding(tmp_path: Path, case: Case) -> None:
    assert case.look(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for case in CASES.values() for name in BUILT_IN[case.input.kind]],
    ids=lambda value: value if isinstance(value, str) else f"{value.input.kind}-{value.target.problem}",
)
def test_built_in_network_gets_no_finding(tmp_path: Path, name: str, case: Case) -> None:
    assert case.look(tmp_path, name) == []


ACTIVATIONS = {
    "table, classes": (lambda outputs: outputs.softmax(1), "activation-before-loss"),
    "text, labels": (torch.sigmoid, "activation-before-loss"),
    "tokens": (lambda outputs: outputs.softmax(2), "activation-before-loss"),
    "table, numbers": (torch.relu, "bounded-numbers"),
    "image, numbers": (torch.tanh, "bounded-numbers"),
    "image, labels": (torch.relu, "activation-before-loss"),
    "text, numbers": (lambda outputs: outputs.clamp(-0.5, 0.5), "bounded-numbers"),
    "table, labels": (torch.tanh, "activation-before-loss"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_function_that_harms_before_the_loss_is_reported(tmp_path: Path, name: str) -> None:
    change, rule = ACTIVATIONS[name]
    findings = CASES[name].look(tmp_path, after(change))
    assert rule in [finding.rule for finding in findings], findings


class NotCausal(Net):
    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None]
        return x[:, 0] + functional.scaled_dot_product_attention(x, x, x)[:, 0]


def test_attention_to_later_tokens_is_reported(tmp_path: Path) -> None:
    findings = CASES["tokens"].look(tmp_path, NotCausal)
    assert "later-tokens" in [finding.rule for finding in findings], findings


class Normed(Net):
    def __init__(self, input: Input, target: Target) -> None:
        super().__init__(input, target)
        self.hidden[1] = nn.BatchNorm1d(32)


def test_batch_norm_needs_a_few_rows(tmp_path: Path) -> None:
    case = CASES["table, numbers"]
    assert case.look(tmp_path, Normed) == []
    (finding,) = case.look(tmp_path, Normed, batch_size=4)
    assert (finding.rule, finding.values["samples"]) == ("small-micro-batch", 4)


def test_targets_that_cannot_be_are_reported(tmp_path: Path) -> None:
    for name, value, rule in (
        ("table, classes", 2, "labels-out-of-range"),
        ("text, labels", 2, "labels-out-of-range"),
        ("table, numbers", np.nan, "targets-not-finite"),
        ("image, numbers", np.inf, "targets-not-finite"),
    ):
        case = CASES[name]
        train, _ = case.splits()
        targets = np.array(train.targets)
        targets.reshape(len(targets), -1)[7, 0] = value
        (finding,) = case.look(tmp_path, train=replace(train, targets=targets))
        assert (finding.rule, finding.values["count"], finding.values["split"]) == (rule, 1, "train")


@pytest.mark.parametrize("name", ["table, classes", "text, numbers", "image, labels", "tokens"])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_samples_in_both_splits_are_reported(tmp_path: Path, name: str, share: float) -> None:
    case = CASES[name]
    train, validation = case.splits()
    count = round(share * len(validation))
    if isinstance(train, StreamSplit):
        lines = [split.text.tobytes().split(b"\n") for split in (train, validation)]
        count = round(share * len(lines[1]))
        text = b"\n".join([*lines[0][:count], *lines[1][count:]])
        leaking = replace(validation, text=np.frombuffer(text, np.uint8))
    else:
        taken, kept = train.gather(np.arange(count)), validation.gather(np.arange(count, len(validation)))
        if isinstance(train, TextSplit):
            texts = [*train.texts(np.arange(count)), *validation.texts(np.arange(count, len(validation)))]
            arrays: tuple[Any, ...] = (encode_texts(texts, TEXTS),)
        else:
            arrays = tuple(ShardedArray([np.concatenate(both)]) for both in zip(taken, kept, strict=True))
        targets = np.concatenate([train.targets[:count], validation.targets[count:]])
        leaking = replace(validation, arrays=arrays, targets=targets)
    (finding,) = [each for each in case.look(tmp_path, validation=leaking) if each.rule.startswith("leak")]
    assert finding.values["count"] == pytest.approx(count, rel=0.15)
    assert finding.severity == ("error" if share == 1.0 or name.startswith("image") else "warning")


@every_case
@pytest.mark.parametrize("rows", [3, 12])
def test_few_samples_are_examined_without_an_error(tmp_path: Path, case: Case, rows: int) -> None:
    train, validation = case.splits()
    findings = case.look(tmp_path, train=train.only(np.arange(rows)), validation=validation.only(np.arange(2)))
    assert {finding.rule for finding in findings} <= {"long-warmup", "cannot-overfit"}
