"""The trash of a clean-up after a kill, and after a plan was deleted by hand."""

from pathlib import Path

from ratchet import files
from ratchet.trash import TrashFolder
from ratchet.workspace import Workspace


def test_files_without_plan_stay(tmp_path: Path) -> None:
    kept = tmp_path / ".ratchet" / "trash" / "2026-11-01T000000-1" / "data" / "weights"
    files.write_text(kept, "weights")
    TrashFolder.begin(Workspace(tmp_path), ["data/other"], [])
    assert kept.read_text() == "weights"


def test_folder_of_killed_clean_up_goes(tmp_path: Path) -> None:
    draft = tmp_path / ".ratchet" / "trash" / "2026-11-01T000000-1" / ".draft-plan.json.0123abcd.json"
    files.write_text(draft, "{")
    TrashFolder.begin(Workspace(tmp_path), ["data/other"], [])
    assert not draft.parent.exists()
