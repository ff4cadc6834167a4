"""Every setting: frozen, strict models with bounds, defaults and meanings. `ratchet.settings` reads the file."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ratchet import files

__all__ = [
    "BESIDE",
    "AccessSettings",
    "AlertSettings",
    "BudgetSettings",
    "DataSettings",
    "EvaluationSettings",
    "GateSettings",
    "ModelSettings",
    "Overrides",
    "Params",
    "PlatformSettings",
    "RegistrySettings",
    "Section",
    "TrackingSettings",
    "TrainingSettings",
]


class Section(BaseModel):
    """One group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    captions: ClassVar[dict[str, str]] = {}  # by the first setting of a paragraph


Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
_HOST = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?$"
_PUBLIC = r"^(auto|https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?)$"
PublicKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$")]
_MAILBOX = r"^[^\s@<>,;]+@[^\s@<>,;]+$"


class DataSettings(Section):
    """Where the data comes from and what is let in."""

    captions: ClassVar[dict[str, str]] = {
        "label_level": "A folder of images",
        "manifest": "A table that lists pictures",
        "image_size": "What is packed, and what is let in",
        "validation_fraction": "Splits",
        "shard_mib": "The work",
        "factory": "A Dataset of your own",
    }

    source: str = Field(
        "digits", min_length=1, description="digits, image-folder, image-manifest, factory, or a torchvision set"
    )
    path: str = Field("data/raw", min_length=1, description="folder or URL it is read from, or downloaded to")
    download: bool = Field(True, description="may a torchvision set be downloaded when it is not in data.path")

    label_level: Literal["auto"] | Annotated[int, Field(ge=1, le=8)] = Field(
        "auto",
        description="level of image-folder's folders that is the class, 1: the top one; auto: 1 if that is clear",
    )

    manifest: str = Field("none", min_length=1, description="CSV, JSON or Parquet file in data.path, of image-manifest")
    path_column: str = Field("path", min_length=1, description="its column with each picture's path in data.path")
    label_column: str = Field("label", min_length=1, description="its column with the class")
    split_column: str = Field("split", min_length=1, description="its column with train, validation or test, if any")
    group_column: str = Field("group", min_length=1, description="its column with what must share a split, if any")
    classes: Literal["auto"] | Names = Field("auto", description="class names in order; auto: the labels that occur")
    drop: Names = Field((), description="columns that are not kept")
    hash: Names = Field((), description="columns kept as keyed hashes; the key is in RATCHET_HASH_KEY")
    refuse_personal: bool = Field(False, description="quarantine rows with e-mail addresses, phone or card numbers")

    image_size: Literal["auto"] | Annotated[int, Field(ge=8, le=4096)] = Field(
        "auto", description="side of the packed square images, pixels; auto: as they are if alike and <= 64, else 64"
    )
    channels: Literal["auto", 1, 3] = Field("auto", description="1 grey, 3 colour; auto: as the images are")
    depth: Literal["auto"] | Annotated[int, Field(ge=8, le=16)] = Field(
        "auto", description="bits of 16-bit grey images: 12 scales 0..4095 to 0..255; auto: of the largest value"
    )
    formats: Annotated[
        tuple[Literal["jpeg", "png", "webp", "bmp", "tiff", "ppm", "gif", "avif", "heif"], ...], Field(strict=False)
    ] = Field(
        ("jpeg", "png", "webp", "bmp", "tiff"),
        min_length=1,
        description="image formats let in; also gif (its first frame), avif, heif (needs pillow-heif), ppm",
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
    folds: Count = Field(0, description="cross-validation: parts that all but the test samples are cut into; 0: none")
    fold: Count = Field(0, description="the part held out for validation in place of data.validation_fraction, from 0")
    shard_mib: Positive = Field(256, description="largest packed file, MiB")
    workers: Count = Field(0, description="decoding threads, or processes for factory; 0: one per core")
    factory: str = Field(
        "none", pattern=r"^(none|[\w.]+:\w+)$", description="source factory: your own Dataset, package.module:function"
    )
    code: str = Field(
        "src/ratchet/training/custom_dataset.py",
        min_length=1,
        description="file or folder of data.factory's code, for DVC",
    )


class ModelSettings(Section):
    """What is trained."""

    name: str = Field("convnet", min_length=1, description="convnet, resnet, fastnet, or a torchvision.models name")
    factory: str = Field(
        "none",
        pattern=r"^(none|[\w.]+:\w+)$",
        description="your own model, package.module:function, or none",
    )
    code: str = Field(
        "src/ratchet/training/models", min_length=1, description="file or folder of model.factory's code, for DVC"
    )
    pretrained: str = Field(
        "none", min_length=1, description="file in data/pretrained with weights to begin with, or none"
    )

    @property
    def called(self) -> str:
        """What to call the model: its name, or its factory's."""
        return self.name if self.factory == "none" else self.factory


class TrainingSettings(Section):
    """How it is trained. `ratchet.training.Plan` has the same fields; docs/training.md explains each."""

    captions: ClassVar[dict[str, str]] = {
        "epochs": "How long, and how much at once",
        "loss": "The loss",
        "optimizer": "The optimizer",
        "schedule": "The learning rate's course",
        "frozen_epochs": "Transfer learning",
        "flip": "Augmentation",
        "device": "The machine",
        "best": "What is kept, and when to stop",
        "max_rollbacks": "What is done about trouble",
        "checkpoint_steps": "What is written down",
    }

    epochs: Positive = Field(30, description="passes over the training data")
    max_steps: Count = Field(0, description="stop after so many optimizer steps; 0: no limit")
    batch_size: Positive = Field(64, description="samples per optimizer step")
    accumulation: Positive = Field(1, description="micro-batches a batch is split into, to save memory")

    loss: Literal["cross-entropy", "binary-cross-entropy", "mse", "l1", "smooth-l1"] = Field(
        "cross-entropy", description="all but cross-entropy compare with one-hot targets"
    )
    label_smoothing: Fraction = Field(0.1, description="share of each target spread over all classes")
    class_weights: (
        Literal["none", "balanced"]
        | Annotated[tuple[Annotated[float, Field(gt=0.0)], ...], Field(strict=False, min_length=1)]
    ) = Field("none", description="none, balanced (the rarer the heavier), or one weight per class")
    ignore_index: int = Field(-100, description="label number whose rows count nothing in the loss")

    optimizer: Literal["sgd", "adam", "adamw", "muon"] = Field(
        "adamw", description="sgd, adam, adamw, or muon (adamw for norms, biases, embeddings and the head)"
    )
    learning_rate: float = Field(2.0e-3, gt=0.0, le=100.0, description="highest learning rate")
    momentum: Fraction = Field(0.9, description="of sgd and muon")
    nesterov: bool = Field(True, description="Nesterov momentum, of sgd and muon")
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = Field(
        (0.9, 0.999), description="of adam and adamw: averaging of gradients and of their squares"
    )
    epsilon: float = Field(1.0e-8, gt=0.0, le=1.0, description="of adam and adamw: added to the denominator")
    weight_decay: float = Field(1.0e-4, ge=0.0, le=10.0, description="decoupled for adamw and muon, else L2")
    decay_all: bool = Field(True, description="decay norms and biases too; false: weights of layers alone")
    clip_norm: float = Field(1.0, ge=0.0, description="largest gradient norm; 0: no clipping")
    clip_value: float = Field(0.0, ge=0.0, description="largest gradient element; 0: no clipping")
    ema_decay: Fraction = Field(0.0, description="moving average of the weights, which is what is kept; 0: none")

    schedule: Literal["constant", "step", "cosine", "warmup-cosine", "warmup-linear", "one-cycle", "plateau"] = Field(
        "warmup-cosine", description="constant, step, cosine, warmup-cosine, warmup-linear, one-cycle or plateau"
    )
    warmup_epochs: float = Field(1.0, ge=0.0, description="epochs of linear rise (warmup-*, and plateau)")
    final_rate: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.0, description="share of learning_rate that cosine, warmup-* and one-cycle end at"
    )
    cycle_rise: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(0.3, description="share of one-cycle that rises")
    step_epochs: Positive = Field(10, description="epochs between the falls of step")
    plateau_patience: Count = Field(3, description="epochs without a better `best` that plateau bears")
    rate_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(0.1, description="what step and plateau multiply by")

    frozen_epochs: Count = Field(0, description="first epochs in which only the head learns; epochs: all of them")
    unfreeze_epochs: Count = Field(0, description="then, epochs from one stage's thaw to the next; 0: all at once")
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="learning rate of each stage as a share of the one above it"
    )

    flip: Literal["none", "random", "alternating"] = Field(
        "none", description="mirror left to right: none, random, or alternating (every other epoch)"
    )
    crop_padding: Count = Field(1, description="shift by up to so many pixels")
    crop_fill: Literal["zeros", "reflect"] = Field("zeros", description="what a shift brings in")
    progressive_sizes: (
        Literal["none"] | Annotated[tuple[Annotated[int, Field(ge=4)], ...], Field(strict=False, min_length=1)]
    ) = Field("none", description="side of the images in each epoch, pixels, the last for the rest; none: as packed")
    cutout: Count = Field(0, description="side of a square that is blanked out, pixels; 0: none")

    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, mps, cuda or cuda:N")
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        "auto", description="auto (the fastest that is safe on the device), fp32, tf32, bf16 or fp16"
    )
    channels_last: Literal["auto"] | bool = Field("auto", description="memory layout of convolutions; auto: if it pays")
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = Field(
        "none", description="torch.compile's mode; none: not compiled"
    )
    gradient_checkpointing: bool = Field(False, description="compute activations twice, to save memory")
    deterministic: bool = Field(True, description="refuse operations that differ from run to run")
    workers: Count = Field(0, description="processes that load the samples of data.factory; 0: none but this one")
    sample_timeout: float = Field(
        300.0, ge=0.0, description="seconds that data.factory may take for one sample; 0: no limit"
    )

    best: Literal["validation/accuracy", "validation/balanced_accuracy", "validation/f1", "validation/loss"] = Field(
        "validation/accuracy", description="what the kept model is best at"
    )
    patience: Count = Field(0, description="stop after so many epochs without a better one; 0: never")
    min_delta: float = Field(0.0, ge=0.0, description="what counts as better, in units of `best`")
    overfit_gap: float = Field(
        0.1, gt=0.0, description="training minus validation accuracy at which over-fitting is said"
    )

    max_rollbacks: Count = Field(3, description="times a loss that is not finite sends the run back to its checkpoint")
    rollback_factor: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.5, description="what the learning rate is multiplied by each time"
    )
    doctor: Literal["auto", "always", "never"] = Field(
        "auto", description="look for silent bugs before the first step; auto: before a long run"
    )

    checkpoint_steps: Count = Field(200, description="steps between checkpoints inside an epoch; 0: at its end only")
    keep_last: Positive = Field(2, description="newest checkpoints kept")
    keep_best: Positive = Field(1, description="best checkpoints kept")
    log_every: Positive = Field(10, description="steps between logged points")
    profile: Count = Field(0, description="steps to trace with torch.profiler, after the first few; 0: none")


