"""A split of texts, with the token ids of a model's tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ratchet.errors import TrainingError
from ratchet.kinds import TextInput
from ratchet.tokens.tokenizers import PADDING, encode, stored_texts
from ratchet.training.batches import Batch, Inputs, Rows, Split
from ratchet.training.plan import Plan
from ratchet.training.streams import read_text

__all__ = ["TextSplit", "read_texts"]

CHOSEN_BY = {"kind": ("text", "tokens")}

_NARROWEST = 16  # tokens of a batch for a compiled model


@dataclass(frozen=True)
class TextSplit(Split):
    """A split of texts. The model takes token ids int64 (n, longest of the batch), filled up with 0."""

    content: NDArray[np.uint8] = field(kw_only=True)  # UTF-8 of all texts, one after the other
    starts: NDArray[np.int64] = field(kw_only=True)  # (texts + 1,)
    rows: Rows = field(kw_only=True)  # texts of this split

    @classmethod
    def read(cls, packed: Path, name: str, manifest: Mapping[str, Any], input_spec: TextInput) -> "TextSplit":
        """Read split `name` of the set in folder `packed` with a model's tokenizer.

        Raises:
            OSError, ValueError, KeyError: a file is missing or damaged.
            TrainingError: the files do not match each other.
        """
        content, starts = read_texts(packed, name, manifest)
        targets, keys = (np.load(packed / name / f"{part}.npy", mmap_mode="r") for part in ("targets", "keys"))
        if not len(starts) - 1 == len(targets) == len(keys):
            raise TrainingError(
                f"{packed}: split {name} has {len(starts) - 1} texts, {len(targets)} targets and {len(keys)} keys. "
                "Fix: `dvc repro --force ingest` packs it again"
            )
        ids = encode(stored_texts(content, starts), input_spec)
        return cls(name, (ids,), targets, keys, content=content, starts=starts, rows=np.arange(len(ids)))

    def only(self, rows: Rows) -> "TextSplit":
        """Return these rows as a split. Only targets and keys are copied."""
        return replace(super().only(rows), rows=self.rows[rows])

    def _on(self, device: torch.device) -> Batch | None:
        """Return None: a batch is as wide as its own longest text, so the ids of a whole split cannot stay on a GPU."""
        return None

    def prepared(
        self, inputs: Inputs, drawn: Sequence[torch.Tensor], rows: Rows, plan: Plan | None, epoch: int
    ) -> Inputs:
        """Return the ids. For training with a compiled model their width is a power of two: each width is compiled."""
        if plan is None or plan.compile == "none":
            return inputs
        (ids,) = inputs
        missing = max(_NARROWEST, 1 << (ids.shape[1] - 1).bit_length()) - ids.shape[1]
        return (functional.pad(ids, (0, missing), value=PADDING),)

    @property
    def bytes(self) -> int:
        """Bytes of the split's texts as UTF-8."""
        return int((self.starts[self.rows + 1] - self.starts[self.rows]).sum())

    def texts(self, rows: Rows) -> list[str]:
        """Return the texts of `rows`."""
        places = self.rows[rows].tolist()
        return [self.content[self.starts[place] : self.starts[place + 1]].tobytes().decode() for place in places]


def read_texts(packed: Path, name: str, manifest: Mapping[str, Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 of all texts of a split, and where each begins."""
    (shard,) = manifest["splits"][name]["arrays"]["starts"]
    return read_text(packed, name, manifest), np.load(packed / shard["file"], mmap_mode="r")
