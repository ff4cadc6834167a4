"""Every setting: its default, bounds and description. The only source of params.yaml, the schema and docs tables."""

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
    """One section of params.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    captions: ClassVar[dict[str, str]] = {}  # title of a group of settings, by its first setting


Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
_HOST = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?$"
_PUBLIC = r"^(auto|https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?)$"
PublicKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$")]
_MAILBOX = r"^[^\s@<>,;]+@[^\s@<>,;]+$"


class DataSettings(Section):
    """Data source, and the rules for samples."""

    captions: ClassVar[dict[str, str]] = {
        "label_level": "Source image-folder",
        "manifest": "Source image-manifest: a table that lists images",
        "image_size": "Packing, and which images are accepted",
        "validation_fraction": "Splits",
        "shard_mib": "Resources",
        "factory": "Source factory: your own Dataset",
    }

    source: str = Field(
        "digits", min_length=1, description="digits, image-folder, image-manifest, factory, or a torchvision data set"
    )
    path: str = Field("data/raw", min_length=1, description="folder or URL of the data; downloads are stored there")
    download: bool = Field(True, description="download a torchvision data set if it is not in data.path")

    label_level: Literal["auto"] | Annotated[int, Field(ge=1, le=8)] = Field(
        "auto",
        description="folder level that is the class; 1: the top level; auto: 1 if the folders are unambiguous",
    )

    manifest: str = Field("none", min_length=1, description="CSV, JSON or Parquet file in data.path")
    path_column: str = Field("path", min_length=1, description="column with the path of each image in data.path")
    label_column: str = Field("label", min_length=1, description="column with the class")
    split_column: str = Field("split", min_length=1, description="column with train, validation or test; may be absent")
    group_column: str = Field(
        "group", min_length=1, description="column with a group whose samples stay in one split; may be absent"
    )
    classes: Literal["auto"] | Names = Field(
        "auto", description="class names in order; auto: the labels found in the data"
    )
    drop: Names = Field((), description="columns to leave out")
    hash: Names = Field((), description="columns to keep as keyed hashes; the key is in RATCHET_HASH_KEY")
    refuse_personal: bool = Field(
        False, description="quarantine samples with e-mail addresses, phone or card numbers in the table"
    )

    image_size: Literal["auto"] | Annotated[int, Field(ge=8, le=4096)] = Field(
        "auto",
        description="side of the packed square images, pixels; auto: their own size if equal and at most 64, else 64",
    )
    channels: Literal["auto", 1, 3] = Field("auto", description="1: grey, 3: colour; auto: as in the images")
    depth: Literal["auto"] | Annotated[int, Field(ge=8, le=16)] = Field(
        "auto",
        description="bits of 16-bit grey images: 12 scales 0..4095 to 0..255; auto: from the largest value",
    )
    formats: Annotated[
        tuple[Literal["jpeg", "png", "webp", "bmp", "tiff", "ppm", "gif", "avif", "heif"], ...], Field(strict=False)
    ] = Field(
        ("jpeg", "png", "webp", "bmp", "tiff"),
        min_length=1,
        description="accepted image formats; also possible: gif (first frame), avif, heif (needs pillow-heif), ppm",
    )
    min_side: Positive = Field(4, description="shortest accepted side, pixels")
    max_pixels: Positive = Field(50_000_000, description="largest accepted image, pixels; larger ones are not decoded")
    max_aspect: float = Field(10.0, ge=1.0, description="largest accepted ratio of long side to short side")
    min_per_class: Positive = Field(2, description="training samples that every class must have")
    max_bad_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.05, description="stop the run if a larger share of the samples is bad"
    )
    validation_fraction: Fraction = Field(
        0.15, description="share of samples for validation, if the data have no split"
    )
    test_fraction: Fraction = Field(0.15, description="share of samples for testing, if the data have no split")
    folds: Count = Field(0, description="cross-validation: number of folds of all samples except test; 0: none")
    fold: Count = Field(0, description="cross-validation: fold used for validation, from 0")
    shard_mib: Positive = Field(256, description="largest packed file, MiB")
    workers: Count = Field(0, description="decoding threads, or processes for source factory; 0: one per core")
    factory: str = Field(
        "none", pattern=r"^(none|[\w.]+:\w+)$", description="your own Dataset, as package.module:function, or none"
    )
    code: str = Field(
        "src/ratchet/training/custom_dataset.py",
        min_length=1,
        description="file or folder with the code of data.factory, tracked by DVC",
    )


class ModelSettings(Section):
    """Model architecture and initial weights."""

    name: str = Field("convnet", min_length=1, description="convnet, resnet, fastnet, or a torchvision.models name")
    factory: str = Field(
        "none",
        pattern=r"^(none|[\w.]+:\w+)$",
        description="your own model, as package.module:function, or none",
    )
    code: str = Field(
        "src/ratchet/training/models",
        min_length=1,
        description="file or folder with the code of model.factory, tracked by DVC",
    )
    pretrained: str = Field("none", min_length=1, description="file of initial weights in data/pretrained, or none")

    @property
    def called(self) -> str:
        """Name of the model, or of its factory."""
        return self.name if self.factory == "none" else self.factory


class TrainingSettings(Section):
    """Training. docs/training.md has advice on each setting."""

    captions: ClassVar[dict[str, str]] = {
        "epochs": "Duration and batches",
        "loss": "Loss",
        "optimizer": "Optimizer",
        "schedule": "Learning rate schedule",
        "frozen_epochs": "Transfer learning",
        "flip": "Augmentation",
        "device": "Hardware",
        "best": "Best model and early stopping",
        "max_rollbacks": "Recovery and checks",
        "checkpoint_steps": "Checkpoints and logging",
    }

    epochs: Positive = Field(30, description="passes over the training data")
    max_steps: Count = Field(0, description="stop after this many optimizer steps; 0: no limit")
    batch_size: Positive = Field(64, description="samples per optimizer step")
    accumulation: Positive = Field(1, description="micro-batches per batch; more of them need less memory")

    loss: Literal["cross-entropy", "binary-cross-entropy", "mse", "l1", "smooth-l1"] = Field(
        "cross-entropy", description="all except cross-entropy compare with one-hot targets"
    )
    label_smoothing: Fraction = Field(0.1, description="share of each target that is spread over all classes")
    class_weights: (
        Literal["none", "balanced"]
        | Annotated[tuple[Annotated[float, Field(gt=0.0)], ...], Field(strict=False, min_length=1)]
    ) = Field("none", description="none, balanced (rare classes weigh more), or one weight per class")
    ignore_index: int = Field(-100, description="samples with this label number are left out of the loss")

    optimizer: Literal["sgd", "adam", "adamw", "muon"] = Field(
        "adamw", description="sgd, adam, adamw, or muon (adamw for norms, biases, embeddings and the head)"
    )
    learning_rate: float = Field(2.0e-3, gt=0.0, le=100.0, description="highest learning rate")
    momentum: Fraction = Field(0.9, description="momentum of sgd and muon")
    nesterov: bool = Field(True, description="Nesterov momentum for sgd and muon")
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = Field(
        (0.9, 0.999), description="adam and adamw: decay of the averages of gradients and of their squares"
    )
    epsilon: float = Field(1.0e-8, gt=0.0, le=1.0, description="adam and adamw: added to the denominator")
    weight_decay: float = Field(1.0e-4, ge=0.0, le=10.0, description="decoupled for adamw and muon, otherwise L2")
    decay_all: bool = Field(True, description="also decay norms and biases; false: only weights of layers")
    clip_norm: float = Field(1.0, ge=0.0, description="largest norm of the gradient; 0: no clipping")
    clip_value: float = Field(0.0, ge=0.0, description="largest element of the gradient; 0: no clipping")
    ema_decay: Fraction = Field(
        0.0, description="decay of a moving average of the weights, which then is the model; 0: no average"
    )

    schedule: Literal["constant", "step", "cosine", "warmup-cosine", "warmup-linear", "one-cycle", "plateau"] = Field(
        "warmup-cosine", description="constant, step, cosine, warmup-cosine, warmup-linear, one-cycle or plateau"
    )
    warmup_epochs: float = Field(1.0, ge=0.0, description="epochs of linear rise, for warmup-* and plateau")
    final_rate: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.0, description="final rate of cosine, warmup-* and one-cycle, as a share of learning_rate"
    )
    cycle_rise: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.3, description="share of one-cycle in which the rate rises"
    )
    step_epochs: Positive = Field(10, description="epochs between two falls of schedule step")
    plateau_patience: Count = Field(
        3, description="epochs without improvement of `best` before the rate of plateau falls"
    )
    rate_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.1, description="factor of the rate at each fall of step and plateau"
    )

    frozen_epochs: Count = Field(0, description="first epochs in which only the head learns; as many as epochs: always")
    unfreeze_epochs: Count = Field(
        0, description="after them, epochs between unfreezing one stage and the next; 0: all stages at once"
    )
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="learning rate of each stage as a share of the stage above it"
    )

    flip: Literal["none", "random", "alternating"] = Field(
        "none", description="mirror images left to right: none, random, or alternating (every other epoch)"
    )
    crop_padding: Count = Field(1, description="shift images by up to this many pixels")
    crop_fill: Literal["zeros", "reflect"] = Field(
        "zeros", description="fill of the edge after a shift: zeros or reflect"
    )
    progressive_sizes: (
        Literal["none"] | Annotated[tuple[Annotated[int, Field(ge=4)], ...], Field(strict=False, min_length=1)]
    ) = Field(
        "none", description="side of the images in each epoch, pixels; the last holds for the rest; none: as packed"
    )
    cutout: Count = Field(0, description="side of a black square at a random place, pixels; 0: none")

    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, mps, cuda or cuda:N")
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        "auto", description="auto (the fastest that is safe on the device), fp32, tf32, bf16 or fp16"
    )
    channels_last: Literal["auto"] | bool = Field(
        "auto", description="memory layout of convolutions; auto: true for bf16 and fp16"
    )
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = Field(
        "none", description="mode of torch.compile; none: do not compile"
    )
    gradient_checkpointing: bool = Field(False, description="compute activations twice to save memory")
    deterministic: bool = Field(True, description="refuse operations whose results differ from run to run")
    workers: Count = Field(0, description="processes that load samples of data.factory; 0: the training process")
    sample_timeout: float = Field(
        300.0, ge=0.0, description="seconds that data.factory may take for one sample; 0: no limit"
    )

    best: Literal["validation/accuracy", "validation/balanced_accuracy", "validation/f1", "validation/loss"] = Field(
        "validation/accuracy", description="metric by which the best epoch is chosen"
    )
    patience: Count = Field(0, description="stop after this many epochs without improvement; 0: never")
    min_delta: float = Field(0.0, ge=0.0, description="smallest change of `best` that counts as an improvement")
    overfit_gap: float = Field(
        0.1, gt=0.0, description="training minus validation accuracy above which a warning is shown"
    )

    max_rollbacks: Count = Field(3, description="returns to a checkpoint after a loss that is not finite")
    rollback_factor: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.5, description="factor of the learning rate at each return"
    )
    doctor: Literal["auto", "always", "never"] = Field(
        "auto", description="check for silent bugs before the first step: auto (only before long runs), always or never"
    )

    checkpoint_steps: Count = Field(200, description="steps between checkpoints; 0: only at the end of an epoch")
    keep_last: Positive = Field(2, description="newest checkpoints to keep")
    keep_best: Positive = Field(1, description="best checkpoints to keep")
    log_every: Positive = Field(10, description="steps between logged points")
    profile: Count = Field(0, description="steps to trace with torch.profiler, after the first few; 0: none")


class BudgetSettings(Section):
    """Budget of one training over all its attempts. When it is used up, training stops at a checkpoint."""

    wall_hours: float = Field(0.0, ge=0.0, description="elapsed hours; 0: no limit")
    cpu_hours: float = Field(0.0, ge=0.0, description="hours of one core; 0: no limit")
    gpu_hours: float = Field(0.0, ge=0.0, description="hours of one GPU; 0: no limit")


class EvaluationSettings(Section):
    """Evaluation on the test samples."""

    confidence: float = Field(0.95, gt=0.5, lt=1.0, description="level of every confidence interval")
    resamples: int = Field(2000, ge=100, le=1_000_000, description="bootstrap resamples")
    top_k: int = Field(3, ge=2, description="k of top-k accuracy")
    calibration_bins: int = Field(15, ge=2, le=1000, description="bins of the calibration error (ECE)")
    slices: Literal["auto"] | Names = Field(
        "auto",
        description="columns whose values are evaluated separately; auto: brightness, contrast, size and your own",
    )
    slice_rows: int = Field(20, ge=1, description="fewest samples of a slice that is evaluated")
    robustness_rows: Literal["auto"] | Count = Field(
        "auto", description="test samples evaluated with corrupted images; auto: 500, fewer for large images; 0: none"
    )
    explained_errors: int = Field(12, ge=0, le=24, description="worst errors explained in the report; 0: none")
    flip_average: bool = Field(False, description="average the predictions for an image and its mirror image")
    temperature_scaling: bool = Field(False, description="fit a temperature on validation samples and apply it")


class GateSettings(Section):
    """Requirements that a model must meet before it is registered."""

    minimum_accuracy: Annotated[float, Field(ge=0.0, le=1.0)] = Field(0.5, description="lowest test accuracy")
    champion: Literal["better", "not-worse"] = Field(
        "better", description="required result against the champion on the same samples"
    )
    tolerance: Fraction = Field(0.0, description="loss of accuracy that not-worse allows")
    confidence: float = Field(
        0.95,
        gt=0.5,
        lt=1.0,
        description="confidence of all comparisons together, with one champion on the same test samples",
    )
    classes: Literal["same", "may-grow", "may-change"] = Field(
        "same",
        description="classes compared with the champion's: same, may-grow (more classes) or may-change (other classes)",
    )
    minimum_rows: int = Field(
        100, ge=1, description="fewest unseen test samples for a comparison, or half of the test samples if less"
    )
    reserved_fraction: Fraction = Field(
        0.0, description="share of test samples left out of all comparisons; the model card shows their accuracy"
    )
    slice_tolerance: Fraction = Field(0.0, description="loss of accuracy allowed on a slice, against the champion")
    calibration_error: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.25, description="limit for the calibration error (ECE), exceeded if significant; 1: no rule"
    )
    latency_factor: float = Field(4.0, ge=0.0, description="longest latency, as a factor of the champion's; 0: no rule")
    size_factor: float = Field(10.0, ge=0.0, description="largest weights, as a factor of the champion's; 0: no rule")
    export_difference: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.0001, description="largest difference of a probability in the exported program; 1: no rule"
    )


class RegistrySettings(Section):
    """Model registry, ledger and export."""

    model: str = Field("auto", min_length=1, description="name of the registered model; auto: name of the data")
    promotion: Literal["automatic", "manual"] = Field(
        "automatic",
        description="automatic: a model that passes the gate becomes champion; manual: a person promotes it",
    )
    export: Literal["onnx", "none"] = Field("onnx", description="program stored with the weights")
    purpose: str = Field(
        "", description="purpose and users of the model, for the model card; empty: a sentence about its classes"
    )
    ledger: str = Field(
        "sqlite:///mlruns/ledger.db", min_length=1, description="database of the ledger: SQLite, or postgresql://..."
    )
    ledger_keys: Annotated[tuple[PublicKey, ...], Field(strict=False)] = Field(
        (), description="Ed25519 public keys (base64), one of which must sign each ledger entry; empty: no signatures"
    )
    ledger_signed_from: int = Field(1, ge=1, description="number of the first ledger entry that must be signed")


People = Literal["everyone"] | Names


class AccessSettings(Section):
    """Permissions, by the user names of this machine."""

    runners: People = Field("everyone", description="users who may register models with train-flow")
    approvers: People = Field("everyone", description="users who may approve a version")
    admins: People = Field("everyone", description="users who may promote, roll back, repair, adopt and recover")
    four_eyes: bool = Field(
        False, description="do not allow approval of one's own run; needs registry.promotion: manual"
    )


class TrackingSettings(Section):
    """Records of runs."""

    uri: str = Field("sqlite:///mlruns/mlflow.db", min_length=1, description="MLflow tracking address")
    experiment: str = Field("ratchet", min_length=1, description="MLflow experiment")
    artifacts: str = Field(
        "auto",
        min_length=1,
        description="place for the files of a new experiment: a folder or s3://...; auto: mlruns/artifacts",
    )
    tensorboard: bool = Field(False, description="also write all curves to mlruns/tensorboard")


class PlatformSettings(Section):
    """Local servers and workers."""

    captions: ClassVar[dict[str, str]] = {
        "host": "Addresses",
        "worker_runs": "Limits on simultaneous runs. `ratchet up` sends them to Prefect's server; see docs/deploy.md",
    }

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address on which the servers listen; other than loopback needs passwords",
    )
    public_url: str = Field(
        "auto",
        pattern=_PUBLIC,
        description="address of Prefect for browsers and other machines: https://HOST; auto: host and port",
    )
    mlflow_public_url: str = Field(
        "auto",
        pattern=_PUBLIC,
        description="the same for MLflow; auto: the host of public_url, or host, with mlflow_port",
    )
    allowed_hosts: Annotated[tuple[Annotated[str, Field(pattern=_HOST)], ...], Field(strict=False)] = Field(
        (), description="other host names that requests to the servers may use: HOST or HOST:PORT"
    )
    prefect_port: int = Field(4200, ge=1024, le=65535, description="port of the Prefect server")
    prefect_database: str = Field(
        "auto",
        pattern="^(auto|postgresql://.+)$",
        description="its database: postgresql://...; auto: SQLite in .ratchet",
    )
    prefect_api: str = Field(
        "auto",
        pattern="^(auto|https?://[^/]+/api)$",
        description="Prefect API that all machines use: http://HOST:4200/api; auto: the one of this machine",
    )
    mlflow_port: int = Field(5000, ge=1024, le=65535, description="port of the MLflow server")
    lost_after: int = Field(
        600, ge=60, description="seconds without a heartbeat after which the runs of a worker are marked crashed"
    )

    worker_runs: Positive = Field(
        1, description="simultaneous runs of this worker; runs in the same folder wait for each other"
    )
    queue_runs: Count = Field(
        0, description="simultaneous runs of the work queue `default`, over all workers; 0: no limit"
    )
    person_runs: Count = Field(
        0, description="simultaneous runs of train-flow per person, over all workers; 0: no limit"
    )
    gpus: Count = Field(0, description="GPUs in use by trainings, over all workers; 0: no limit")
    person_gpus: Count = Field(0, description="GPUs in use by trainings of one person, over all workers; 0: no limit")


class AlertSettings(Section):
    """Alerts: recipients, and limits of this machine; see docs/operate.md."""

    captions: ClassVar[dict[str, str]] = {
        "webhook": "Recipients",
        "smtp": "Mail server; its password is in RATCHET_ALERTS_SMTP_PASSWORD",
        "free_disk_gib": "Limits of this machine",
    }

    webhook: str = Field(
        "none",
        pattern=r"^(none|environment|https?://[^\s/]+(/\S*)?)$",
        description="http(s) address, none, or environment: a secret address in RATCHET_ALERTS_WEBHOOK",
    )
    email_to: Annotated[tuple[Annotated[str, Field(pattern=_MAILBOX)], ...], Field(strict=False)] = Field(
        (), description="e-mail addresses of the recipients; empty: no e-mail"
    )
    email_from: str = Field(
        "auto", pattern=f"^auto$|{_MAILBOX}", description="e-mail address of the sender; auto: ratchet@ this machine"
    )

    smtp: str = Field(
        "localhost:25", pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:@/\[\]]+):[0-9]{1,5}$", description="HOST:PORT"
    )
    smtp_security: Literal["none", "starttls", "tls"] = Field("none", description="none, starttls or tls")
    smtp_user: str = Field("none", min_length=1, description="user name at the mail server; none: no sign-in")

    free_disk_gib: float = Field(5.0, ge=0.0, description="alert below this free disk space, GiB; 0: never")
    memory_used: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.95, description="alert above this share of memory in use; 1: never"
    )
    gpu_memory_used: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.98, description="alert above this share of GPU memory in use; 1: never"
    )


class Params(Section):
    """All settings."""

    seed: int = Field(
        0, ge=0, le=2**64 - 1, description="seed of sample order, augmentation and initial weights, not of the splits"
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
        """SHA-256 (hex) of all settings."""
        return files.digest_json(self.model_dump(mode="json"))


BESIDE = frozenset({"access", "alerts", "budget", "platform"})
"""Sections that do not change the output of any stage. dvc.yaml does not list them; they may change during a run."""


class _Partial(Section):
    """Some settings of a section. A setting that is None or absent has the value of the file."""

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema for a form and its checks: each field is optional, and none is `T or null`.

        An error then names the field and its bound, and not all alternatives.
        """
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, field in properties.items():
            properties[name] = _flattened(field)
        return schema


