"""From the settings to what the loop is told, and the name of the training that this is."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.params import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet import training

__all__ = ["Course"]


@dataclass(frozen=True)
class Course:
    """All that decides a training's result."""

    plan: "training.Plan"
    spec: "training.ModelSpec"
    pretrained: Path | None
    identity: dict[str, str]  # digests of data, settings, code and pretrained weights

    @property
    def key(self) -> str:
        """Names the training; another of any of its parts has another."""
        return files.digest_json(self.identity)[:16]

    @classmethod
    def of(cls, params: Params, workspace: Workspace, manifest: Manifest) -> "Course":
        """The training that the settings ask for, on the packed data.

        Raises:
            TrainingError: there is no such model, or no such file of pretrained weights.
        """
        from ratchet import training

        plan = training.Plan(seed=params.seed, **params.training.model_dump())
        spec = _spec(params, workspace, manifest)
        pretrained = training.find_pretrained(workspace.pretrained, params.model.pretrained)
        house = Path(training.__file__).parent
        identity = {
            "data": manifest.digest,
            # Without the number of workers, which changes no bit: a resume may have another.
            "settings": files.digest_json({"plan": asdict(replace(plan, workers=0)), "spec": spec.to_json()}),
            "code": files.digest_json(
                {"house": files.digest_tree(house, ["**/*.py"]), "own": training.code_digests(spec)}
            ),
            "pretrained": files.digest_file(pretrained) if pretrained else "none",
        }
        return cls(plan, spec, pretrained, identity)


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
        factory=model.factory,
        code=code,
        root=root,
    )
