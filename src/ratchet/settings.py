"""params.yaml -> frozen, strict `Params`: the only reader of the file, and its only writer.

A key that is missing is refused as one that is unknown is: the file holds every setting, so that DVC, which tracks its
keys, sees everything that decides a result.
"""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from ratchet import faults, files
from ratchet.errors import SettingsError

__all__ = ["Overrides", "Params", "flatten", "load", "override", "parse_assignments", "template"]


class Section(BaseModel):
    """One group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


class DataSettings(Section):
    """Where the data comes from and what is let in."""

    source: str = Field("digits", min_length=1, description="digits, image-folder, or a torchvision.datasets class")
    path: str = Field("data/raw", min_length=1, description="folder the source is read from or downloaded to")
    download: bool = Field(True, description="may a torchvision set be downloaded when it is not in data.path")
    image_size: Literal["auto"] | Annotated[int, Field(ge=8, le=4096)] = Field(
        "auto", description="side of the packed square images, pixels; auto: as they are if alike and <= 64, else 64"
    )
    channels: Literal["auto", 1, 3] = Field("auto", description="1 grey, 3 colour; auto: as the images are")
    formats: Annotated[tuple[Literal["jpeg", "png", "webp", "bmp", "tiff", "ppm"], ...], Field(strict=False)] = Field(
        ("jpeg", "png", "webp", "bmp", "tiff"), min_length=1, description="image formats let in"
    )
    min_side: Positive = Field(4, description="shortest side let in, pixels")
    max_pixels: Positive = Field(50_000_000, description="largest image let in, pixels; bigger ones are not decoded")
    max_aspect: float = Field(10.0, ge=1.0, description="longest side over shortest side let in")
    min_per_class: Positive = Field(2, description="training examples that every class must have")
    max_bad_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.05, description="share of bad samples above which the run stops"
    )
    validation_fraction: Fraction = Field(0.15, description="share held out for validation where none is given")
    test_fraction: Fraction = Field(0.15, description="share held out for testing where none is given")
    shard_mib: Positive = Field(256, description="largest packed file, MiB")
    workers: Count = Field(0, description="decoding threads; 0: one per core")


class ModelSettings(Section):
    """What is trained."""

    name: str = Field("convnet", min_length=1, description="convnet, resnet, or a torchvision.models name")


class TrainingSettings(Section):
    """How it is trained. `ratchet.training.Plan` has the same fields."""

    epochs: Positive = Field(30, description="passes over the training data")
    max_steps: Count = Field(0, description="stop after so many optimizer steps; 0: no limit")
    batch_size: Positive = Field(64, description="samples per optimizer step")
    accumulation: Positive = Field(1, description="micro-batches a batch is split into, to save memory")
    optimizer: Literal["sgd", "adamw"] = Field("adamw", description="sgd (with momentum) or adamw")
    learning_rate: float = Field(2.0e-3, gt=0.0, le=100.0, description="highest learning rate")
    momentum: Fraction = Field(0.9, description="sgd's momentum")
    nesterov: bool = Field(True, description="sgd's Nesterov momentum")
    weight_decay: float = Field(1.0e-4, ge=0.0, le=10.0, description="decoupled for adamw, L2 for sgd")
    schedule: Literal["constant", "cosine", "warmup-cosine"] = Field(
        "warmup-cosine", description="learning rate's course"
    )
    warmup_epochs: float = Field(1.0, ge=0.0, description="epochs of linear warm-up (warmup-cosine)")
    label_smoothing: Fraction = Field(0.1, description="share of each target spread over all classes")
    clip_norm: float = Field(1.0, ge=0.0, description="largest gradient norm; 0: no clipping")
    clip_value: float = Field(0.0, ge=0.0, description="largest gradient element; 0: no clipping")
    flip: bool = Field(False, description="augment by mirroring left to right")
    crop_padding: Count = Field(1, description="augment by shifting up to so many pixels")
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, mps, cuda or cuda:N")
    precision: Literal["fp32", "bf16"] = Field("fp32", description="fp32 or bf16 (autocast)")
    channels_last: bool = Field(
        False, description="memory layout of convolutions; pays with bf16, costs on tiny images"
    )
    deterministic: bool = Field(True, description="refuse operations that differ from run to run")
    best: Literal["validation/accuracy", "validation/loss"] = Field(
        "validation/accuracy", description="what the kept model is best at"
    )
    patience: Count = Field(0, description="stop after so many epochs without a better one; 0: never")
    min_delta: float = Field(0.0, ge=0.0, description="what counts as better, in units of `best`")
    overfit_gap: float = Field(
        0.1, gt=0.0, description="training minus validation accuracy at which over-fitting is said"
    )
    checkpoint_steps: Count = Field(200, description="steps between checkpoints inside an epoch; 0: at its end only")
    keep_last: Positive = Field(2, description="newest checkpoints kept")
    keep_best: Positive = Field(1, description="best checkpoints kept")
    log_every: Positive = Field(10, description="steps between logged points")


class EvaluationSettings(Section):
    """How the model is measured on the test rows."""

    confidence: float = Field(0.95, gt=0.5, lt=1.0, description="level of every interval")
    resamples: int = Field(2000, ge=100, le=1_000_000, description="bootstrap resamples")
    top_k: int = Field(3, ge=2, description="k of top-k accuracy")
    calibration_bins: int = Field(15, ge=2, le=1000, description="bins of the calibration error")
    temperature_scaling: bool = Field(False, description="fit a temperature on validation and apply it")


class GateSettings(Section):
    """What a model must show before it is registered."""

    minimum_accuracy: Annotated[float, Field(ge=0.0, le=1.0)] = Field(0.5, description="lowest test accuracy")
    champion: Literal["better", "not-worse"] = Field(
        "better", description="what to show against the champion, same rows"
    )
    tolerance: Fraction = Field(0.0, description="accuracy by which not-worse may fall short")


class RegistrySettings(Section):
    """Where a passing model goes."""

    model: str = Field("auto", min_length=1, description="registered model's name; auto: the data's name")
    promotion: Literal["automatic", "manual"] = Field(
        "automatic", description="who moves champion: the gate or a person"
    )


class TrackingSettings(Section):
    """Where runs are recorded."""

    uri: str = Field("sqlite:///mlruns/mlflow.db", min_length=1, description="MLflow tracking address")
    experiment: str = Field("ratchet", min_length=1, description="MLflow experiment")


class PlatformSettings(Section):
    """The local servers."""

    host: str = Field("127.0.0.1", min_length=1, description="address the servers listen on")
    prefect_port: int = Field(4200, ge=1024, le=65535, description="Prefect server's port")
    mlflow_port: int = Field(5000, ge=1024, le=65535, description="MLflow server's port")


class Params(Section):
    """Every setting."""

    seed: Count = Field(0, description="decides order, augmentation and initial weights, never the splits")
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    gate: GateSettings = GateSettings()
    registry: RegistrySettings = RegistrySettings()
    tracking: TrackingSettings = TrackingSettings()
    platform: PlatformSettings = PlatformSettings()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of every setting."""
        return files.digest_json(self.model_dump(mode="json"))