_BOUND_KEYS = {
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
    """Return the schema of a field without null, with all choices in one list and the bounds on the field itself."""
    about = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    alternatives = [schema for schema in field.get("anyOf", ()) if schema != {"type": "null"}]
    choices: list[Any] = []
    others: list[JsonSchemaValue] = []
    for schema in alternatives:
        if schema.get("type") == "boolean":
            choices += [True, False]  # a form would send an untouched switch as false
        elif "const" in schema:
            choices.append(schema["const"])
        elif "enum" in schema:
            choices += schema["enum"]
        else:
            about |= {
                key: value for key, value in schema.items() if key in _BOUND_KEYS
            }  # each bound belongs to one type
            others.append({key: value for key, value in schema.items() if key not in _BOUND_KEYS})
    if not others:
        return {**about, "enum": choices} if choices else about
    if choices:
        others.insert(0, {"enum": choices})
    return {**about, **others[0]} if len(others) == 1 else {**about, "anyOf": others}


def _partial(section: type[Section], *, without: tuple[str, ...] = (), group: str = "") -> type[_Partial]:
    """Return the section with every key optional, without the dotted keys in `without`."""
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
"""Settings that the caller of a flow may change: `Params` with every key optional, typed for Prefect's form.

Callers may not change permissions, promotion, the ledger, the servers, limits on runs, or alerts.
"""
