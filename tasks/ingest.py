"""Stage ingest: read the source, write data/packed and data/quarantine.parquet."""

import ctypes
import json
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.kinds.image.depth import largest
from ratchet.problems import NextToken
from ratchet.settings.model import DataSettings, Params
from ratchet.workspace import Workspace
from tasks.progress import StageProgress

if TYPE_CHECKING:
    import polars

__all__ = ["Dataset", "ingest"]

_SHOWN = 5  # quarantined samples that are listed on the terminal
_NO_INPUTS = ("id", "text", "ignored")  # types of columns that a model does not get
_M_MMAP_THRESHOLD = -3  # glibc's malloc.h
_CLASSES_SHOWN = 3  # classes with other shares, of a split


@dataclass(frozen=True)
class Dataset:
    """Summary of the packed data."""

    name: str
    digest: str
    target: str  # text for people: "10 classes"
    rows: dict[str, int]
    quarantined: int

    @classmethod
    def load(cls, workspace: Workspace) -> "Dataset":
        """Read it from data/packed."""
        manifest = Manifest.read(workspace.packed)
        rows = {name: split.rows for name, split in manifest.splits.items()}
        return cls(manifest.name, manifest.digest, manifest.target.description, rows, manifest.quarantined)

    @property
    def summary(self) -> str:
        rows = ", ".join(f"{count:,} {name}" for name, count in self.rows.items())
        rows += " (bytes)" if self.target == NextToken(0).description else ""
        bad = f"; {self.quarantined:,} quarantined, see data/quarantine.parquet" if self.quarantined else ""
        return f"{self.name}: {self.target}, {rows}{bad}"


def ingest(params: Params, workspace: Workspace, *, progress: StageProgress, sample: bool = False) -> Dataset:
    """Read, validate, split and pack the source that `params.data` names, or only a few samples of it (`sample`)."""
    from ratchet.data import ingest as data

    before = _index(workspace)
    task = data.IngestTask(
        params.data,
        packed=workspace.packed,
        quarantine=workspace.quarantine,
        root=workspace.root,
        report=progress.update,
        cache=None if sample else workspace.state / "ingest.parquet",
        releases=workspace.releases,
        sample=sample,
        sample_timeout=params.training.sample_timeout,
        say_ignored=lambda ignored: progress.say(ignored.text) if ignored.files else None,
    )
    data.ingest(task)
    if not sample:
        _write_card(workspace, before)
    _report_problems(workspace, params.data, progress)
    return Dataset.load(workspace)


def _index(workspace: Workspace) -> "polars.DataFrame | None":
    """Read the index of the packed data, if there is one."""
    import polars

    from ratchet.data.difference import COLUMNS

    path = workspace.packed / "index.parquet"
    return polars.read_parquet(path, columns=list(COLUMNS)) if path.exists() else None


def _write_card(workspace: Workspace, before: "polars.DataFrame | None") -> None:
    """Write the data card. Keep the card of an unchanged version: it shows what changed since an earlier one."""
    from ratchet.data.difference import difference
    from ratchet.reports.data_card import card, shows

    changed = None
    if before is not None and (after := _index(workspace)) is not None:
        if before.equals(after) and workspace.card.exists() and shows(workspace.card, Manifest.read(workspace.packed)):
            return
        changed = difference(before, after)
    files.write_text(workspace.card, card(workspace.packed, workspace.quarantine, changed=changed))


