"""The limit of the characters in a request.

The Unicode form of a whole text is one call, which no deadline ends and beside which no other thread of Python runs.
"""

import unicodedata
from collections.abc import Sequence

from ratchet.kinds.protocol import InputError, TooManyRows

__all__ = ["check_texts"]

_MOST = 1_000_000  # characters; their tokens take about 0.2 s
_PIECE = 128  # characters; the time for a run of combining marks grows with the square of its length


def check_texts(texts: Sequence[str], field: str, *, most: int = _MOST) -> None:
    """Count the characters of texts in the Unicode form NFKC, as which tokenizers read them: U+FDFA has 18.

    Raises:
        TooManyRows: found more than `most`.
        InputError: found a long run of combining marks.
    """
    characters = 0
    for row, text in enumerate(texts):
        step = len(text) if text.isascii() else _PIECE
        for start in range(0, len(text), step or 1):
            form = text[start : start + step]
            form = form if form.isascii() else unicodedata.normalize("NFKC", form)
            characters += len(form)
            if characters > most:
                raise TooManyRows(
                    f"{field}: found more than {most:,} characters in {row + 1} of {len(texts)} texts; allowed: "
                    f"{most:,} in one request. Fix: send fewer or shorter texts"
                )
            if len(form) >= _PIECE and all(map(unicodedata.combining, form)):
                raise InputError(f"{field}[{row}]: found {len(form)} combining marks in a row; allowed: up to 127")
