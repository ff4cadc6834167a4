"""The report's worst errors: each picture, and beside it which of its pixels spoke for the wrong answer."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.figures import Figures
from ratchet.reports.page import folded, section, text

__all__ = ["Example", "errors_section"]

Pixels = NDArray[np.uint8]

_MOST = 24
_OPEN = 12  # so many are shown at once, the rest folded away
# On dimmed grey both are told apart by whoever cannot tell red from green, and on a light page as on a dark one
_WRONG, _RIGHT = (255, 138, 38), (64, 156, 255)
_DIMMED = (0.08, 0.5)  # what black and white become under the colours
_FULL = 0.98  # share of a picture's pixels that lie below full colour


@dataclass(frozen=True)
class Example:
    """One test row that was answered wrongly; `image` is uint8 (height, width, channels) with 1 or 3 channels."""

    image: Pixels
    id: str
    truth: str
    answer: str
    confidence: float
    # float32 (height, width): what each pixel said, above 0 for the answer, below for the truth; None: not explained
    contributions: NDArray[np.float32] | None = None


def errors_section(figures: Figures, examples: Sequence[Example], *, unexplained: str = "") -> str:
    """The most confident wrong answers, worst first; `unexplained` is why none has its contributions."""
    wrong = figures.rows - sum(row[number] for number, row in enumerate(figures.confusion))
    if not wrong:
        return section("Worst errors", f"<p>None: all {figures.rows:,} test rows are answered rightly.</p>")
    shown = [_card(one) for one in examples[:_MOST]]
    note = (
        f"The most confident of {wrong:,} wrong answers. The label itself may be wrong: look before blaming the model."
    )
    first, rest = (
        f'<div class="errors">{"".join(part)}</div>' if part else "" for part in (shown[:_OPEN], shown[_OPEN:])
    )
    more = folded(f"the next {len(shown[_OPEN:])}", rest)
    return section("Worst errors", _how_to_read(examples, unexplained) if shown else "", first, more, note=note)


def _how_to_read(examples: Sequence[Example], unexplained: str) -> str:
    if any(one.contributions is not None for one in examples):
        wrong, right = (f'<i style="background:rgb{colour}"></i>' for colour in (_WRONG, _RIGHT))
        return (
            f'<p class="reading">In the grey pictures, parts in <span class="key">{wrong}orange</span> spoke for the '
            f'wrong answer, parts in <span class="key">{right}blue</span> for the right one (integrated gradients of '
            "their difference, against a picture of the mean colour).</p>"
        )
    return f'<p class="reading">What the model went by is not shown: {text(unexplained)}.</p>' if unexplained else ""


def _card(one: Example) -> str:
    kind = "small" if max(one.image.shape[:2]) < 128 else ""
    alt = f"{text(one.truth)}, answered {text(one.answer)}"
    pictures = f'<img class="{kind}" src="{_data_url(one.image)}" alt="{alt}">'
    if one.contributions is not None:
        painted = _data_url(_painted(one.image, one.contributions))
        pictures += f'<img class="{kind}" src="{painted}" alt="what it went by: {alt}">'
    return (
        f'<figure><div class="{"seen two" if one.contributions is not None else "seen"}">{pictures}</div>'
        f"<p><b>{text(one.truth)}</b>, not <del>{text(one.answer)}</del><br>{one.confidence:.1%} sure<br>"
        f"<small>{text(one.id)}</small></p></figure>"
    )


def _painted(image: Pixels, contributions: NDArray[np.float32]) -> Pixels:
    """The picture in dim grey under colours, the stronger the more a place said: uint8 (height, width, 3)."""
    from scipy.ndimage import gaussian_filter

    # Single pixels of a photograph say little that an eye can follow: they are seen with their neighbours
    seen = gaussian_filter(contributions.astype(np.float64), min(contributions.shape) / 24)
    full = float(np.quantile(np.abs(seen), _FULL))
    strength = np.clip(np.abs(seen) / full, 0, 1)[..., None] ** 1.5 if full > 0 else np.zeros((*seen.shape, 1))
    black, white = (255 * end for end in _DIMMED)
    grey = black + (white - black) * image.mean(axis=2, keepdims=True) / 255
    colour = np.where(seen[..., None] > 0, _WRONG, _RIGHT)
    painted: Pixels = np.rint(grey * (1 - strength) + colour * strength).astype(np.uint8)
    return painted


def _data_url(image: Pixels) -> str:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