def _report_problems(workspace: Workspace, settings: DataSettings, progress: StageProgress) -> None:
    """Report the first quarantined samples, contradicting labels, problems of the splits and 16-bit images."""
    import polars

    table = polars.read_parquet(workspace.quarantine)
    for row in table.head(_SHOWN).iter_rows(named=True):
        progress.say(f"quarantined {row['source']}: {row['rule']} (found {row['value']}); {row['hint']}")
    if len(table) > _SHOWN:
        progress.say(f"... and {len(table) - _SHOWN:,} more, in {workspace.quarantine}")
    profile = files.read_json(workspace.packed / "profile.json")
    conflicts = profile["label_conflicts"]["groups"]
    if conflicts:
        samples = "sample has" if conflicts == 1 else "samples have"
        progress.say(f"{conflicts:,} {samples} several labels: see label_conflicts in data/packed/profile.json")
    _report_splits(profile, workspace, progress)
    if "problem" in profile:
        problem = profile["problem"]
        progress.say(f"problem: {problem['chosen']} ({problem['why']}); to change it: ratchet set data.problem=...")
        for note in problem["notes"]:
            progress.say(note)
    for note in profile.get("notes", ()):
        progress.say(note)
    if left_out := [column for column in profile.get("columns", ()) if column["type"] in _NO_INPUTS]:
        named = "; ".join(f"{column['name']} ({column['type']}: {column['why']})" for column in left_out[:_SHOWN])
        more = f"; and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
        progress.say(
            f"columns that are left out: {named}{more}; to use one: ratchet set 'data.columns={{NAME: numeric}}'"
        )
    _report_leaks(profile, workspace, settings, progress)
    if "depth" in profile:
        bits, samples = profile["depth"]["bits"], sum(profile["depth"]["samples"].values())
        progress.say(f"{samples:,} 16-bit images: values 0..{largest(bits):,} became 0..255 ({bits} bits, data.depth)")


def _report_leaks(
    profile: Mapping[str, Any], workspace: Workspace, settings: DataSettings, progress: StageProgress
) -> None:
    """Report columns that predict the target alone or in pairs, with one fix that drops those that a model gets."""
    inputs = {column["name"] for column in profile.get("columns", ()) if column["type"] not in _NO_INPUTS}
    leaking = dict[str, None]()
    for leak in profile["telling"]["class"]:
        names = leak.get("columns", [leak["column"]])
        leaking |= dict.fromkeys(name for name in names if name in inputs)
        predict = f"{names[0]} alone predicts the target"
        if len(names) > 1:
            predict = f"{' and '.join(names)} together predict the target"
        progress.say(f"possible data leakage: {predict}; see {workspace.card}")
    if leaking.keys() < inputs and leaking:
        changes: dict[str, Any] = {"drop": [*settings.drop, *leaking]}
        if leaking.keys() & settings.columns.keys():  # a column cannot be in both
            changes["columns"] = {name: kind for name, kind in settings.columns.items() if name not in leaking}
        values = (f"data.{name}={json.dumps(value, ensure_ascii=False)}" for name, value in changes.items())
        progress.say(f"to leave out what is not known when a prediction is needed: ratchet set {shlex.join(values)}")


def _report_splits(profile: Mapping[str, Any], workspace: Workspace, progress: StageProgress) -> None:
    """Report classes with other shares in validation or test, and near-duplicates in different splits."""
    from ratchet.data.checks.class_shares import other_shares

    different = other_shares(profile["classes"])
    for name in dict.fromkeys(share.split for share in different):
        of_split = [share for share in different if share.split == name]
        shown = ", ".join(
            f"{s.name} {100 * s.share:.1f} % (train {100 * s.train:.1f} %)" for s in of_split[:_CLASSES_SHOWN]
        )
        more = f" and {len(of_split) - _CLASSES_SHOWN} more classes" if len(of_split) > _CLASSES_SHOWN else ""
        progress.say(
            f"{name} has other shares per class than train: {shown}{more}. Given splits, groups, equal samples or the "
            "order of time force this; compare models by macro recall"
        )
    near = profile.get("near_duplicates")  # tables have none
    if near and near["across_splits"]:
        (left, right), (first, second) = near["first"][0]["ids"], near["first"][0]["splits"]
        progress.say(
            f"{near['across_splits']:,} pairs of near-duplicates are in different splits, such as {left} ({first}) and "
            f"{right} ({second}), so the test may be too easy: see {workspace.card}. Fix: give copies one value of "
            "data.group_column, or remove them"
        )


def _return_freed_memory() -> None:
    """Let allocators return freed memory at once. If they keep it, the memory use of an ingest grows with the files.

    polars' allocator reads the variable when it is imported. A parent process that imported polars has set its own
    defaults here. glibc returns every block at once that is larger than a fixed limit.
    """
    os.environ["_RJEM_MALLOC_CONF"] = "dirty_decay_ms:0,muzzy_decay_ms:0"
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)


if __name__ == "__main__":
    from tasks.stage_runner import run

    _return_freed_memory()
    run(ingest, unit="samples")
