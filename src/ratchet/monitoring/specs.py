"""Specs of the served versions, from the registry. Each is asked for once and kept: a version never changes."""

import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ratchet import files
from ratchet.errors import RegistryError
from ratchet.kinds import ModelSpec
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["StoredSpecs"]

_LOG = logging.getLogger(__name__)


@dataclass
class StoredSpecs:
    """Returns the spec of NAME/VERSION; None: the registry has no such version."""

    workspace: Workspace
    params: Params
    _read: dict[str, ModelSpec | None] = field(default_factory=dict)

    def __call__(self, name: str) -> ModelSpec | None:
        """Return the spec.

        Raises:
            TrackingUnavailable: MLflow does not answer.
        """
        if name not in self._read:
            path = self.workspace.state / "monitoring" / "specs" / f"{name.replace('/', '-')}.json"
            self._read[name] = _stored(path) or self._fetched(name, path)
        return self._read[name]

    def _fetched(self, name: str, path: Path) -> ModelSpec | None:
        from ratchet.registry.models import ModelRegistry

        try:
            registry = ModelRegistry(self.workspace, self.params)
            with tempfile.TemporaryDirectory() as folder:
                copy = registry.copy_files(registry.find(name), Path(folder))
                files.write_json(path, files.read_json(copy / "model.json")["spec"])
            return ModelSpec.from_json(files.read_json(path))
        except RegistryError as error:
            _LOG.warning("%s: its answers are watched, its inputs are not: %s", name, error)
            return None


def _stored(path: Path) -> ModelSpec | None:
    """Return the spec in a file; None if there is none, or it is damaged: it is a copy, and is fetched again."""
    try:
        return ModelSpec.from_json(files.read_json(path))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _LOG.warning("%s was damaged (%s): the spec is fetched again", path, error)
        return None
