"""Names of the baselines' networks, and of blends: "trees", "blend:tabm+trees"."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from ratchet.training.models.arrays import ArrayTrees
from ratchet.training.models.counts import LinearBag, Ngrams
from ratchet.training.models.fitted import Blend, Constant, Fitted, blend_weights
from ratchet.training.models.trees import Trees

__all__ = ["BASELINES", "Blend", "Constant", "Fitted", "LinearBag", "Ngrams", "Trees", "blend_weights", "blended"]

CHOSEN_BY = {"variant": ("baseline", "blend")}

Network = Callable[..., nn.Module]

BASELINES: dict[str, Network] = {
    "trees": Trees,
    "array-trees": ArrayTrees,
    "linear-bag": LinearBag,
    "ngrams": Ngrams,
    "constant": Constant,
}
_BLEND = "blend:"


def blended(name: str, networks: Mapping[str, Network]) -> Network | None:
    """Return the class of a blend from its name, "blend:NETWORK+BASELINE", or None if the name is none of a blend.

    Raises:
        KeyError: the network or the baseline is unknown.
    """
    if not name.startswith(_BLEND):
        return None
    network, _, baseline = name.removeprefix(_BLEND).partition("+")
    members: dict[str, Any] = {"network": networks[network], "baseline": BASELINES[baseline]}
    return partial(Blend, **members)
