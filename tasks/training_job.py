"""From the settings to the inputs of a training, and the key that identifies it."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ratchet import files
from ratchet.augmentations import own_classes
from ratchet.checksums import verify
from ratchet.code.closure import closure
from ratchet.combinations import blend_fault, pruning_fault
from ratchet.data.manifest import Manifest
from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_named
from ratchet.problems import Target
from ratchet.registry.parents import continued_model
from ratchet.registry.provenance_record import ContinuedCode
from ratchet.settings.model import Params, TrainingSettings, neutral
from ratchet.weights_sources import file_of, find
from ratchet.workspace import Workspace
from tasks.code import choice, own_code

if TYPE_CHECKING:
    from ratchet import training

__all__ = ["TrainingJob", "Variant", "deciding", "make_plan"]

Variant = Literal["network", "baseline", "blend"]
_ROOTS = ("ratchet.training.fit", "ratchet.training.open_split")  # what trains, and what reads the data
_VARIANTS: dict[str, Variant] = {"baseline": "baseline", "blend": "blend"}


@dataclass(frozen=True)
class TrainingJob:
    """Everything that decides the result of a training, except the data."""

    plan: "training.Plan"
    spec: "ModelSpec"
    pretrained: Path | None
    teacher: Path | None
    variant: Variant  # what is stored: the network, the baseline, or the average of both
    identity: dict[str, str]  # digests of data, settings, code, pretrained weights and teacher
    parts: dict[str, dict[str, Any]]  # the content behind the digests, for messages; see `_parts`
    code_changes: tuple[ContinuedCode, ...] = ()  # since it began, if the user let it go on with changed code

    @property
    def code(self) -> dict[str, str]:
        """Digest of each file of code that decides a weight, by its path."""
        return self.parts["code"]

    @property
    def key(self) -> str:
        """Key of the training. It changes with any part of the identity."""
        return files.digest_json(self.identity)[:16]

    def open(self, packed: Path, split: str) -> "training.Split":
        """Open the samples of a split as the model reads them."""
        from ratchet import training

        workers, timeout = self.plan.workers, self.plan.sample_timeout
        return training.open_split(packed, split, self.spec.input, workers=workers, sample_timeout=timeout)

    def inputs(self, packed: Path) -> "training.TrainingInputs":
        """Open the samples that the training uses. The caller closes both splits."""
        from ratchet import training

        train, validation = (self.open(packed, name) for name in ("train", "validation"))
        own = (self.pretrained, self.teacher, self.identity)
        return training.TrainingInputs(train, validation, self.spec, self.plan, *own)

    @classmethod
    def of(
        cls, params: Params, workspace: Workspace, manifest: Manifest, *, packed: Path | None = None
    ) -> "TrainingJob":
        """Return the training of these settings on the packed data, which may be elsewhere than data/packed.

        Only settings that decide a weight are part of its identity (`Plan.deciding`). A resumed run may have another
        number of workers, or keep more checkpoints.

        Raises:
            TrainingError: there is no such model, no such file of pretrained weights, or no such teacher.
        """
        from ratchet import training
        from ratchet.training.transforms import Augmentation

        spec = _spec(params, workspace, manifest, packed or workspace.packed)
        plan = make_plan(params.training, spec.target, seed=params.seed, kind=spec.input.kind)
        if own_classes(params.training):
            plan = replace(plan, own_code=(str(workspace.root), params.model.code))
            for transform in Augmentation(plan).own:  # a fault in it is found before the training,
                transform.check(spec.image.shape)
        training.own_loss(plan, spec)  # and one in this
        pretrained = training.find_pretrained(
            workspace.pretrained, file_of(workspace.pretrained, params.model.pretrained)
        )
        teacher = training.find_teacher(workspace.pretrained, params.training.teacher)
        variant: Variant = _VARIANTS.get(params.model.name, "network") if spec.factory == "none" else "network"
        if plan.prune_channels:
            spec = _pruned(spec, plan, variant)
        roots = _ROOTS if variant == "network" else (*_ROOTS, "tasks.baseline")
        chosen = choice(params, variant=variant)
        own = own_code(params, workspace.root, "train")
        code = closure(roots, stage="train", choice=chosen, code=own, root=workspace.root)
        identity = {
            "data": manifest.digest,
            "settings": files.digest_json({"plan": deciding(plan), "spec": _deciding(spec), "variant": variant}),
            "code": files.digest_json(code),
            "pretrained": files.digest_file(pretrained) if pretrained else "none",
            "teacher": files.digest_tree(teacher) if teacher else "none",
        }
        return cls(plan, spec, pretrained, teacher, variant, identity, _parts(params, plan, identity, code, workspace))


def make_plan(settings: TrainingSettings, target: Target, *, seed: int, kind: str = "image") -> "training.Plan":
    """Return the settings as the plan that `ratchet.training` takes, with values for those that are `auto`.

    `kind` is that of the samples.

    Raises:
        TrainingError: the problem has no such loss or metric.
    """
    from ratchet import training

    return training.resolve_auto(training.Plan(seed=seed, **settings.model_dump()), target, kind=kind)


def deciding(plan: "training.Plan") -> dict[str, Any]:
    """Return the settings that decide the weights, by name. Later ones are left out where they change nothing."""
    usual = {
        "pieces": 1,
        "augment": "auto",
        "mixed_classes": 0,
        "nodes": 1,
        "threads": "auto",
        "shard": "none",
        "reduction": "exact",
        "sampling": "as-is",
    }
    return {name: value for name, value in _settings(plan).items() if name not in usual or value != usual[name]}


def _settings(plan: "training.Plan") -> dict[str, Any]:
    """Return the settings that can decide the weights, by name."""
    neither = neutral(plan.reduction) | {"own_code"}  # whose files count, as code
    return {name: value for name, value in asdict(plan).items() if name not in neither}


def _deciding(spec: "ModelSpec") -> dict[str, Any]:
    """Return what decides the model. A factory replaces the name."""
    content = spec.identity
    return content if spec.factory == "none" else {**content, "name": "none"}


def _parts(
    params: Params, plan: "training.Plan", identity: dict[str, str], code: dict[str, str], workspace: Workspace
) -> dict[str, dict[str, Any]]:
    """Return everything that decides the result, by the names in params.yaml and in the project folder."""
    decides = _settings(plan)
    del decides["mixed_classes"]  # it follows from the others
    settings = {"seed": decides.pop("seed"), **{f"training.{name}": value for name, value in decides.items()}}
    unused = ("name",) if params.model.factory != "none" else ("code",)
    chosen = params.model.model_dump(mode="json", exclude=set(unused))
    model = {f"model.{name}": value for name, value in chosen.items()}
    data = {f"data.{name}": value for name, value in params.data.model_dump(mode="json").items()}
    pretrained, source = identity["pretrained"], find(workspace.pretrained, params.model.pretrained)
    normalization = {"the normalization of model.pretrained": source.normalization} if source and source.mean else {}
    return {
        "settings": {**settings, **model},
        "data": {**data, "data/packed": identity["data"]},
        "pretrained": {"the file of model.pretrained": pretrained, **normalization},
        "teacher": {"the folder of training.teacher": identity["teacher"]},
        "code": code,
    }


def _pruned(spec: "ModelSpec", plan: "training.Plan", variant: Variant) -> "ModelSpec":
    from ratchet import training

    if variant != "network" and (fault := pruning_fault(plan, variant)):
        raise TrainingError(fault)
    return training.pruned_spec(spec, plan.prune_channels)


def _spec(params: Params, workspace: Workspace, manifest: Manifest, packed: Path) -> "ModelSpec":
    from ratchet import training

    model, root = params.model, str(workspace.root)
    code = model.code if model.factory != "none" or ":" in params.training.loss else "none"
    kind = manifest.input.kind
    if fault := blend_fault(model.name, kind, kind_named(kind).baseline):
        raise TrainingError(fault)
    name = training.default_name(kind) if model.name in ("auto", *_VARIANTS) else model.name
    training.require(name, kind=kind, factory=model.factory, code=code, root=root)
    input_spec = training.model_input(
        packed, manifest.input, model=name, tokenizer=model.tokenizer, context=model.context, root=root
    )
    stored = continued_model(workspace, params)
    parent = ModelSpec.from_json(stored["spec"]) if stored else None
    if parent:
        verify(workspace.pretrained / model.pretrained)
        input_spec = kind_named(kind).continued(input_spec, parent.input)
    if source := find(workspace.pretrained, model.pretrained):
        input_spec = kind_named(kind).scaled_as(input_spec, source.mean, source.std)
    target = training.model_target(input_spec, manifest.target)
    if parent:
        target = target.continued(parent.target)
    return ModelSpec(name, input_spec, target, factory=model.factory, code=code, root=root)
