"""Inputs of a training: the data splits, and the model with its initial weights."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratchet import files
from ratchet.errors import TrainingError
from ratchet.kinds import Input, ModelSpec, input_from_json
from ratchet.kinds.registry import kind_of
from ratchet.problems import Target
from ratchet.training.augment import epoch_order
from ratchet.training.batches import Split
from ratchet.training.models import Model, build, load_pretrained
from ratchet.training.models.text import VECTOR_FILES, Bag, Transformer, load_vectors
from ratchet.training.plan import Plan
from ratchet.training.pruning import pruned
from ratchet.training.transfer import stages

__all__ = ["TrainingInputs", "initial_model", "model_input", "model_target", "open_split"]

_INITIAL_SAMPLES = 4096  # that a network may use to compute its first weights


@dataclass(frozen=True)
class TrainingInputs:
    """Everything that decides the result of a training."""

    train: Split
    validation: Split
    spec: ModelSpec
    plan: Plan
    pretrained: Path | None = None  # initial weights: every tensor that fits is loaded
    teacher: Path | None = None  # folder of a stored model whose answers are learned, too
    identity: dict[str, str] = field(default_factory=dict)  # digests; a checkpoint with other digests is refused

    def interrupt_on(self, stop: Callable[[], bool]) -> None:
        """Let `stop` interrupt the reading of a sample, of either split."""
        self.train.interrupt_on(stop)
        self.validation.interrupt_on(stop)

    def check(self) -> None:
        """Check that both splits have samples that count in the loss.

        Raises:
            TrainingError: a split is empty, or all its labels are `training.ignore_index`.
        """
        for split in (self.train, self.validation):
            if not len(split):
                raise TrainingError(
                    f"split {split.name} has no samples. Training needs samples in train and in validation. "
                    "Fix: change data.validation_fraction or data.test_fraction"
                )
            ignored = self.plan.ignore_index
            if self.spec.target.classes and bool((np.asarray(split.targets) == ignored).all()):
                use = "learn from" if split.name == "train" else "choose the best epoch by"
                raise TrainingError(
                    f"all {len(split):,} samples of split {split.name} have label {ignored}, which "
                    f"training.ignore_index excludes from loss and accuracy, so there is nothing to {use}. Fix: give "
                    "some of them a class, or set training.ignore_index to another label"
                )


def open_split(
    packed: Path, name: str, input_spec: Input | None = None, *, workers: int = 0, sample_timeout: float = 0.0
) -> Split:
    """Open split `name` (train, validation or test) of the data set in folder `packed`.

    Args:
        input_spec: a model's input, whose tokenizer texts are read with; other kinds do not need it.
        workers: processes that read samples that are not packed; 0: this process.
        sample_timeout: seconds that one such sample may take; 0: no limit.

    Raises:
        TrainingError: it cannot be read, or it changed since it was ingested.
    """
    with _readable(packed, name) as manifest:
        spec = input_spec or input_from_json(manifest["input"])
        split: Split = kind_of(spec).open_split(packed, name, manifest, spec)
        split.read_with(workers=workers, sample_timeout=sample_timeout)
        return split


def model_input(packed: Path, input_spec: Input, *, model: str, tokenizer: str, context: int, root: str = ".") -> Input:
    """Return a model's input: that of the packed set, with a tokenizer learned from the training texts.

    Args:
        packed: folder of the packed set.
        input_spec: its input.
        model: name of the model, which decides the tokenizer `auto`.
        tokenizer: the setting model.tokenizer.
        context: the setting model.context; 0: the usual one.
        root: the project folder, with the code of a user's own kind of data.

    Raises:
        TrainingError: the packed set cannot be read, the kind has no such tokenizer, or the code changed since ingest.
    """
    with _readable(packed, "train") as manifest:
        spec: Input = kind_of(input_spec).model_input(
            packed, manifest, input_spec, model=model, tokenizer=tokenizer, context=context, root=root
        )
        return spec


def model_target(input_spec: Input, target: Target) -> Target:
    """Return a model's target: that of the packed set, with the number of tokens of the model's tokenizer."""
    learned: Target = kind_of(input_spec).model_target(input_spec, target)
    return learned


@contextmanager
def _readable(packed: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the manifest of a packed set; a missing or damaged file of split `name` is a TrainingError."""
    try:
        yield json.loads((packed / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as error:
        raise TrainingError(
            f"{packed}: split {name} cannot be read ({error}). Fix: `dvc repro --force ingest` packs it again"
        ) from error


def initial_model(inputs: TrainingInputs) -> tuple[Model, list[str]]:
    """Return the model on the CPU with its initial weights, and messages about pretrained weights.

    The seed decides the weights. Then a network with a method `initialise` computes its own from prepared training
    samples. Pretrained weights are loaded then. A pruned model takes its channels from that one.
    """
    plan, train = inputs.plan, inputs.train
    torch.manual_seed(plan.seed)
    already = inputs.pretrained is not None and _is_pruned(inputs.pretrained, inputs.spec)
    model = build(inputs.spec if already else replace(inputs.spec, widths=()))
    initialise = getattr(model.network, "initialise", None)
    if callable(initialise):
        rows = epoch_order(len(train), seed=plan.seed, epoch=0)[:_INITIAL_SAMPLES]
        samples, _ = train.batch(rows, torch.device("cpu"))
        with torch.no_grad():
            initialise(*model.prepared(*samples))
    messages = [_load(model, inputs, inputs.pretrained)] if inputs.pretrained is not None else []
    if already or not inputs.spec.widths:
        return model, messages
    smaller = pruned(model, inputs.spec, plan.prune_channels)
    sizes = [sum(weight.numel() for weight in each.parameters()) for each in (model, smaller)]
    return smaller, [*messages, f"pruned from {sizes[0]:,} to {sizes[1]:,} parameters"]


def _is_pruned(path: Path, spec: ModelSpec) -> bool:
    """Return whether the pretrained weights are of a stored model that is pruned as `spec` is.

    Raises:
        TrainingError: they are of a model that is pruned in another way.
    """
    if (stored := _stored_spec(path)) is None or not stored.widths:
        return False
    if stored.to_json()["widths"] != spec.to_json().get("widths"):
        raise TrainingError(
            f"model.pretrained: {path} is of a pruned model, and its layers have other widths than this model. "
            "Allowed: the model before it was pruned, or training.prune_channels as that model had it, which continues "
            "its training"
        )
    return True


def _load(model: Model, inputs: TrainingInputs, path: Path) -> str:
    """Load pretrained weights, or word vectors, and return a summary."""
    network = model.network
    if path.suffix in VECTOR_FILES and isinstance(network, Bag | Transformer):
        return load_vectors(network, inputs.spec.text, path).summary
    stored = _stored_spec(path)
    has_new_head = stored is not None and not stored.target.predicts_equal(inputs.spec.target)
    return load_pretrained(model, path, but=stages(model)[-1].parameters if has_new_head else ()).summary


def _stored_spec(weights: Path) -> ModelSpec | None:
    """Return the spec of the stored model that has these weights; None: they are a file of their own."""
    about = weights.with_name("model.json")
    if weights.name != "model.safetensors" or not about.is_file():
        return None
    return ModelSpec.from_json(files.read_json(about)["spec"])