def _partial(section: type[Section]) -> type[Section]:
    """The same section with every key optional: None leaves the file's value."""
    fields: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            fields[name] = (_partial(annotation) | None, Field(None, title=name, description=annotation.__doc__))
            continue
        constrained = Annotated[annotation, *field.metadata] if field.metadata else annotation
        fields[name] = (constrained | None, Field(None, title=name, description=field.description))
    name = section.__name__.removesuffix("Settings") + "Overrides"
    return create_model(name, __base__=Section, __doc__=section.__doc__, **fields)


Overrides: type[Section] = _partial(Params)
"""What a flow's caller may change: `Params` with every key optional. Typed, so that Prefect's form can check it."""


def template() -> str:
    """params.yaml as it is shipped: every setting with its default, its meaning in a comment."""
    lines = [
        "# Every setting of the pipeline. DVC tracks the keys one by one; the flow, `dvc repro` and `ratchet` read",
        "# this file and nothing else. Change one by hand, with `ratchet set training.epochs=3`, or as you train, with",
        "# `ratchet train --set training.epochs=3`.",
        "",
    ]
    for name, field in Params.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, Section):
            lines += ["", f"{name}:  # {group.__doc__}"]
            lines += [f"  {_line(inner, inside)}" for inner, inside in group.model_fields.items()]
        else:
            lines.append(_line(name, field))
    return "\n".join(lines) + "\n"


def load(path: Path) -> Params:
    """Read and check the whole file.

    Raises:
        SettingsError: with every fault at once, each naming the key, the value, what is allowed and the way out.
    """
    return _check(_read(path), path)


