"""Parents: registered versions whose weights another training begins with.

model.pretrained names one as NAME/VERSION. Its files are in that folder of data/pretrained, where DVC sees them.
"""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.checksums import CHECKSUMS
from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec
from ratchet.registry.versions import REFERENCE
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.versions import Version

__all__ = ["continued_model", "parent_of", "place_parent", "provide_parent"]

NO_RESULT = {"ingest": "of a check at the start", "export": "of a check at the start"}


def place_parent(registry: "ModelRegistry", reference: str, workspace: Workspace) -> "Version":
    """Copy the files of a registered version into data/pretrained of `workspace`, whose caller holds it.

    Raises:
        RegistryError: there is no such version, or its files are not those that were stored.
        TrackingUnavailable: MLflow does not answer.
    """
    version = registry.find(reference)
    folder = workspace.pretrained / version.name / version.number
    workspace.pretrained.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ratchet-parent-") as place:
        copy = registry.copy_files(version, Path(place))
        with files.draft_directory(folder) as draft:
            shutil.copytree(copy, draft, dirs_exist_ok=True)
    return version


def provide_parent(workspace: Workspace, params: Params) -> None:
    """Fetch the version that the settings of a checkout continue, if it is not there: git has only its name.

    Elsewhere a user fetches it by `ratchet train --from`.

    Raises:
        RegistryError: there is no such version, or its files are not those that were stored.
        TrackingUnavailable: MLflow does not answer.
    """
    from ratchet.registry.models import ModelRegistry

    name = params.model.pretrained
    match = REFERENCE.match(name)
    is_folder = match is not None and name == f"{match['name']}/{match['number']}"
    if workspace.is_checkout and is_folder and not (workspace.pretrained / name).exists():
        place_parent(ModelRegistry(workspace, params), name, workspace)


def continued_model(workspace: Workspace, params: Params) -> dict[str, Any] | None:
    """Return the content of model.json of the stored model that model.pretrained names; None: it names none.

    Raises:
        TrainingError: the file is damaged.
    """
    path = workspace.pretrained / params.model.pretrained / "model.json"
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = files.read_json(path)
        ModelSpec.from_json(content["spec"])
    except (ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"model.pretrained: {path} is not the description of a model ({type(error).__name__}: {error}). Fix: "
            f"`ratchet train --from {params.model.pretrained}` fetches a registered version again"
        ) from error
    return content


def parent_of(workspace: Workspace, params: Params) -> str | None:
    """Return the registered version that model.pretrained names, as models:/NAME/VERSION; None: it names none."""
    name = params.model.pretrained
    is_version = REFERENCE.match(name) and (workspace.pretrained / name / CHECKSUMS).is_file()
    return f"models:/{name}" if is_version else None
