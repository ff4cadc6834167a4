"""The choice of a baseline by the kind of data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.baselines.ngrams import fit_ngrams
from ratchet.kinds import ArraysInput, Input, TableInput, TextInput, TokensInput
from ratchet.problems import Target
from ratchet.training.models.arrays import as_table, flattened

__all__ = ["FittedBaseline", "fit_baseline"]

_MOST_VALUES = 1000  # of a sample of a user's own kind that trees are fitted to


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline as a network and its tensors."""

    name: str  # for people
    network_name: str  # key of `BASELINES`
    input: Input  # of the network; for texts with the vocabulary that was learned
    weights: dict[str, torch.Tensor]  # state of the network


def fit_baseline(
    arrays: Mapping[str, NDArray[np.generic]],
    targets: NDArray[np.generic],
    described: Input,
    target: Target,
    *,
    seed: int,
) -> FittedBaseline:
    """Fit the baseline of this kind of data to the training rows. Equal arguments give equal bits.

    Args:
        arrays: of the packed training split. Table: numbers and codes. Text: text and starts, or ids (of the
            tokenizer of `described`) and starts. Tokens: ids, (tokens,), of the whole stream. A user's own kind: its
            arrays. Images: not read.
        targets: of the packed training split, in their own units. Not read for the next token.
        described: the input; a text's may be without tokenizer, and the vocabulary is learned then.
        target: what is predicted.
        seed: of the rows that scikit-learn holds back for early stopping.
    """
    if isinstance(described, TokensInput):
        name, weights = fit_ngrams(cast(NDArray[np.integer], arrays["ids"]), described, target)
        return FittedBaseline(name, "ngrams", described, weights)
    fittable = target.is_varied(targets)
    if isinstance(described, TableInput) and fittable and _has_values(arrays):
        from ratchet.baselines.trees import fit_trees  # imports scikit-learn, which takes four seconds of CPU time

        weights = fit_trees(arrays["numbers"], arrays["codes"], targets, described, target, seed=seed)
        return FittedBaseline("HistGradientBoosting", "trees", described, weights)
    if isinstance(described, ArraysInput) and fittable and described.size <= _MOST_VALUES:
        from ratchet.baselines.trees import fit_trees

        tensors = (torch.from_numpy(np.asarray(arrays[name])) for name in described.names)
        numbers, codes = flattened(*tensors).numpy(), np.zeros((len(targets), 0), np.int64)
        weights = fit_trees(numbers, codes, targets, as_table(described), target, seed=seed)
        return FittedBaseline("HistGradientBoosting", "array-trees", described, weights)
    if isinstance(described, TextInput) and fittable:
        from ratchet.baselines.texts import fit_linear_bag, text_ids

        described, ids, starts = text_ids(arrays, described)
        weights = fit_linear_bag(ids, starts, targets, described, target)
        return FittedBaseline(f"TF-IDF + {target.linear_name}", "linear-bag", described, weights)
    state = {"value": torch.tensor(target.constant(targets), dtype=torch.float32)}
    return FittedBaseline(target.constant_name, "constant", described, state)


def _has_values(arrays: Mapping[str, NDArray[np.generic]]) -> bool:
    """Return whether any number or category of a table is known."""
    return bool((~np.isnan(arrays["numbers"].astype(np.float32))).any() or (arrays["codes"].astype(np.int64) > 1).any())