class BudgetSettings(Section):
    """What one training may take, over all its attempts. Spent, it stops at a checkpoint; raised, the same goes on."""

    wall_hours: float = Field(0.0, ge=0.0, description="hours on the clock; 0: no limit")
    cpu_hours: float = Field(0.0, ge=0.0, description="hours of one core; 0: no limit")
    gpu_hours: float = Field(0.0, ge=0.0, description="hours of one GPU; 0: no limit")


class EvaluationSettings(Section):
    """How the model is measured on the test rows."""

    confidence: float = Field(0.95, gt=0.5, lt=1.0, description="level of every interval")
    resamples: int = Field(2000, ge=100, le=1_000_000, description="bootstrap resamples")
    top_k: int = Field(3, ge=2, description="k of top-k accuracy")
    calibration_bins: int = Field(15, ge=2, le=1000, description="bins of the calibration error")
    slices: Literal["auto"] | Names = Field(
        "auto", description="columns whose values are measured apart; auto: brightness, contrast, size and your own"
    )
    slice_rows: int = Field(20, ge=1, description="rows that a slice needs to be measured")
    robustness_rows: Literal["auto"] | Count = Field(
        "auto", description="test rows answered again with spoilt pictures; auto: 500, fewer if large; 0: none"
    )
    explained_errors: int = Field(12, ge=0, le=24, description="worst errors that the report explains; 0: none")
    flip_average: bool = Field(False, description="average the answers to an image and to its mirror image")
    temperature_scaling: bool = Field(False, description="fit a temperature on validation and apply it")


