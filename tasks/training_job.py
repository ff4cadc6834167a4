"""From the settings to the inputs of a training, and the key that identifies it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.settings.model import Params, TrainingSettings
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet import training

__all__ = ["TrainingJob", "make_plan"]


@dataclass(frozen=True)
class TrainingJob:
    """Everything that decides the result of a training, except the data."""

    plan: "training.Plan"
    spec: "training.ModelSpec"
    pretrained: Path | None
    identity: dict[str, str]  # digests of data, settings, code and pretrained weights
    parts: dict[str, dict[str, Any]]  # the content behind the digests, for messages; see `_parts`

    @property
    def key(self) -> str:
        """Key of the training. It changes with any part of the identity."""
        return files.digest_json(self.identity)[:16]

    @classmethod
    def of(cls, params: Params, workspace: Workspace, manifest: Manifest) -> "TrainingJob":
        """Return the training of these settings on the packed data.

        Only settings that decide a weight are part of its identity (`Plan.deciding`). A resumed run may have another
        number of workers, or keep more checkpoints.

        Raises:
            TrainingError: there is no such model, or no such file of pretrained weights.
        """
        from ratchet import training

        plan = make_plan(params.training, seed=params.seed)
        spec = _spec(params, workspace, manifest)
        pretrained = training.find_pretrained(workspace.pretrained, params.model.pretrained)
        code = _code(spec)
        identity = {
            "data": manifest.digest,
            "settings": files.digest_json({"plan": plan.deciding(), "spec": _deciding(spec)}),
            "code": files.digest_json(code),
            "pretrained": files.digest_file(pretrained) if pretrained else "none",
        }
        return cls(plan, spec, pretrained, identity, _parts(params, plan, identity, code))


def make_plan(settings: TrainingSettings, *, seed: int) -> "training.Plan":
    """Return the settings as the plan that `ratchet.training` takes."""
    from ratchet import training

    return training.Plan(seed=seed, **settings.model_dump())


def _deciding(spec: "training.ModelSpec") -> dict[str, Any]:
    """Return what decides the model. A factory replaces the name."""
    content = spec.to_json()
    return content if spec.factory == "none" else {**content, "name": "none"}


def _code(spec: "training.ModelSpec") -> dict[str, str]:
    """Return the SHA-256 (hex) of each file of code that trains, by its path."""
    from ratchet import training

    package = Path(training.__file__).parent
    digests = {
        f"src/ratchet/training/{path.relative_to(package).as_posix()}": files.digest_file(path)
        for path in package.rglob("*.py")
    }
    return {**digests, **training.code_digests(spec)}


def _parts(
    params: Params, plan: "training.Plan", identity: dict[str, str], code: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Return everything that decides the result, by the names in params.yaml and in the project folder."""
    decides = plan.deciding()
    settings = {"seed": decides.pop("seed"), **{f"training.{name}": value for name, value in decides.items()}}
    unused = ("name",) if params.model.factory != "none" else ("code",)
    chosen = params.model.model_dump(mode="json", exclude=set(unused))
    model = {f"model.{name}": value for name, value in chosen.items()}
    data = {f"data.{name}": value for name, value in params.data.model_dump(mode="json").items()}
    return {
        "settings": {**settings, **model},
        "data": {**data, "data/packed": identity["data"]},
        "pretrained": {"the file of model.pretrained": identity["pretrained"]},
        "code": code,
    }


def _spec(params: Params, workspace: Workspace, manifest: Manifest) -> "training.ModelSpec":
    from ratchet import training

    model, root = params.model, str(workspace.root)
    code = model.code if model.factory != "none" else "none"
    training.require(model.name, factory=model.factory, code=code, root=root)
    return training.ModelSpec(
        name=model.name,
        classes=manifest.classes,
        channels=manifest.channels,
        height=manifest.height,
        width=manifest.width,
        mean=manifest.mean,
        std=manifest.std,
        dtype=manifest.dtype,
        depth=manifest.depth,
        factory=model.factory,
        code=code,
        root=root,
    )
