"""Runs in MLflow's trash: deleted, restored, and erased with their files. Versions keep their runs."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

from ratchet.errors import TrackingRefused
from ratchet.registry.mlflow_store import active, all_pages, or_none, reachable
from ratchet.registry.relocation import local_path
from ratchet.registry.versions import Versions

__all__ = ["RunTrash", "bytes_on_disk", "has_records", "model_ids"]


class RunTrash(Versions):
    """MLflow's own trash.

    Raises (every method):
        TrackingUnavailable: MLflow does not answer.
    """

    def versions_text(self) -> str:
        """Return run, source, model and tags of all versions of all models: what is named in it is needed."""
        with reachable(self.uri):
            stored = all_pages(partial(self.client.search_model_versions, None))
        fields = ([v.run_id, v.source, getattr(v, "model_id", None), *v.tags.values()] for v in stored)
        return "\n".join(str(value) for each in fields for value in each)

    def find_run(self, run_id: str) -> Any | None:
        """Return MLflow's run, also a deleted one; None if there is none."""
        with reachable(self.uri):
            return or_none(partial(self.client.get_run, run_id))

    def size(self, run: Any) -> int:
        """Return the bytes of a run's files and models on this machine; 0 for files on a server."""
        return sum(bytes_on_disk(path) for place in self._places(run) if (path := local_path(place)))

    def delete(self, run_id: str) -> None:
        """Move a run to MLflow's trash, unless it is there. Its files stay."""
        with reachable(self.uri):
            if self.client.get_run(run_id).info.lifecycle_stage == "active":
                self.client.delete_run(run_id)

    def restore(self, run_id: str) -> bool:
        """Restore a deleted run. Return False if it is not deleted, or erased."""
        run = self.find_run(run_id)
        if run is None or run.info.lifecycle_stage != "deleted":
            return False
        with reachable(self.uri):
            self.client.restore_run(run_id)
        return True

    def erase(self, run_id: str, *, needed: str) -> bool:
        """Erase a deleted run with its files, as `mlflow gc` does. A killed call is repeated.

        `mlflow gc` itself would also erase every experiment and model that others deleted. Return False if the run is
        active, a version has it (`needed` is `versions_text`), or MLflow is a server, which erases its own runs only.
        """
        run = self.find_run(run_id)
        if run is None:
            return True
        if run.info.lifecycle_stage != "deleted" or any(name in needed for name in (run_id, *model_ids(run))):
            return False
        store: Any = self.client._tracking_client.store
        if not hasattr(store, "_hard_delete_run"):
            return False
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        places = self._places(run)
        with reachable(self.uri), active(self.workspace, self.params.tracking):
            for place in places:
                if (path := local_path(place)) is None or path.exists():
                    files: Any = get_artifact_repository(place)  # its methods have no types
                    files.delete_artifacts()
            for model in model_ids(run):
                or_none(partial(store._hard_delete_logged_model, model))
            store._hard_delete_run(run_id)
        for path in filter(None, map(local_path, places)):
            with contextlib.suppress(OSError):  # has other files
                path.parent.rmdir()
        return True

    def _places(self, run: Any) -> list[str]:
        """Return the addresses of the files of a run and of its models.

        Raises:
            TrackingRefused: a place does not have the run's name in it, so other runs may have files there.
        """
        with reachable(self.uri):
            models = [or_none(partial(self.client.get_logged_model, model)) for model in model_ids(run)]
        places = {run.info.run_id: run.info.artifact_uri}
        places |= {model.model_id: model.artifact_location for model in models if model is not None}
        for name, place in places.items():
            if name not in str(place).split("/"):
                raise TrackingRefused(f"MLflow run {run.info.run_id}: its files are in {place}, which others may share")
        return [str(place) for place in places.values()]


def has_records(uri: str) -> bool:
    """Return False if the database is a file that the first run will make."""
    path = uri.removeprefix("sqlite:///")
    return path == uri or Path(path).exists()


def bytes_on_disk(path: Path) -> int:
    """Return the bytes of a file or folder. Files that disappear meanwhile, and links, count as none."""
    total = 0
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        with contextlib.suppress(FileNotFoundError):
            total += each.lstat().st_size if each.is_file() and not each.is_symlink() else 0
    return total


def model_ids(run: Any) -> list[str]:
    """Return the ids of the models that a run has stored."""
    return [str(output.model_id) for output in run.outputs.model_outputs] if run.outputs else []