class GateSettings(Section):
    """What a model must show before it is registered."""

    minimum_accuracy: Annotated[float, Field(ge=0.0, le=1.0)] = Field(0.5, description="lowest test accuracy")
    champion: Literal["better", "not-worse"] = Field(
        "better", description="what to show against the champion, same rows"
    )
    tolerance: Fraction = Field(0.0, description="accuracy by which not-worse may fall short")
    confidence: float = Field(
        0.95,
        gt=0.5,
        lt=1.0,
        description="confidence of all comparisons with one champion on the same test rows together",
    )
    classes: Literal["same", "may-grow", "may-change"] = Field(
        "same",
        description="may the classes differ from the champion's? may-grow: more classes; may-change: other classes",
    )
    minimum_rows: int = Field(
        100, ge=1, description="fewest unseen test rows to compare on; or half of the test rows, if that is less"
    )
    reserved_fraction: Fraction = Field(
        0.0, description="share of the test rows kept out of every comparison; the model card has the accuracy on them"
    )
    slice_tolerance: Fraction = Field(0.0, description="accuracy by which a slice may be worse than the champion's")
    calibration_error: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.25, description="largest calibration error, beyond chance; 1: no rule"
    )
    latency_factor: float = Field(4.0, ge=0.0, description="times the champion's seconds it may take; 0: no rule")
    size_factor: float = Field(10.0, ge=0.0, description="times the champion's bytes its weights may take; 0: no rule")
    export_difference: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.0001, description="probability by which its exported program may differ; 1: no rule"
    )


