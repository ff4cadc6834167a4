"""TensorBoard event files, written from a run's journal."""

from collections import Counter
from pathlib import Path
from types import TracebackType

from ratchet.registry.journal import Journal

__all__ = ["Curves"]

NO_RESULT = "it writes TensorBoard files, which are no outputs"

_FLUSH_SECONDS = 10  # maximum delay of an open TensorBoard page


class Curves:
    """Scalars of one journal in `folder`, for `tensorboard --logdir mlruns/tensorboard`.

    Opening writes the points of the journal that are not in the files yet; `update` writes the new ones. After a kill
    and a resume no point is missing or duplicated, and a run that began before `tracking.tensorboard` was turned on is
    complete. Old files stay, so that an open page continues.
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
        """Write the points that were added to the journal since the last call."""
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
        """Write the remaining points to disk."""
        self.update()
        self._writer.close()


def _shown(folder: Path) -> Counter[tuple[str, int]]:
    """Count the points in the folder's files, including those that a killed process left incomplete.

    A step that was repeated after a non-finite loss has two points.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return Counter(
        (value.tag, event.step)
        for path in folder.glob("events.out.tfevents.*")
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    )
