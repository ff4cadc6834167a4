"""What the flow finds of a revision that was to be laid down; tests/system/test_deployment.py runs it whole."""

from pathlib import Path

import pytest

from flows import production
from ratchet.errors import WorkspaceError
from ratchet.workspace import Workspace


def test_without_a_revision_it_is_the_folder_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").touch()
    monkeypatch.setenv("RATCHET_ROOT", str(tmp_path))
    assert production.find_workspace(None) == Workspace(tmp_path)
    production.prepare(Workspace(tmp_path), None)


def test_a_revision_that_nobody_laid_down_is_not_trained_in_place_of_it() -> None:
    with pytest.raises(WorkspaceError, match=r"found v1, .*train-flow/local --param revision=v1"):
        production.find_workspace("v1")


def test_what_the_pull_step_could_not_do_the_flow_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_MISTAKE", "revision: no branch v1")
    with pytest.raises(WorkspaceError, match=r"^revision: no branch v1$"):
        production.find_workspace("v1")


def test_a_folder_that_another_run_was_given_meanwhile_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_COMMIT", "0" * 40)
    with pytest.raises(WorkspaceError, match="run this again"):
        production.prepare(Workspace(Path(__file__).parents[2]), "HEAD")
