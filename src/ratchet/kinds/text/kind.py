"""Texts in requests and files, and their token ids."""

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds.inputs import TextInput
from ratchet.kinds.protocol import Arrays, InputError, Kind, RawValue, Unencoded, Unusual, go_on
from ratchet.kinds.raw_values import texts_in

if TYPE_CHECKING:
    from mlflow.types import Schema

    from ratchet.training import Split

__all__ = ["Texts"]

_TOKENS = 8  # of each example
_TOKENIZERS = {"bag": "hashed", "transformer": "words"}  # of `model.tokenizer: auto`, by model
_UNKNOWN = 1  # id of a word outside the vocabulary
_JUDGED = 1 << 16  # characters of a text; Unicode's form of a longer one takes seconds, and hundreds of MiB


class Texts(Kind[TextInput]):
    """Texts, as the ids of their tokens."""

    name = "text"
    networks = MappingProxyType({"bag": "Bag", "transformer": "Transformer"})
    program_inputs = ("ids",)
    tokenizes = True
    varies = True
    baseline = "linear-bag"
    file_suffixes = (".txt",)
    in_tables = True
    files_word = "texts"
    noun = ("text", "texts")

    def example(self, spec: TextInput, rows: int, seed: int) -> Arrays:
        known = spec.buckets or len(spec.vocabulary) + 2
        return (np.random.default_rng(seed).integers(1, known, (rows, _TOKENS)),)

    def zeros(self, spec: TextInput, rows: int) -> Arrays:
        return (np.zeros((rows, _TOKENS), np.int64),)

    def read(self, values: Any, spec: TextInput, field: str, check: Callable[[], None] = go_on) -> Unencoded:
        texts = texts_in(values, field)
        return Unencoded(texts, field, len(texts), spec)

    def encode(self, given: Sequence[Unencoded]) -> list[Arrays]:
        """Return the token ids of the texts of each request, filled up to its own longest text."""
        from ratchet.tokens.tokenizers import encode

        spec: Any = given[0].spec
        rows = encode((text for each in given for text in each.values), spec)
        spans = pairwise(accumulate((each.rows for each in given), initial=0))
        return [(rows.gather(np.arange(begin, end)),) for begin, end in spans]

    def logged_names(self, spec: TextInput) -> tuple[str, ...]:
        """Return the text alone: another model has another tokenizer."""
        return ("text",)

    def no_samples(self, spec: TextInput) -> Arrays:
        return (np.empty(0, object),)

    def values(self, arrays: Arrays, spec: TextInput) -> list[str]:
        """Return the texts themselves."""
        texts: list[str] = arrays[0].tolist()
        return texts

    def samples(self, split: Any, rows: NDArray[np.int64], spec: TextInput) -> list[str]:
        texts: list[str] = split.texts(rows)
        return texts

    def features(self, arrays: Arrays, spec: TextInput) -> dict[str, NDArray[Any]]:
        return {"length": (arrays[0] > 0).sum(1)}

    def unusual(self, arrays: Arrays, spec: TextInput, raw_value: RawValue) -> Iterator[Unusual]:
        (ids,) = arrays
        for row in np.flatnonzero(~(ids > _UNKNOWN).any(axis=1)).tolist():
            text = _plain(raw_value(row, ""))
            yield Unusual(row, "", "text", text, "no word that the model knows" if text.strip() else "no words")
        known = frozenset(spec.characters)
        texts = [_plain(raw_value(row, "")) for row in range(len(ids))] if known else []
        if any(character.isalnum() for character in set("".join(texts)) - known):
            for row, text in enumerate(texts):
                letters = [character for character in text if character.isalnum()]
                if 2 * sum(letter not in known for letter in letters) > len(letters):
                    yield Unusual(row, "", "text", raw_value(row, ""), "mostly characters that no training text has")

    def open_split(self, packed: Path, name: str, manifest: Mapping[str, Any], spec: TextInput) -> "Split":
        from ratchet.training.texts import TextSplit

        return TextSplit.read(packed, name, manifest, spec)

    def model_input(
        self,
        packed: Path,
        manifest: Mapping[str, Any],
        spec: TextInput,
        *,
        model: str,
        tokenizer: str,
        context: int,
        root: str,
    ) -> TextInput:
        """Return the input with a tokenizer learned from the training texts."""
        from ratchet.tokens.tokenizers import fit_tokenizer, stored_texts
        from ratchet.training.texts import read_texts

        name = _TOKENIZERS.get(model, "hashed") if tokenizer == "auto" else tokenizer
        return fit_tokenizer(stored_texts(*read_texts(packed, "train", manifest)), name, longest=context)

    def example_values(self, spec: TextInput) -> list[str]:
        return [" ".join(spec.vocabulary[:5]) or "a text"]

    def mlflow_schema(self, spec: TextInput) -> "Schema":
        from mlflow.types import ColSpec, Schema

        return Schema([ColSpec("string")])

    def file_value(self, content: bytes) -> str:
        from ratchet.data.sources.decoding import decode

        read = decode(content)
        if read.text is None:
            raise InputError(f"is no text ({read.problem}). Fix: save it as text in UTF-8")
        return read.text

    def columns_read(self, spec: TextInput, names: Sequence[str], column: str | None) -> list[str]:
        if column is not None and column not in names:
            raise InputError(f"has no column {column!r}; it has {', '.join(names[:20])}. Fix: correct --column")
        if column is None and "text" not in names and len(names) != 1:
            raise InputError(f"found the columns {', '.join(names)}. Fix: name the texts' one by --column")
        return [column or ("text" if "text" in names else names[0])]

    def table_values(self, frame: Any) -> list[str]:
        return [text if text is not None else "" for text in frame.to_series().to_list()]


def _plain(text: Any) -> str:
    """Return the beginning of a text as the tokenizers read it."""
    text = (text.decode() if isinstance(text, bytes) else str(text))[:_JUDGED]
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).lower()