class RegistrySettings(Section):
    """Where a passing model goes."""

    model: str = Field("auto", min_length=1, description="registered model's name; auto: the data's name")
    promotion: Literal["automatic", "manual"] = Field(
        "automatic", description="who moves champion: the gate or a person"
    )
    export: Literal["onnx", "none"] = Field("onnx", description="the program stored beside the weights")
    purpose: str = Field("", description="what the model is for and for whom, as its card says it; empty: its classes")
    ledger: str = Field(
        "sqlite:///mlruns/ledger.db", min_length=1, description="database of the ledger: SQLite, or postgresql://..."
    )
    ledger_keys: Annotated[tuple[PublicKey, ...], Field(strict=False)] = Field(
        (), description="Ed25519 public keys (base64), one of which must sign each ledger entry; empty: no signatures"
    )
    ledger_signed_from: int = Field(1, ge=1, description="number of the first ledger entry that must be signed")


People = Literal["everyone"] | Names


class AccessSettings(Section):
    """Who may do what, by the names that this machine's users have."""

    runners: People = Field("everyone", description="may register models, as train-flow does")
    approvers: People = Field("everyone", description="may approve a version")
    admins: People = Field("everyone", description="may promote, roll back, repair, adopt and recover")
    four_eyes: bool = Field(False, description="nobody approves what they ran; needs registry.promotion: manual")


