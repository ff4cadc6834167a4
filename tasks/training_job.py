"""From the settings to what the loop is told, and the name of the training that this is."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet import training

__all__ = ["TrainingJob"]


@dataclass(frozen=True)
class TrainingJob:
    """All that decides a training's result."""

    plan: "training.Plan"
    spec: "training.ModelSpec"
    pretrained: Path | None
    identity: dict[str, str]  # digests of data, settings, code and pretrained weights
    parts: dict[str, dict[str, Any]]  # what they are digests of, for a person; see `_parts`

    @property
    def key(self) -> str:
        """Names the training; another of any of its parts has another."""
        return files.digest_json(self.identity)[:16]

    @classmethod
    def of(cls, params: Params, workspace: Workspace, manifest: Manifest) -> "TrainingJob":
        """The training that the settings ask for, on the packed data.

        Only what decides a weight is part of its identity: `Plan.deciding`, and not how often it is written down. A
        resumed run may have another number of workers, or keep more checkpoints.

        Raises:
            TrainingError: there is no such model, or no such file of pretrained weights.
        """
        from ratchet import training

        plan = training.Plan(seed=params.seed, **params.training.model_dump())
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


def _deciding(spec: "training.ModelSpec") -> dict[str, Any]:
    """A factory takes the place of the name."""
    content = spec.to_json()
    return content if spec.factory == "none" else {**content, "name": "none"}


def _code(spec: "training.ModelSpec") -> dict[str, str]:
    """SHA-256 (hex) of each file of code that trains, by its path."""
    from ratchet import training

    house = Path(training.__file__).parent
    digests = {
        f"src/ratchet/training/{path.relative_to(house).as_posix()}": files.digest_file(path)
        for path in house.rglob("*.py")
    }
    return {**digests, **training.code_digests(spec)}


def _parts(
    params: Params, plan: "training.Plan", identity: dict[str, str], code: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """What decides the result, as params.yaml and the project folder name it."""
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