def override(path: Path, changes: Mapping[str, object]) -> Params:
    """Set dotted keys in the file, comments kept, and return the result; a bad change leaves the file as it is.

    This is what `dvc exp run -S` does, so that the file, dvc.lock and MLflow agree on what ran.
    """
    document = _read(path)
    known = faults.dotted_keys(Params)
    told = [faults.unknown(Params, key, _plain(value)) for key, value in changes.items() if key not in known]
    if told:
        raise SettingsError("\n".join(f"{path.name}: {sentence}" for sentence in told))
    if not changes or not all(_holds(document, key) for key in changes):
        return _check(document, path)  # says what is missing
    before = path.read_text(encoding="utf-8")
    after = _edited(before, changes)
    params = _check(_yaml().load(after), path)
    if after != before:
        files.write_text(path, after)
    return params


def _edited(text: str, changes: Mapping[str, object]) -> str:
    """The file's text with those values put in the place of the old ones, and not a space elsewhere changed."""
    places, root = [], _yaml().compose(text)
    for key, value in changes.items():
        node = root
        for part in key.split("."):
            node = next(child for name, child in node.value if name.value == part)
        start, end = node.start_mark.index, node.end_mark.index
        spelled = " " * (text[start - 1] == ":") + _spelled(value) + "\n" * text[start:end].endswith("\n")
        places.append((start, end, spelled))
    for start, end, spelled in sorted(places, reverse=True):
        text = text[:start] + spelled + text[end:]
    return text


def _spelled(value: object) -> str:
    """A value as YAML writes it on one line."""
    yaml, line = _yaml(), StringIO()
    yaml.default_flow_style = True
    yaml.width = 100_000
    yaml.dump({"": list(value) if isinstance(value, tuple) else value}, line)
    return line.getvalue().strip()[1:-1].partition(":")[2].strip()


def parse_assignments(assignments: list[str]) -> dict[str, object]:
    """`["training.epochs=3"]` -> `{"training.epochs": 3}`; values are read as YAML, as in the file."""
    from ruamel.yaml.error import YAMLError

    changes: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise SettingsError(f"{assignment}: write KEY=VALUE, for example training.epochs=3")
        try:
            changes[key.strip()] = _yaml().load(value)
        except YAMLError as error:
            problem = getattr(error, "problem", None) or str(error)
            raise SettingsError(
                f"{assignment}: the value is not YAML ({problem}); write it as params.yaml would, for example "
                "training.epochs=3 or 'data.formats=[jpeg, png]'"
            ) from None
    return changes


def flatten(changes: Section) -> dict[str, object]:
    """The dotted keys that an `Overrides` sets."""

    def walk(content: Mapping[str, Any], prefix: str) -> dict[str, object]:
        flat: dict[str, object] = {}
        for key, value in content.items():
            if isinstance(value, Mapping):
                flat |= walk(value, f"{prefix}{key}.")
            elif value is not None:
                flat[prefix + key] = value
        return flat

    return walk(changes.model_dump(exclude_none=True), "")


def _line(name: str, field: FieldInfo) -> str:
    default = faults.spell(field.default)
    return f"{name}: {default}  # {field.description} (default: {default})"


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 200
    return yaml


def _read(path: Path) -> Any:
    from ruamel.yaml.error import YAMLError

    try:
        document = _yaml().load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: not there; restore it with `git checkout params.yaml`") from None
    except (YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" line {place.line + 1}" if place else ""
        problem = getattr(error, "problem", None) or str(error)
        raise SettingsError(f"{path}{where}: not YAML ({problem}); mend that line") from None
    if not isinstance(document, Mapping):
        found = "nothing" if document is None else "a list" if isinstance(document, list) else f"only {document!r}"
        raise SettingsError(
            f"{path}: holds {found}; allowed: groups of settings; restore it with `git checkout params.yaml`"
        )
    return document


def _check(document: Mapping[str, Any], path: Path) -> Params:
    told = [
        faults.missing(key, default) for key, default in faults.dotted_keys(Params).items() if not _holds(document, key)
    ]
    params = None
    try:
        params = Params.model_validate(_plain(document))
    except ValidationError as error:
        told += faults.explain(Params, error.errors())
    if params is None or told:
        raise SettingsError("\n".join(f"{path.name}: {sentence}" for sentence in told))
    held_out = params.data.validation_fraction + params.data.test_fraction
    if held_out >= 1.0:
        raise SettingsError(
            f"{path.name}: data.validation_fraction + data.test_fraction is {held_out:g}; allowed: below 1, or nothing "
            "is left to train on; lower one of them"
        )
    return params


def _plain(node: Any) -> Any:
    """ruamel's containers and scalars as Python's own: strict checking takes no subclass."""
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _holds(document: Mapping[str, Any], key: str) -> bool:
    node: Any = document
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return True  # a wrong type: told once, as that
        if part not in node:
            return False
        node = node[part]
    return True
