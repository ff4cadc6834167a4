"""Adaptation of the packed samples to the champion's input, and of its answers to the new model's classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds import Input
from ratchet.kinds.registry import kind_of
from ratchet.problems import Target

if TYPE_CHECKING:
    from ratchet.evaluation.predictions import Predictions
    from ratchet.kinds.protocol import Arrays
    from ratchet.training import Model, Split
    from ratchet.training.batches import Inputs

__all__ = ["InputAdapter", "comparable", "finite_score", "right_answers", "score_as"]

_BATCH = 512


@dataclass(frozen=True)
class InputAdapter:
    """Conversion of packed samples to the input of another model."""

    packed: Input  # as the new model takes them
    wanted: Input  # of the other model

    @property
    def same(self) -> bool:
        """Whether no conversion is needed: also if the packed set is read with the tokenizer of the model."""
        kind = kind_of(self.wanted)
        return kind.tokenizes or (not self.mismatch and kind.is_equal(self.packed, self.wanted))

    @property
    def mismatch(self) -> str:
        """Why no conversion is possible; empty if one is."""
        packed, wanted = self.packed, self.wanted
        if packed.kind != wanted.kind:
            return f"it takes samples of kind {wanted.kind}, and these are of kind {packed.kind}"
        return kind_of(wanted).obstacle(packed, wanted)

    def inputs(self, inputs: "Inputs") -> "Inputs":
        """Return a batch as the model takes it."""
        if self.same:
            return inputs
        kind = kind_of(self.wanted)
        return kind.to_tensors(self._arrays(inputs))

    def _arrays(self, inputs: "Inputs") -> "Arrays":
        kind = kind_of(self.wanted)
        return kind.adapt(kind.from_tensors(inputs), self.packed, self.wanted)

    def packed_digests(self, split: "Split") -> NDArray[np.uint64] | None:
        """Return the digests that the samples have in a packed set of the other model, uint64 (rows, 2).

        None: they are not known, because samples of this kind are known by their source, or no conversion is possible.
        """
        import torch

        if self.mismatch:
            return None
        batches = split.feed(list(split.in_order(_BATCH)), torch.device("cpu"))
        digests = [kind_of(self.wanted).packed_digests(self._arrays(inputs)) for inputs, _ in batches]
        known = [each for each in digests if each is not None]
        return np.concatenate(known) if known else None

    def outputs(self, model: "Model", test: "Split") -> NDArray[np.float32]:
        """Return the model's outputs for every sample, float32 (rows, outputs)."""
        import torch

        from ratchet.training import answers

        if self.same:
            return answers(model, test)[0]
        model, batches = model.to("cpu").eval(), []
        with torch.inference_mode():
            order = list(test.in_order(_BATCH))
            for inputs, _ in test.feed(order, torch.device("cpu")):
                batches.append(model(*self.inputs(inputs)).float())
        outputs: NDArray[np.float32] = torch.cat(batches).numpy()
        return outputs


def comparable(ours: Target, theirs: Target) -> bool:
    """Return whether answers to one target say something about the other: a shared class, or the same targets."""
    if ours.problem != theirs.problem:
        return False
    if ours.classes:
        return bool(set(ours.classes) & set(theirs.classes))
    return set(ours.names) == set(theirs.names)


def score_as(predictions: "Predictions", outputs: NDArray[np.float32], theirs: Target) -> NDArray[np.float64]:
    """Return the score of each answer of another model, (rows,), larger is better.

    Args:
        predictions: of the new model, with the thresholds of the other.
        theirs: target of the other model, which is `comparable`.
    """
    from ratchet.evaluation.problems import answers_to, in_terms_of

    target = predictions.target
    if target.classes and not predictions.thresholds:
        return right_answers(outputs, predictions.targets, classes=target.names, theirs=theirs.names)
    converted = in_terms_of(target, outputs, theirs)
    return answers_to(target, converted, predictions.targets, thresholds=predictions.thresholds).score


def finite_score(score: NDArray[np.float64], outputs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the scores, (rows,), with NaN where an output of the row is not a finite number.

    Of classes the largest of such outputs would still name one, and its score would look like any other.
    """
    return np.where(np.isfinite(outputs).all(axis=1), score, np.nan)


def right_answers(
    logits: NDArray[np.float32], labels: NDArray[np.int64], *, classes: Sequence[str], theirs: Sequence[str]
) -> NDArray[np.float64]:
    """Return the score of each answer of a model with other classes, (rows,): 1 where it is the label, else 0.

    A class that the data no longer has is right for no image, so the most probable of the other classes counts.

    Args:
        labels: (rows,), indices into `classes`.
        theirs: classes of the model, in the order of its logits.
    """
    shared = [number for number, name in enumerate(theirs) if name in classes]
    new_index = np.array([classes.index(theirs[number]) for number in shared], np.int64)
    score: NDArray[np.float64] = (new_index[logits[:, shared].argmax(1)] == labels).astype(np.float64)
    return score
