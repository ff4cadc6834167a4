"""Words of a text that speak for and against a prediction, by leaving out one word at a time.

The method is occlusion (Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", 2014; for texts
Li, Monroe and Jurafsky 2016, arXiv:1612.08220). It needs no gradient and works for every model and tokenizer. The
contributions of two words that mean the same are small, because each can be left out without loss.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.protocol import go_on

if TYPE_CHECKING:
    from ratchet.kinds import ModelSpec
    from ratchet.training.models import Model

__all__ = ["word_contributions"]

_AT_ONCE = 64  # texts in a batch
_MOST = 512  # words: later ones have no contribution here


def word_contributions(
    model: "Model", spec: "ModelSpec", text: str, output: int, check: Callable[[], None] = go_on
) -> list[tuple[str, float]]:
    """Return the words of a text in order, each with its contribution to an output.

    The contribution is the output for the text minus the output without the word. Of a class the output is its logit
    minus the mean logit of the other classes, of a number its value in its own unit, of a label its logit. Words that
    the model does not use, because the text is too long, have no entry. `check` is called for each word; what it raises
    ends the work.
    """
    from ratchet.tokens.tokenizers import words_of

    split = words_of(text)[: min(spec.text.longest or _MOST, _MOST)]

    def texts() -> Iterator[str]:
        yield " ".join(split)
        for at in range(len(split)):
            check()
            yield " ".join(split[:at] + split[at + 1 :])

    values = spec.target.support(_outputs(model, spec, texts()), output)
    return list(zip(split, (values[0] - values[1:]).tolist(), strict=True))


def _outputs(model: "Model", spec: "ModelSpec", texts: Iterator[str]) -> NDArray[np.float64]:
    """Return the model's outputs for texts, float64 (texts, outputs)."""
    import torch

    from ratchet.tokens.tokenizers import encode

    device = model.temperature.device
    parts = []
    with torch.no_grad():
        while len(rows := encode(islice(texts, _AT_ONCE), spec.text)):
            ids = rows.gather(np.arange(len(rows)))
            parts.append(model(torch.from_numpy(ids).to(device)).double().cpu().numpy())
    outputs: NDArray[np.float64] = np.concatenate(parts)
    return outputs
