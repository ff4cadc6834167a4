"""Windows of a token stream as samples of a split.

Sample i of an epoch has the `context` tokens from place i * context + shift, and as targets the tokens one place later.
For training the shift is drawn for each epoch, so that tokens change neighbours; it depends on (seed, epoch) alone, and
so every batch depends on (seed, epoch, rows). Otherwise the shift is 0, and the windows cover the whole stream: every
token but the first is predicted exactly once. The last window may be shorter; its other targets are IGNORED.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ratchet.errors import TrainingError
from ratchet.kinds import TokensInput
from ratchet.problems.next_token import PADDED
from ratchet.tokens.token_ids import encode_utf8
from ratchet.training.batches import Batch, Rows, Split
from ratchet.training.device import moved
from ratchet.training.plan import Plan

__all__ = ["IGNORED", "StreamSplit", "Windows", "read_text", "shift"]

CHOSEN_BY = {"kind": ("text", "tokens")}

IGNORED = PADDED  # target after the end of the stream
_RESIDENT_SHARE = 1 / 32  # of a GPU's free memory that a stream may use to stay there: less text than images
_SHIFT = 0x5348_4946  # separates these random numbers from others of the same seed


@cache
def shift(seed: int, epoch: int, context: int) -> int:
    """Return the place of the first window in an epoch of training, from 0 to context - 1."""
    return int(np.random.default_rng([seed, epoch, _SHIFT]).integers(context))


def read_text(packed: Path, name: str, manifest: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Return the text of a split as UTF-8, uint8 (bytes,), memory-mapped if it has one shard.

    Raises:
        OSError, ValueError, KeyError: a file is missing or damaged.
    """
    shards = [np.load(packed / shard["file"], mmap_mode="r") for shard in manifest["splits"][name]["arrays"]["text"]]
    text: NDArray[np.uint8] = shards[0] if len(shards) == 1 else np.concatenate([np.zeros(0, np.uint8), *shards])
    return text


@dataclass(frozen=True)
class Windows:
    """A stream cut into windows.

    Attributes:
        ids: (tokens,), any integer type.
        context: tokens of a window.
        whole: the last window may be shorter than the others, else all are whole for any shift.
    """

    ids: NDArray[np.integer]
    context: int
    whole: bool = True

    def __len__(self) -> int:
        predicted = len(self.ids) - 1
        return -(-predicted // self.context) if self.whole else max(0, len(self.ids) // self.context - 1)

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes

    def gather(self, rows: Rows, *, shift: int = 0) -> NDArray[np.int64]:
        """Return the tokens of `rows` and the token after each window: int64 (n, context + 1), IGNORED at the end."""
        places = rows[:, None] * self.context + np.arange(shift, shift + self.context + 1)
        inside = places < len(self.ids)
        pieces = np.asarray(self.ids[np.where(inside, places, 0)], np.int64)
        return np.where(inside, pieces, IGNORED)


def _seen_and_next(pieces: torch.Tensor) -> Batch:
    """Return the ids of windows (n, context + 1), IGNORED at the end, and the targets, each int64 (n, context)."""
    return (pieces[:, :-1].clamp(min=0),), pieces[:, 1:].contiguous()


@dataclass(frozen=True)
class StreamSplit(Split):
    """A split of a token stream. The model takes ids int64 (n, context); targets are int64 (n, context)."""

    array_names = ("text",)
    windows: Windows = field(kw_only=True)
    rows: Rows = field(kw_only=True)  # windows of this split
    text: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8), kw_only=True)  # UTF-8 of all windows
    input_spec: TokensInput = field(default=TokensInput(), kw_only=True)  # the tokenizer

    @classmethod
    def of(cls, name: str, ids: NDArray[np.integer], context: int, *, whole: bool | None = None) -> "StreamSplit":
        """Return the split of a stream of ids. `whole`: see `Windows`; None: only the train split is cut for shifts.

        Raises:
            TrainingError: the stream is too short for a sample.
        """
        windows = Windows(ids, context, whole=name != "train" if whole is None else whole)
        if not len(windows):
            least = 2 * context if not windows.whole else 2
            raise TrainingError(
                f"split {name} has {len(ids)} tokens. With model.context {context} it needs at least {least}. "
                "Fix: add text, or change data.validation_fraction or data.test_fraction"
            )
        rows = np.arange(len(windows))
        return cls(name, (), np.zeros(0, np.int64), rows.astype(np.uint64), windows=windows, rows=rows)

    @classmethod
    def read(cls, packed: Path, name: str, manifest: Mapping[str, Any], input_spec: TokensInput) -> "StreamSplit":
        """Read split `name` of the set in folder `packed` with a model's tokenizer.

        Raises:
            OSError, ValueError, KeyError: a file is missing or damaged.
            TrainingError: the stream is too short for a sample.
        """
        text = read_text(packed, name, manifest)
        split = cls.of(name, encode_utf8(text, input_spec), input_spec.context)
        return replace(split, text=text, input_spec=input_spec)

    def __len__(self) -> int:
        return len(self.rows)

    def host_targets(self, rows: Rows) -> NDArray[np.int64]:
        """Return the targets of `rows` without a shift, int64 (n, context). A shift changes no count of targets."""
        return self.windows.gather(self.rows[rows])[:, 1:]

    def targets_per_row(self, ignored: int) -> int | None:
        return None if self.windows.whole or ignored >= 0 else self.windows.context

    def gather(self, rows: Rows) -> tuple[NDArray[np.int64]]:
        """Return the ids of `rows` without a shift, int64 (n, context)."""
        return (np.maximum(self.windows.gather(self.rows[rows])[:, :-1], 0),)

    def batch(self, rows: Rows, device: torch.device, *, plan: Plan | None = None, epoch: int = 0) -> Batch:
        """Return ids and targets on `device`, each int64 (n, context); shifted if `plan` is given."""
        resident = self._on(device)
        if resident is not None:
            return next(self._resident_batches(resident, [rows], device, plan, epoch))
        return _seen_and_next(moved(self.windows.gather(self.rows[rows], shift=self._shift(plan, epoch)), device))

    def _shift(self, plan: Plan | None, epoch: int) -> int:
        return 0 if plan is None or self.windows.whole else shift(plan.seed, epoch, self.windows.context)

    def draws(self, rows: Rows, plan: Plan | None, epoch: int) -> list[NDArray[Any]]:
        return [self.rows[rows]]

    def _chosen(
        self,
        resident: Batch,
        index: torch.Tensor,
        drawn: Sequence[torch.Tensor],
        rows: Rows,
        plan: Plan | None,
        epoch: int,
    ) -> Batch:
        _, ids = resident
        windows = ids[self._shift(plan, epoch) :].unfold(0, self.windows.context + 1, self.windows.context)
        return _seen_and_next(windows[drawn[0]])

    def _resident_size(self) -> tuple[int, float]:
        return 8 * len(self.windows.ids), _RESIDENT_SHARE

    def _whole(self, device: torch.device) -> Batch:
        """Return the ids of the stream, int64 (tokens,), which end with a whole window."""
        ids = torch.from_numpy(np.array(self.windows.ids)).to(device).long()
        missing = len(self.windows) * self.windows.context + 1 - len(ids)
        return (), functional.pad(ids, (0, max(0, missing)), value=IGNORED)

    def only(self, rows: Rows) -> "StreamSplit":
        """Return these rows as a split."""
        return StreamSplit(
            self.name,
            (),
            self.targets,
            self.keys[rows],
            windows=self.windows,
            rows=self.rows[rows],
            text=self.text,
            input_spec=self.input_spec,
        )
