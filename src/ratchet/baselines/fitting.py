"""The choice of a baseline by the kind of data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.baselines.ngrams import fit_ngrams
from ratchet.kinds import Input
from ratchet.kinds.registry import kind_of
from ratchet.problems import Target
from ratchet.training.models.arrays import as_table, flattened

__all__ = ["MOST_VALUES", "FittedBaseline", "fit_baseline"]

Array = NDArray[np.generic]
Arrays = Mapping[str, Array]

MOST_VALUES = 1000  # of a sample of a user's own kind that trees are fitted to


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline as a network and its tensors."""

    name: str  # for people
    network_name: str  # key of `BASELINES`
    input: Input  # of the network; for texts with the vocabulary that was learned
    weights: dict[str, torch.Tensor]  # state of the network


def fit_baseline(
    arrays: Arrays,
    targets: Array,
    spec: Input,
    target: Target,
    *,
    seed: int,
) -> FittedBaseline:
    """Fit the baseline of this kind of data to the training rows. Equal arguments give equal bits.

    Args:
        arrays: of the packed training split. Table: numbers and codes. Text: text and starts, or ids (of the
            tokenizer of `spec`) and starts. Tokens: ids, (tokens,), of the whole stream. A user's own kind: its
            arrays, not read above `MOST_VALUES` values per sample. Images: not read.
        targets: of the packed training split, in their own units. Not read for the next token.
        spec: the input; a text's may be without tokenizer, and the vocabulary is learned then.
        target: what is predicted.
        seed: of the rows that scikit-learn holds back for early stopping.
    """
    fitter = _FITTERS.get(kind_of(spec).baseline)
    fitted = fitter(arrays, targets, spec, target, seed) if fitter is not None else None
    if fitted is not None:
        return fitted
    state = {"value": torch.tensor(target.constant(targets), dtype=torch.float32)}
    return FittedBaseline(target.constant_name, "constant", spec, state)


def _ngrams(arrays: Arrays, targets: Array, spec: Any, target: Target, seed: int) -> FittedBaseline:
    name, weights = fit_ngrams(cast(NDArray[np.integer], arrays["ids"]), spec, target)
    return FittedBaseline(name, "ngrams", spec, weights)


def _trees(arrays: Arrays, targets: Array, spec: Any, target: Target, seed: int) -> FittedBaseline | None:
    from ratchet.baselines.trees import fit_trees  # imports scikit-learn, which takes four seconds of CPU time

    numbers, codes = arrays["numbers"], arrays["codes"]
    has_values = bool((~np.isnan(numbers.astype(np.float32))).any() or (codes.astype(np.int64) > 1).any())
    if not has_values or not target.is_varied(targets):
        return None
    weights = fit_trees(numbers, codes, targets, spec, target, seed=seed)
    return FittedBaseline("HistGradientBoosting", "trees", spec, weights)


def _array_trees(arrays: Arrays, targets: Array, spec: Any, target: Target, seed: int) -> FittedBaseline | None:
    from ratchet.baselines.trees import fit_trees

    if spec.size > MOST_VALUES or not target.is_varied(targets):
        return None
    tensors = (torch.from_numpy(np.asarray(arrays[name])) for name in spec.names)
    numbers, codes = flattened(*tensors).numpy(), np.zeros((len(targets), 0), np.int64)
    weights = fit_trees(numbers, codes, targets, as_table(spec), target, seed=seed)
    return FittedBaseline("HistGradientBoosting", "array-trees", spec, weights)


def _linear_bag(arrays: Arrays, targets: Array, spec: Any, target: Target, seed: int) -> FittedBaseline | None:
    from ratchet.baselines.texts import fit_linear_bag, text_ids

    if not target.is_varied(targets):
        return None
    learned, ids, starts = text_ids(arrays, spec)
    weights = fit_linear_bag(ids, starts, targets, learned, target)
    return FittedBaseline(f"TF-IDF + {target.linear_name}", "linear-bag", learned, weights)


_FITTERS: Mapping[str, Callable[[Arrays, Array, Any, Target, int], FittedBaseline | None]] = {
    "ngrams": _ngrams,
    "trees": _trees,
    "array-trees": _array_trees,
    "linear-bag": _linear_bag,
}
"""By the name of the network; None: nothing can be fitted to these rows."""
