"""Checks of a run's folder; tests/system/test_deployment.py runs whole revisions."""

from pathlib import Path

import pytest

from flows import revisions
from ratchet.errors import WorkspaceError
from ratchet.workspace import Workspace


def test_run_without_a_revision_uses_the_project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").touch()
    monkeypatch.setenv("RATCHET_ROOT", str(tmp_path))
    assert revisions.find_workspace(None) == Workspace(tmp_path)
    revisions.prepare(Workspace(tmp_path), None)


def test_revision_without_a_checkout_is_refused() -> None:
    with pytest.raises(WorkspaceError, match=r"found v1\. .*train-flow/local --param revision=v1"):
        revisions.find_workspace("v1")


def test_labelled_run_without_a_revision_is_refused() -> None:
    with pytest.raises(
        WorkspaceError, match=r"^labelled: found true\. Allowed: only with a revision\. Fix: .*requests"
    ):
        revisions.find_workspace("", labelled=True)


def test_flow_raises_the_error_of_the_pull_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ERROR", "revision: no branch v1")
    with pytest.raises(WorkspaceError, match=r"^revision: no branch v1$"):
        revisions.find_workspace("v1")


def test_folder_with_another_revision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_COMMIT", "0" * 40)
    with pytest.raises(WorkspaceError, match="run this again"):
        revisions.prepare(Workspace(Path(__file__).parents[2]), "HEAD")
