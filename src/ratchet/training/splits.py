"""The splits of a set, wherever its images lie: packed, or with a user's own Dataset."""

import json
from pathlib import Path

from ratchet.errors import TrainingError
from ratchet.training.batches import Split
from ratchet.training.custom_dataset import DatasetSplit

__all__ = ["open_split"]


def open_split(packed: Path, name: str, *, workers: int = 0, sample_timeout: float = 0.0) -> Split:
    """Map split `name` (train, validation or test) of the set in folder `packed`.

    Where the images stayed with a user's own Dataset, `workers` processes will read them from it (0: this one), and a
    sample that takes more than `sample_timeout` seconds is an error (0: no limit).

    Raises:
        TrainingError: it cannot be read, or is not what was ingested.
    """
    try:
        manifest = json.loads((packed / "manifest.json").read_text(encoding="utf-8"))
        if manifest.get("factory"):
            return DatasetSplit.open_rows(packed, name, manifest, workers=workers, sample_timeout=sample_timeout)
        return Split.open(packed, name, manifest)
    except (OSError, ValueError, KeyError) as error:
        raise TrainingError(
            f"{packed}: split {name} cannot be read ({error}): pack it again with `dvc repro --force ingest`"
        ) from error
