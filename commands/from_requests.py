"""`ratchet data from-requests`: logged requests with late labels as a data set, or requests that need labels."""

import json
import re
import shlex
from pathlib import Path

from ratchet import settings
from ratchet.counts import count_of
from ratchet.errors import DataError
from ratchet.monitoring.labelled_set import training_hours, write_labelled_set
from ratchet.monitoring.retraining import ON_DRIFT
from ratchet.monitoring.specs import StoredSpecs
from ratchet.monitoring.to_label import write_rows_to_label
from ratchet.settings.model import Params
from ratchet.terminal_lines import echo
from ratchet.traffic.log_reader import log_folder
from ratchet.workspace import Workspace

__all__ = ["print_labelled_set"]

_TO_LABEL = ".label-these.parquet"
_NAME = re.compile(r"\w[\w.-]*")


def print_labelled_set(workspace: Workspace, name: str, *, to_label: bool) -> None:
    """Write data/labelled/NAME, and print what it has and how to use it."""
    if not _NAME.fullmatch(name):
        raise DataError(f"NAME: found {name!r}; allowed: letters, digits, '.', '_' and '-'. Fix: take another name")
    if name == ON_DRIFT and not to_label:
        raise DataError(f"NAME: found {name}, which only train-flow/on-drift writes. Fix: take another name")
    folder, params = Path("data", "labelled", name), settings.load(workspace.params)
    if to_label:
        _print_rows_to_label(workspace, params, folder.with_name(name + _TO_LABEL))
        return
    with workspace.hold("ratchet data from-requests"):
        written = write_labelled_set(workspace, params, StoredSpecs(workspace, params), folder)
    counts = ", ".join(f"{count:,} {split}" for split, count in written.requests.items()) or "none"
    size = count_of(sum(written.requests.values()), "labelled request")
    echo(f"{folder}: {size} ({counts}), {written.added:,} of them new")
    for reason, count in written.left_out.items():
        echo(f"left out: {count_of(count, 'label')}: {reason}")
    if written.left_out:
        echo(f"each of them: {folder / 'left-out.parquet'}")
    changes = " ".join(shlex.quote(f"{key}={json.dumps(value)}") for key, value in written.settings.items())
    echo(f"next: dvc add {folder} && ratchet set {changes} && ratchet train")


def _print_rows_to_label(workspace: Workspace, params: Params, path: Path) -> None:
    may_train = training_hours(workspace, params.data, path.with_name(path.name.removesuffix(_TO_LABEL)))
    specs = StoredSpecs(workspace, params)
    rows = write_rows_to_label(path, log_folder(workspace.project), specs, seed=params.seed, may_train=may_train)
    if not len(rows):
        raise DataError(
            f"{log_folder(workspace.project)}: no request with its input and without a label. Fix: `ratchet set "
            "serving.log_inputs=keep`, and wait for requests"
        )
    echo(f"{path}: {count_of(len(rows), 'request')} without a label. next: POST their labels to /v1/labels")