class TrackingSettings(Section):
    """Where runs are recorded."""

    uri: str = Field("sqlite:///mlruns/mlflow.db", min_length=1, description="MLflow tracking address")
    experiment: str = Field("ratchet", min_length=1, description="MLflow experiment")
    artifacts: str = Field(
        "auto",
        min_length=1,
        description="where a new experiment's files go: a folder or s3://...; auto: mlruns/artifacts",
    )
    tensorboard: bool = Field(False, description="write all curves to mlruns/tensorboard too")


class PlatformSettings(Section):
    """The local servers."""

    captions: ClassVar[dict[str, str]] = {
        "host": "Where they are",
        "worker_runs": "How much at once; `ratchet up` tells Prefect's server, docs/deploy.md explains",
    }

    host: str = Field(
        "127.0.0.1", min_length=1, description="address the servers listen on; beyond loopback they need passwords"
    )
    public_url: str = Field(
        "auto",
        pattern=_PUBLIC,
        description="Prefect's address for browsers and other machines: https://HOST; auto: host and port",
    )
    mlflow_public_url: str = Field(
        "auto",
        pattern=_PUBLIC,
        description="the same for MLflow; auto: the host of public_url, or of host, and mlflow_port",
    )
    allowed_hosts: Annotated[tuple[Annotated[str, Field(pattern=_HOST)], ...], Field(strict=False)] = Field(
        (), description="further names that requests may use for the servers: HOST or HOST:PORT"
    )
    prefect_port: int = Field(4200, ge=1024, le=65535, description="Prefect server's port")
    prefect_database: str = Field(
        "auto",
        pattern="^(auto|postgresql://.+)$",
        description="its database: postgresql://...; auto: SQLite in .ratchet",
    )
    prefect_api: str = Field(
        "auto",
        pattern="^(auto|https?://[^/]+/api)$",
        description="Prefect's API for all machines: http://HOST:4200/api; auto: this one's",
    )
    mlflow_port: int = Field(5000, ge=1024, le=65535, description="MLflow server's port")
    lost_after: int = Field(
        600, ge=60, description="seconds of a worker's silence, its machine gone, after which its runs have crashed"
    )

    worker_runs: Positive = Field(
        1, description="runs that the worker carries out at once; in one folder they take turns"
    )
    queue_runs: Count = Field(0, description="runs of the work queue `default`, over all workers; 0: no limit")
    person_runs: Count = Field(0, description="runs of train-flow of one person, over all workers; 0: no limit")
    gpus: Count = Field(0, description="GPUs that trainings hold, over all workers; 0: no limit")
    person_gpus: Count = Field(0, description="GPUs that one person's trainings hold, over all workers; 0: no limit")


class AlertSettings(Section):
    """Who is told of trouble, and what of this machine is trouble; docs/operate.md."""

    captions: ClassVar[dict[str, str]] = {
        "webhook": "Who is told",
        "smtp": "The mail server; its password is in RATCHET_ALERTS_SMTP_PASSWORD",
        "free_disk_gib": "What of this machine is trouble",
    }

    webhook: str = Field(
        "none",
        pattern=r"^(none|environment|https?://[^\s/]+(/\S*)?)$",
        description="http(s) address, none, or environment: the one in RATCHET_ALERTS_WEBHOOK, for a secret one",
    )
    email_to: Annotated[tuple[Annotated[str, Field(pattern=_MAILBOX)], ...], Field(strict=False)] = Field(
        (), description="e-mail addresses; empty: no e-mail"
    )
    email_from: str = Field(
        "auto", pattern=f"^auto$|{_MAILBOX}", description="the sender's e-mail address; auto: ratchet@ this machine"
    )

    smtp: str = Field(
        "localhost:25", pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:@/\[\]]+):[0-9]{1,5}$", description="HOST:PORT"
    )
    smtp_security: Literal["none", "starttls", "tls"] = Field("none", description="none, starttls or tls")
    smtp_user: str = Field("none", min_length=1, description="who signs in there; none: nobody need")

    free_disk_gib: float = Field(5.0, ge=0.0, description="free space below which it is told, GiB; 0: never")
    memory_used: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.95, description="share of memory in use above which it is told; 1: never"
    )
    gpu_memory_used: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.98, description="the same of a GPU's memory; 1: never"
    )

    @property
    def asked(self) -> bool:
        """Is anybody to be told?"""
        return self.webhook != "none" or bool(self.email_to)


