"""ingest: the source -> data/packed and data/quarantine.parquet."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.data.depth import largest
from ratchet.data.manifest import Manifest
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.progress import Watch

if TYPE_CHECKING:
    import polars

__all__ = ["Dataset", "ingest"]

_NAMED = 5


@dataclass(frozen=True)
class Dataset:
    """What ingest made, in small."""

    name: str
    digest: str
    classes: int
    rows: dict[str, int]
    quarantined: int

    @classmethod
    def load(cls, workspace: Workspace) -> "Dataset":
        """What stands in data/packed."""
        manifest = Manifest.read(workspace.packed)
        rows = {name: split.rows for name, split in manifest.splits.items()}
        return cls(manifest.name, manifest.digest, len(manifest.classes), rows, manifest.quarantined)

    @property
    def summary(self) -> str:
        rows = ", ".join(f"{count:,} {name}" for name, count in self.rows.items())
        bad = f"; {self.quarantined:,} quarantined, see data/quarantine.parquet" if self.quarantined else ""
        return f"{self.name}: {self.classes} classes, {rows}{bad}"


def ingest(params: Params, workspace: Workspace, *, watch: Watch, sample: bool = False) -> Dataset:
    """Read, validate, split and pack the source that `params.data` names, or only a `sample` of it."""
    from ratchet.data.ingest import ingest as read_and_pack

    before = _index(workspace)
    read_and_pack(
        params.data,
        packed=workspace.packed,
        quarantine=workspace.quarantine,
        root=workspace.root,
        report=watch.progress,
        remember=None if sample else workspace.state / "ingest.parquet",
        releases=workspace.releases,
        sample=sample,
        sample_timeout=params.training.sample_timeout,
    )
    if not sample:
        _draw_card(workspace, before)
    _name_trouble(workspace, watch)
    return Dataset.load(workspace)


def _index(workspace: Workspace) -> "polars.DataFrame | None":
    """The index of the packed set that stands there, if there is one."""
    import polars

    from ratchet.data.difference import COLUMNS

    path = workspace.packed / "index.parquet"
    return polars.read_parquet(path, columns=list(COLUMNS)) if path.exists() else None


def _draw_card(workspace: Workspace, before: "polars.DataFrame | None") -> None:
    """The data card, unless there is one of this very version already: it tells what changed since another."""
    from ratchet.data.difference import difference
    from ratchet.reports.data_card import card

    after = _index(workspace)
    assert after is not None
    if workspace.card.exists() and before is not None and before.equals(after):
        return
    changed = None if before is None else difference(before, after)
    files.write_text(workspace.card, card(workspace.packed, workspace.quarantine, changed=changed))


def _name_trouble(workspace: Workspace, watch: Watch) -> None:
    """The first of what was not let in, and labels that contradict each other: nobody should have to open a table."""
    import polars

    table = polars.read_parquet(workspace.quarantine)
    for row in table.head(_NAMED).iter_rows(named=True):
        watch.say(f"quarantined {row['source']}: {row['rule']} (found {row['value']}); {row['hint']}")
    if len(table) > _NAMED:
        watch.say(f"... and {len(table) - _NAMED:,} more, in {workspace.quarantine}")
    profile = files.read_json(workspace.packed / "profile.json")
    conflicts = profile["label_conflicts"]["groups"]
    if conflicts:
        watch.say(
            f"{conflicts:,} images stand under several labels each: see label_conflicts in data/packed/profile.json"
        )
    if "depth" in profile:
        bits, samples = profile["depth"]["bits"], sum(profile["depth"]["samples"].values())
        watch.say(f"{samples:,} 16-bit images: values 0..{largest(bits):,} became 0..255 ({bits} bits, data.depth)")


if __name__ == "__main__":
    import os

    from tasks.stage_runner import run

    # polars' allocator keeps for a while what is freed, which in an ingest is as much as what is held. It reads this
    # when it is imported; a parent that imported it has left its own defaults here.
    os.environ["_RJEM_MALLOC_CONF"] = "dirty_decay_ms:0,muzzy_decay_ms:0"
    run(ingest, unit="samples")
