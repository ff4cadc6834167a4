"""TensorBoard's event files: what the journal tells of a run, once more, for those who read curves there."""

from collections import Counter
from pathlib import Path
from types import TracebackType

from ratchet.registry.journal import Journal

__all__ = ["Curves"]

_FLUSH_SECONDS = 10  # what a page that is open lags behind


class Curves:
    """Every point of one journal as scalars in `folder`: `tensorboard --logdir mlruns/tensorboard` shows them.

    Opening writes what of the journal is not yet there, `update` what came since. So after a kill and a resume no point
    is missing and none is there twice, whatever the killed process had not yet written, and a run that began before
    `tracking.tensorboard` was turned on is shown whole. Old files stay: a page that is open reads on.
    """

    def __init__(self, folder: Path, journal: Journal) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._journal, self._end, self._shown = journal, 0, _shown(folder)
        self._writer = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)
        self.update()

    def __enter__(self) -> "Curves":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self) -> None:
        """Add what the journal was told since the last time."""
        for entry in self._journal.entries(self._end):
            self._end = entry.end
            if entry.kind != "metrics":
                continue
            step = entry.content["step"]
            for name, value in entry.content["values"].items():
                if self._shown[name, step]:
                    self._shown[name, step] -= 1
                else:
                    self._writer.add_scalar(name, value, step, walltime=entry.time / 1000)

    def close(self) -> None:
        """Add the rest and write it to disk."""
        self.update()
        self._writer.close()


def _shown(folder: Path) -> Counter[tuple[str, int]]:
    """The points in the folder's files, up to where a killed process broke each off.

    A step that was made again, after a loss that was not finite, has two.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return Counter(
        (value.tag, event.step)
        for path in folder.glob("events.out.tfevents.*")
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    )