class Params(Section):
    """Every setting."""

    seed: int = Field(
        0, ge=0, le=2**64 - 1, description="decides order, augmentation and initial weights, never the splits"
    )
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    budget: BudgetSettings = BudgetSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    gate: GateSettings = GateSettings()
    registry: RegistrySettings = RegistrySettings()
    access: AccessSettings = AccessSettings()
    tracking: TrackingSettings = TrackingSettings()
    platform: PlatformSettings = PlatformSettings()
    alerts: AlertSettings = AlertSettings()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of every setting."""
        return files.digest_json(self.model_dump(mode="json"))


BESIDE = frozenset({"access", "alerts", "budget", "platform"})
"""Sections that decide nothing that a stage makes: dvc.yaml names them nowhere, and they may change meanwhile."""


class _Partial(Section):
    """Some settings of a section. What is None or left out has the file's value."""

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema for a form and its checks: each field is optional, and none is `T or null`.

        A check then names the field and the bound that was missed, and not all that was allowed instead.
        """
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, field in properties.items():
            properties[name] = _flattened(field)
        return schema


_BOUNDS = {
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
}


def _flattened(field: JsonSchemaValue) -> JsonSchemaValue:
    """A field's schema without null; choices of all alternatives in one list, and their bounds on the field itself."""
    about = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    allowed = [one for one in field.get("anyOf", ()) if one != {"type": "null"}]
    choices: list[Any] = []
    others: list[JsonSchemaValue] = []
    for one in allowed:
        if one.get("type") == "boolean":
            choices += [True, False]  # a switch that nobody has touched would be sent as false
        elif "const" in one:
            choices.append(one["const"])
        elif "enum" in one:
            choices += one["enum"]
        else:
            about |= {key: value for key, value in one.items() if key in _BOUNDS}  # each is for one type only
            others.append({key: value for key, value in one.items() if key not in _BOUNDS})
    if not others:
        return {**about, "enum": choices} if choices else about
    if choices:
        others.insert(0, {"enum": choices})
    return {**about, **others[0]} if len(others) == 1 else {**about, "anyOf": others}


def _partial(section: type[Section], *, without: tuple[str, ...] = (), group: str = "") -> type[_Partial]:
    """The same section with every key optional, `without` these dotted ones: None leaves the file's value."""
    fields: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if group + name in without:
            continue
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            inner = _partial(annotation, without=without, group=f"{name}.")
            fields[name] = (inner | None, Field(None, title=name, description=annotation.__doc__))
            continue
        constrained = Annotated[annotation, *field.metadata] if field.metadata else annotation
        fields[name] = (constrained | None, Field(None, title=name, description=field.description))
    name = section.__name__.removesuffix("Settings") + "Overrides"
    return create_model(name, __base__=_Partial, __doc__=section.__doc__, **fields)


Overrides: type[_Partial] = _partial(
    Params,
    without=(
        "access",
        "platform",
        "alerts",
        "registry.ledger",
        "registry.ledger_keys",
        "registry.ledger_signed_from",
        "registry.promotion",
    ),
)
"""What a flow's caller may change: `Params` with every key optional. Typed, so that Prefect's form can check it.

Who may do what, who promotes, where that is noted, the servers, how much anybody may hold at once and who is told of
trouble are not theirs to change.
"""
