"""Every setting: its default, bounds and description. The only source of params.yaml, the schema and docs tables."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ratchet import files
from ratchet.settings.search_settings import SearchSettings
from ratchet.settings.section import (
    MAILBOX,
    Amount,
    Augmentation,
    ColumnName,
    ColumnNames,
    ColumnType,
    Confidence,
    Count,
    Fraction,
    Function,
    FunctionName,
    FunctionNames,
    Host,
    InnerShare,
    Kind,
    MinimumMetric,
    Minutes,
    Names,
    Port,
    Positive,
    PositiveAmount,
    PositiveShare,
    PowerOfTwo,
    PublicAddress,
    Section,
    Share,
    Text,
    ValidationMetric,
    setting,
)

__all__ = [
    "NEUTRAL",
    "RUNTIME_SECTIONS",
    "AccessSettings",
    "AlertSettings",
    "BudgetSettings",
    "DataSettings",
    "EvaluationSettings",
    "ExportSettings",
    "GateSettings",
    "ModelSettings",
    "Overrides",
    "Params",
    "PlatformSettings",
    "RegistrySettings",
    "SearchSettings",
    "Section",
    "TrackingSettings",
    "TrainingSettings",
    "neutral",
]


class DataSettings(Section):
    """Data source, and the rules for samples."""

    captions: ClassVar[dict[str, str]] = {
        "label_level": "Source image-folder",
        "manifest": "Source image-manifest: a table that lists images",
        "problem": "Tables",
        "image_size": "Packing, and which images are accepted",
        "validation_fraction": "Splits",
        "workers": "Resources",
    }
    kind: Kind = setting(
        "image",
        "image; table: rows of a CSV or Parquet file; text: texts with labels; tokens: plain text to continue; or your "
        "own kind, as package.module:Class",
    )
    source: Text = setting("digits", "digits, image-folder, image-manifest, or a torchvision data set")
    path: Text = setting("data/raw", "folder or URL of the data; downloads are stored there")
    download: bool = setting(True, "download a torchvision data set if it is not in data.path")

    label_level: Literal["auto"] | Annotated[int, Field(ge=1, le=8)] = setting(
        "auto", "folder level that is the class; 1: the top level; auto: 1 if the folders are unambiguous"
    )

    manifest: Text = setting("none", "CSV, JSON or Parquet file in data.path")
    path_column: ColumnName = setting("path", "column with the path of each image in data.path")
    label_column: ColumnName | ColumnNames = setting(
        "label", "column with the class; of tables also a number, or a list of columns"
    )
    text_column: Text = setting("text", "column with the text; in JSON Lines of kind tokens its key")
    split_column: ColumnName = setting("split", "column with train, validation or test; may be absent")
    group_column: ColumnName = setting("group", "column with a group whose samples stay in one split; may be absent")
    classes: Literal["auto"] | Names = setting("auto", "class names in order; auto: the labels found in the data")
    drop: ColumnNames = setting((), "columns to leave out")
    hash: ColumnNames = setting((), "columns to keep as keyed hashes; the key is in RATCHET_HASH_KEY")
    refuse_personal: bool = setting(
        False, "quarantine samples with e-mail addresses, phone or card numbers in the table"
    )

    problem: Literal["auto", "classification", "regression", "multi-label"] = setting(
        "auto", "auto: by the label column; classification, regression or multi-label"
    )
    columns: dict[ColumnName, ColumnType] = setting(
        {}, "type of single columns: numeric, categorical, datetime, text, id or ignored; the others: by their values"
    )
    order_by: ColumnName = setting(
        "none", "column by which rows are sorted: train is the oldest, test the latest; or none"
    )
    gap: Amount | Annotated[str, Field(pattern=r"^\d+(\.\d+)?(s|min|h|d|w)$"), "a length of time"] = setting(
        0.0, "least distance between splits by order_by: of dates 30min, 12h, 7d or 2w; of numbers a number; 0: none"
    )
    missing: Names = setting((), "texts that mean a missing value, beside empty, NA, NaN, null and ?")

    image_size: Literal["auto"] | Annotated[int, Field(ge=8, le=4096)] = setting(
        "auto", "side of the packed square images, pixels; auto: their own size if equal and at most 64, else 64"
    )
    channels: Literal["auto", 1, 3] = setting("auto", "1: grey, 3: colour; auto: as in the images")
    depth: Literal["auto"] | Annotated[int, Field(ge=8, le=16)] = setting(
        "auto", "bits of 16-bit grey images: 12 scales 0..4095 to 0..255; auto: from the largest value"
    )
    formats: Annotated[
        tuple[Literal["jpeg", "png", "webp", "bmp", "tiff", "ppm", "gif", "avif", "heif"], ...],
        Field(strict=False, min_length=1),
    ] = setting(
        ("jpeg", "png", "webp", "bmp", "tiff"),
        "accepted image formats; also possible: gif (first frame), avif, heif (needs pillow-heif), ppm",
    )
    min_side: Positive = setting(4, "shortest accepted side, pixels")
    max_pixels: Positive = setting(50_000_000, "largest accepted image, pixels; larger ones are not decoded")
    max_aspect: Annotated[float, Field(ge=1.0)] = setting(10.0, "largest accepted ratio of long side to short side")
    min_per_class: Positive = setting(2, "training samples that every class must have")
    max_bad_fraction: Share = setting(0.05, "stop the run if a larger share of the samples is bad")
    validation_fraction: Fraction = setting(0.15, "share of samples for validation, if the data have no split")
    test_fraction: Fraction = setting(0.15, "share of samples for testing, if the data have no split")
    folds: Count = setting(0, "cross-validation: number of folds of all samples except test; 0: none")
    fold: Count = setting(0, "cross-validation: fold used for validation, from 0")
    workers: Count = setting(0, "processes that read samples; 0: one per core")
    code: Text = setting(
        "src/ratchet/training/custom_class.py", "file or folder with the code of your own kind, tracked by DVC"
    )

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The label columns, even if there is one."""
        return (self.label_column,) if isinstance(self.label_column, str) else self.label_column

    @property
    def named_group(self) -> str | None:
        """The group column; None if it is the default, which may be absent."""
        return None if self.group_column == type(self).model_fields["group_column"].default else self.group_column


class ModelSettings(Section):
    """Model architecture and initial weights."""

    name: Text = setting(
        "auto",
        "images: convnet, resnet, fastnet, a torchvision.models name or timm/NAME; tables: tabm, mlp; texts: bag, "
        "transformer; tokens: decoder; all: baseline, blend; auto: the first",
    )
    tokenizer: Literal["auto", "hashed", "words", "characters", "bytes"] = setting(
        "auto", "texts: hashed or words; tokens: characters, bytes or words; auto: by the model"
    )
    context: Count = setting(0, "tokens that a model sees at once; 0: the longest text, and 64 of kind tokens")
    factory: Function = setting("none", "your own model, as package.module:function, or none")
    code: Text = setting(
        "src/ratchet/training/models",
        "file or folder with your own code for model, loss, augmentation and metrics, tracked by DVC",
    )
    pretrained: Text = setting(
        "none",
        "initial weights: FILE or NAME/VERSION in data/pretrained, hf://ORG/NAME, torchvision://MODEL, or none",
    )

    @property
    def called(self) -> str:
        """Name of the model, or of its factory."""
        return self.name if self.factory == "none" else self.factory


class TrainingSettings(Section):
    """Training. docs/training.md has advice."""

    captions: ClassVar[dict[str, str]] = {
        "epochs": "Duration and batches",
        "loss": "Loss",
        "optimizer": "Optimizer",
        "schedule": "Learning rate schedule",
        "frozen_epochs": "Transfer learning",
        "augment": "Augmentation",
        "device": "Hardware",
        "best": "Best model and early stopping",
        "max_rollbacks": "Recovery and checks",
        "checkpoint_steps": "Checkpoints and logging",
    }

    epochs: Positive = setting(30, "passes over the training data")
    max_steps: Count = setting(0, "stop after this many optimizer steps; 0: no limit")
    batch_size: Positive = setting(64, "samples per optimizer step")
    sampling: Literal["as-is", "balanced"] = setting(
        "as-is", "as-is: each sample once in an epoch; balanced: all classes equally often"
    )
    accumulation: Positive = setting(1, "micro-batches per batch; more of them need less memory")
    pieces: PowerOfTwo = setting(1, "pieces of a step that processes share: a power of two, which decides the weights")

    loss: Literal["auto", "cross-entropy", "binary-cross-entropy", "mse", "l1", "smooth-l1"] | FunctionName = setting(
        "auto",
        "loss function; auto: cross-entropy for classes and tokens, binary-cross-entropy for labels, mse for numbers; "
        "your own: package.module:function in model.code",
    )
    label_smoothing: Literal["auto"] | Fraction = setting(
        "auto", "share of each target spread over all classes; auto: 0.1 for classes of images, otherwise 0"
    )
    class_weights: (
        Literal["none", "balanced"]
        | Annotated[tuple[Annotated[float, Field(gt=0.0)], ...], Field(strict=False, min_length=1)]
    ) = setting("none", "none, balanced (rare classes weigh more), or one weight per class")
    ignore_index: int = setting(-100, "samples with this label number are left out of the loss")
    teacher: Text = setting("none", "folder in data/pretrained of a model whose answers are learned too; none")
    teacher_weight: Share = setting(0.7, "share of the loss against the teacher's answers")

    optimizer: Literal["sgd", "adam", "adamw", "muon"] = setting(
        "adamw", "sgd, adam, adamw, or muon (adamw for norms, biases, embeddings and the head)"
    )
    learning_rate: Annotated[float, Field(gt=0.0, le=100.0)] = setting(2.0e-3, "highest learning rate")
    momentum: Fraction = setting(0.9, "momentum of sgd and muon")
    nesterov: bool = setting(True, "Nesterov momentum for sgd and muon")
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = setting(
        (0.9, 0.999), "adam and adamw: decay of the averages of gradients and of their squares"
    )
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = setting(
        1.0e-4, "decoupled for adamw and muon, otherwise L2"
    )
    decay_all: bool = setting(True, "also decay norms and biases; false: only weights of layers")
    clip_norm: Amount = setting(1.0, "largest norm of the gradient; 0: no clipping")
    clip_value: Amount = setting(0.0, "largest element of the gradient; 0: no clipping")
    ema_decay: Fraction = setting(0.0, "decay of a moving average of the weights, which then is the model; 0: none")

    schedule: Literal["constant", "step", "cosine", "warmup-cosine", "warmup-linear", "one-cycle", "plateau"] = setting(
        "warmup-cosine", "constant, step, cosine, warmup-cosine, warmup-linear, one-cycle or plateau"
    )
    warmup_epochs: Amount = setting(1.0, "epochs of linear rise, for warmup-* and plateau")
    step_epochs: Positive = setting(10, "epochs between two falls of schedule step")
    plateau_patience: Count = setting(3, "epochs without improvement of `best` before the rate of plateau falls")
    rate_factor: InnerShare = setting(0.1, "factor of the rate at each fall of step and plateau")

    frozen_epochs: Count = setting(0, "first epochs in which only the head learns; as many as epochs: always")
    unfreeze_epochs: Count = setting(
        0, "after them, epochs between unfreezing one stage and the next; 0: all stages at once"
    )
    layer_decay: PositiveShare = setting(1.0, "learning rate of each stage as a share of the stage above it")
    prune_channels: Fraction = setting(0.0, "share of the hidden channels removed from the pretrained model; 0: none")

    augment: Literal["auto"] | Annotated[tuple[Augmentation, ...], Field(strict=False)] = setting(
        "auto",
        "list of augmentations, such as [{flip: 0.5}, {rotate: 15}]; auto: by flip, crop_padding, crop_fill and cutout",
    )
    flip: Literal["none", "random", "alternating"] = setting(
        "none", "mirror images left to right: none, random, or alternating (every other epoch)"
    )
    crop_padding: Count = setting(1, "shift images by up to this many pixels")
    crop_fill: Literal["zeros", "reflect"] = setting("zeros", "fill of the edge after a shift: zeros or reflect")
    progressive_sizes: (
        Literal["none"] | Annotated[tuple[Annotated[int, Field(ge=4)], ...], Field(strict=False, min_length=1)]
    ) = setting("none", "side of the images in each epoch, pixels; the last holds for the rest; none: as packed")
    cutout: Count = setting(0, "side of a black square at a random place, pixels; 0: none")

    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = setting(
        "auto", "auto, cpu, mps, cuda or cuda:N"
    )
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = setting(
        "auto", "auto (the fastest that is safe on the device), fp32, tf32, bf16 or fp16"
    )
    channels_last: Literal["auto"] | bool = setting(
        "auto", "memory layout of convolutions; auto: true for bf16 and fp16"
    )
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = setting(
        "none", "mode of torch.compile; none: do not compile"
    )
    gradient_checkpointing: bool = setting(False, "compute activations twice to save memory")
    deterministic: bool = setting(True, "refuse operations whose results differ from run to run")
    processes: Literal["auto"] | PowerOfTwo = setting(
        1, "processes of the training, which share the pieces of a step; auto: one for each GPU or core", decides=False
    )
    nodes: Positive | Annotated[str, Field(pattern=r"^[1-9]\d*:[1-9]\d*$"), "MIN:MAX"] = setting(
        1, "machines of the training, each with as many processes: a number, or MIN:MAX", decides=False
    )
    rendezvous: Annotated[str, Field(pattern=r"^(none|\S+:\d+)$")] = setting(
        "none", "HOST:PORT of the first of several machines, where the others find it", decides=False
    )
    shard: Literal["none", "auto", "fsdp"] = setting(
        "none",
        "fsdp: each process keeps a share of the model (PyTorch's FSDP2); auto: from 100 million parameters; none",
    )
    reduction: Literal["exact", "fast"] = setting(
        "exact", "sum of the processes' gradients: exact, or fast, whose bits depend on the number of processes"
    )
    threads: Literal["auto"] | Positive = setting(
        "auto", "threads of a piece, which decide the weights; auto: its share"
    )
    workers: Count = setting(
        0, "processes that read samples of an own kind that is not packed; 0: the training process", decides=False
    )
    sample_timeout: Amount = setting(
        300.0, "seconds that your own kind may take for one sample; 0: no limit", decides=False
    )

    best: Literal["auto", ValidationMetric] = setting(
        "auto", "metric by which the best epoch is chosen; auto: accuracy for classes, f1 for labels, otherwise loss"
    )
    patience: Count = setting(0, "stop after this many epochs without improvement; 0: never")
    overfit_gap: Annotated[float, Field(gt=0.0)] = setting(
        0.1, "training minus validation accuracy above which a warning is shown", decides=False
    )

    max_rollbacks: Count = setting(3, "returns to a checkpoint after a loss that is not finite", decides=False)
    doctor: Literal["auto", "always", "never"] = setting(
        "auto",
        "check for silent bugs before the first step: auto (only before long runs), always or never",
        decides=False,
    )

    checkpoint_steps: Count = setting(200, "steps between checkpoints; 0: only at the end of an epoch", decides=False)
    keep_last: Positive = setting(2, "newest checkpoints to keep", decides=False)
    keep_best: Positive = setting(1, "best checkpoints to keep", decides=False)
    log_every: Positive = setting(10, "steps between logged points", decides=False)
    profile: Count = setting(0, "steps to trace with torch.profiler, after the first few; 0: none", decides=False)
    hooks: FunctionNames = setting(
        (),
        "your own functions, as package.module:function, that get the numbers of each step, epoch and checkpoint",
        decides=False,
    )


class BudgetSettings(Section):
    """Budget of one training over all its attempts. When it is used up, training stops at a checkpoint."""

    wall_hours: Amount = setting(0.0, "elapsed hours; 0: no limit")
    cpu_hours: Amount = setting(0.0, "hours of one core; 0: no limit")
    gpu_hours: Amount = setting(0.0, "hours of one GPU; 0: no limit")


class EvaluationSettings(Section):
    """Evaluation on the test samples."""

    confidence: Confidence = setting(0.95, "level of every confidence interval")
    resamples: Annotated[int, Field(ge=100, le=1_000_000)] = setting(2000, "bootstrap resamples")
    top_k: Annotated[int, Field(ge=2)] = setting(3, "k of top-k accuracy")
    threshold: Literal["auto"] | InnerShare = setting(
        "auto", "probability from which a label or the second of two classes is predicted; auto: see docs/evaluation.md"
    )
    slices: Literal["auto"] | ColumnNames = setting(
        "auto", "columns whose values are evaluated separately; auto: brightness, contrast, size and your own"
    )
    slice_rows: Positive = setting(20, "fewest samples of a slice that is evaluated")
    robustness_rows: Literal["auto"] | Count = setting(
        "auto", "test samples evaluated with corrupted images; auto: 500, fewer for large images; 0: none"
    )
    explained_errors: Annotated[int, Field(ge=0, le=24)] = setting(12, "worst errors explained in the report; 0: none")
    metrics: FunctionNames = setting(
        (), "your own metrics, each as package.module:function in model.code, see docs/evaluation.md"
    )
    flip_average: bool = setting(False, "average the predictions for an image and its mirror image")
    temperature_scaling: bool = setting(False, "fit a temperature on validation samples and apply it")


class ExportSettings(Section):
    """Faster variants of the model's program, which the model server may use."""

    variants: Literal["auto"] | Annotated[tuple[Literal["int8-static", "int8-dynamic"], ...], Field(strict=False)] = (
        setting("auto", "variants that are made: int8-static, int8-dynamic; auto: int8-static for images, else none")
    )
    speedup: PositiveAmount = setting(1.1, "least speed of a variant, as a factor of the float32 program's")
    tolerance: Fraction = setting(
        0.002, "largest drop of a variant against the model: of accuracy as a share, else of the score"
    )


class GateSettings(Section):
    """Requirements that a model must meet before it is registered."""

    minimum: float = setting(0.5, "worst allowed value of minimum_metric: the lowest accuracy, the highest error")
    minimum_metric: MinimumMetric | FunctionName = setting(
        "auto",
        "metric of `minimum`: accuracy, r2, mae, micro_f1, one of evaluation.metrics ...; none; auto: see docs/gate.md",
    )
    baseline: Literal["report", "required"] = setting(
        "report", "a model must be better than the baseline: required, or report (never refuses)"
    )
    constant: Literal["required", "report", "off"] = setting(
        "required",
        "a first version must be better than the best constant answer: required, report (only a model with one answer "
        "is refused) or off",
    )
    champion: Literal["better", "not-worse"] = setting(
        "better", "required result against the champion on the same samples"
    )
    tolerance: Fraction = setting(
        0.0, "largest drop that not-worse accepts: of accuracy as a share, else of the score (see docs/gate.md)"
    )
    confidence: Confidence = setting(
        0.95, "confidence of all comparisons together, with one champion on the same test samples"
    )
    classes: Literal["same", "may-grow", "may-change"] = setting(
        "same", "classes compared with the champion's: same, may-grow (more classes) or may-change (other classes)"
    )
    minimum_rows: Positive = setting(100, "fewest test samples or groups that neither model saw; real scores need more")
    slice_tolerance: Fraction = setting(0.0, "largest drop on any slice, compared with the champion")
    calibration_error: Share = setting(
        0.25, "calibration error (ECE) that a model may not exceed significantly; 1: no rule"
    )
    latency_factor: Amount = setting(4.0, "longest latency, as a factor of the champion's; 0: no rule")
    size_factor: Amount = setting(10.0, "largest weights, as a factor of the champion's; 0: no rule")
    export_difference: Share = setting(
        0.0001, "largest difference of a probability in the exported program; 1: no rule"
    )
    shadow_requests: Count = setting(
        0, "live requests that a version must answer in shadow before a user promotes it; 0: no rule"
    )
    shadow_agreement: Share = setting(0.0, "least share of these rows on which it agrees with the champion; 0: no rule")


class RegistrySettings(Section):
    """Model registry, ledger and export."""

    model: Text = setting("auto", "name of the registered model; auto: name of the data")
    promotion: Literal["automatic", "manual"] = setting(
        "automatic", "automatic: a model that passes the gate becomes champion; manual: a person promotes it"
    )
    export: Literal["onnx", "none"] = setting("onnx", "program stored with the weights")
    purpose: str = setting(
        "", "purpose and users of the model, for the model card; empty: a sentence about its classes"
    )
    ledger: Text = setting("sqlite:///mlruns/ledger.db", "database of the ledger: SQLite, or postgresql://...")


People = Literal["everyone"] | Names


class AccessSettings(Section):
    """Permissions, by the user names of this machine."""

    runners: People = setting("everyone", "users who may register models with train-flow")
    approvers: People = setting("everyone", "users who may approve a version")
    admins: People = setting("everyone", "users who may promote, roll back, repair and recover")


class TrackingSettings(Section):
    """Records of runs."""

    uri: Text = setting("sqlite:///mlruns/mlflow.db", "MLflow tracking address")
    experiment: Text = setting("ratchet", "MLflow experiment")
    artifacts: Text = setting(
        "auto", "place for the files of a new experiment: a folder or s3://...; auto: mlruns/artifacts"
    )
    tensorboard: bool = setting(False, "also write all curves to mlruns/tensorboard")


class PlatformSettings(Section):
    """Local servers and workers."""

    captions: ClassVar[dict[str, str]] = {
        "host": "Addresses",
        "worker_runs": "Limits on simultaneous runs. `ratchet up` sends them to Prefect's server; see docs/deploy.md",
    }

    host: Text = setting("127.0.0.1", "address on which the servers listen; other than loopback needs passwords")
    public_url: PublicAddress = setting(
        "auto", "address of Prefect for browsers and other machines: https://HOST; auto: host and port"
    )
    mlflow_public_url: PublicAddress = setting(
        "auto", "the same for MLflow; auto: the host of public_url, or host, with mlflow_port"
    )
    allowed_hosts: Annotated[tuple[Host, ...], Field(strict=False)] = setting(
        (), "other host names that requests to the servers may use: HOST or HOST:PORT"
    )
    prefect_port: Port = setting(4200, "port of the Prefect server")
    prefect_database: Annotated[str, Field(pattern="^(auto|postgresql://.+)$")] = setting(
        "auto", "its database: postgresql://...; auto: SQLite in .ratchet"
    )
    prefect_api: Annotated[str, Field(pattern="^(auto|https?://[^/]+/api)$")] = setting(
        "auto", "Prefect API that all machines use: http://HOST:4200/api; auto: the one of this machine"
    )
    mlflow_port: Port = setting(5000, "port of the MLflow server")
    lost_after: Annotated[int, Field(ge=60)] = setting(
        600, "seconds without a heartbeat before a worker's runs become Crashed"
    )

    worker_runs: Positive = setting(1, "simultaneous runs of this worker; runs in the same folder wait for each other")
    queue_runs: Count = setting(0, "simultaneous runs of the work queue `default`, over all workers; 0: no limit")
    gpus: Count = setting(0, "GPUs in use by trainings, over all workers; 0: no limit")


class ServingSettings(Section):
    """The model server."""

    enabled: bool = setting(True, "whether `ratchet up` starts the model server")
    model: Text = setting("auto", "version that is served: NAME@ALIAS or NAME/VERSION; auto: the champion of the data")
    variant: Literal["auto", "fp32", "int8-static", "int8-dynamic"] = setting(
        "auto", "variant of the program that is served; auto: the fastest that passed (see export)"
    )
    port: Port = setting(8000, "port; the address is platform.host")
    processes: Literal["auto"] | Positive = setting(1, "processes that answer; auto: one for each core")
    threads: Positive = setting(1, "threads that compute one batch; more are faster for large models only")
    poll: PositiveAmount = setting(2.0, "how often the alias is checked, seconds")
    deadline: PositiveAmount = setting(10.0, "seconds within which a request is answered or refused")
    queue: Positive = setting(1024, "rows that may wait for the model")
    fallback: Text = setting(
        "none", "smaller version that answers when the queue is full: NAME@ALIAS or NAME/VERSION; none"
    )
    rows: Positive = setting(1024, "rows of one request")
    body_mib: PositiveAmount = setting(16.0, "size of a request, MiB")
    tokens: Positive = setting(512, "tokens that a language model writes for one prompt")
    keys: Literal["auto", "required"] = setting(
        "auto", "API keys; auto: asked for once there was a key, and beyond loopback; required: always"
    )
    log: bool = setting(True, "whether requests and answers are logged in .ratchet/requests")
    shadow: Text = setting(
        "none", "version that answers requests beside the served one, for the log only: NAME@challenger; none"
    )
    canary: Text = setting(
        "none", "version that answers a share of the requests until it is significantly worse: NAME@challenger; none"
    )
    canary_share: Share = setting(0.05, "share of the requests that it answers")
    canary_latency: PositiveAmount = setting(1.5, "largest latency of the canary, as a factor of the served version's")
    log_share: Share = setting(1.0, "share of the requests that are logged")
    log_inputs: Literal["hash", "sample", "keep", "none"] = setting(
        "hash", "inputs in the log: hash (SHA-256), sample (200 rows of each window as they are), keep or none"
    )
    log_columns: ColumnNames = setting((), "columns of a table that are logged as they are, for slices")
    log_days: PositiveAmount = setting(30.0, "days after which logged requests are deleted")
    log_mib: PositiveAmount = setting(1024.0, "size of the log, MiB; the oldest files are deleted first")


class ScaleSettings(Section):
    """Work in shards: batch scoring. See docs/scale.md."""

    engine: Literal["here", "prefect", "ray"] = setting(
        "here", "here: processes of this machine; prefect: workers of Prefect's pool; ray: a Ray cluster"
    )
    workers: Positive = setting(1, "shards in work at a time; with `here`, 1: in the command's own process")
    address: Text = setting("auto", "of the Ray cluster, HOST:PORT; auto: the one that runs on this machine")


class AlertSettings(Section):
    """Alerts: recipients, and limits of this machine; see docs/operate.md."""

    captions: ClassVar[dict[str, str]] = {
        "webhook": "Recipients",
        "smtp": "Mail server; its password is in RATCHET_ALERTS_SMTP_PASSWORD",
        "free_disk_gib": "Limits of this machine",
    }

    webhook: Annotated[str, Field(pattern=r"^(none|environment|https?://[^\s/]+(/\S*)?)$")] = setting(
        "none", "http(s) address, none, or environment: a secret address in RATCHET_ALERTS_WEBHOOK"
    )
    email_to: Annotated[tuple[Annotated[str, Field(pattern=MAILBOX)], ...], Field(strict=False)] = setting(
        (), "e-mail addresses of the recipients; empty: no e-mail"
    )
    email_from: Annotated[str, Field(pattern=f"^auto$|{MAILBOX}")] = setting(
        "auto", "e-mail address of the sender; auto: ratchet@HOSTNAME"
    )

    smtp: Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:@/\[\]]+):[0-9]{1,5}$")] = setting(
        "localhost:25", "HOST:PORT"
    )
    smtp_security: Literal["none", "starttls", "tls"] = setting("none", "none, starttls or tls")
    smtp_user: Text = setting("none", "user name at the mail server; none: no sign-in")

    free_disk_gib: Amount = setting(5.0, "alert below this free disk space, GiB; 0: never")
    memory_used: PositiveShare = setting(0.95, "alert above this share of memory in use; 1: never")


class MonitoringSettings(Section):
    """Detection of drift in the logged requests; see docs/monitoring.md."""

    window: Minutes = setting(60, "minutes of a window; a day has a whole number of windows", decides=False)
    season: Literal["none", "day", "week"] = setting(
        "none", "pattern of traffic that repeats: windows are compared at the same time of day or week", decides=False
    )
    alpha: InnerShare = setting(0.05, "probability of a false alarm for a served version, over all time", decides=False)
    good_windows: Positive = setting(
        30, "windows before the first is judged, for each time of the season", decides=False
    )
    min_labels: Positive = setting(
        200, "new labelled requests that a training with labelled requests needs", decides=False
    )
    max_retrainings_per_week: Positive = setting(
        3, "trainings with labelled requests in seven days; further ones are not begun", decides=False
    )


class Params(Section):
    """All settings."""

    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = setting(
        0, "seed of sample order, augmentation and initial weights, not of the splits"
    )
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    budget: BudgetSettings = BudgetSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    export: ExportSettings = ExportSettings()
    gate: GateSettings = GateSettings()
    registry: RegistrySettings = RegistrySettings()
    access: AccessSettings = AccessSettings()
    tracking: TrackingSettings = TrackingSettings()
    platform: PlatformSettings = PlatformSettings()
    serving: ServingSettings = ServingSettings()
    scale: ScaleSettings = ScaleSettings()
    search: SearchSettings = SearchSettings()
    alerts: AlertSettings = AlertSettings()
    monitoring: MonitoringSettings = MonitoringSettings()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all settings."""
        return files.digest_json(self.model_dump(mode="json"))


RUNTIME_SECTIONS = frozenset({"access", "alerts", "budget", "monitoring", "platform", "scale", "search", "serving"})
"""Sections that do not change the output of any stage. They may change during a run."""

NEUTRAL = frozenset(name for name, field in TrainingSettings.model_fields.items() if field.json_schema_extra)
"""Settings of training that change the final weights by not one bit. They may change while a run is interrupted.

`accumulation` is not among them: batch norm sees one micro-batch at a time, and another order of a sum rounds
differently.
"""


def neutral(reduction: str) -> frozenset[str]:
    """Return the settings of NEUTRAL as they are with a `training.reduction`: processes decide a fast sum."""
    return NEUTRAL - {"processes", "nodes"} if reduction == "fast" else NEUTRAL


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


_BOUND_KEYS = frozenset(
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "minItems"]
)


def _flattened(field: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a field without null, with all choices in one list and the bounds on the field itself."""
    about = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    alternatives = [schema for schema in field.get("anyOf", ()) if schema != {"type": "null"}]
    choices: list[Any] = []
    others: list[JsonSchemaValue] = []
    names = any("enum" in schema or "const" in schema for schema in alternatives)
    for schema in alternatives:
        if schema.get("type") == "boolean":
            choices += [True, False]  # a form would send an untouched switch as false
        elif "const" in schema:
            choices.append(schema["const"])
        elif "enum" in schema:
            choices += schema["enum"]
        elif names and "pattern" in schema:  # which the choices do not match
            others.append(schema)
        else:
            about |= {key: value for key, value in schema.items() if key in _BOUND_KEYS}  # each belongs to one type
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
        "registry.promotion",
        "serving.keys",
    ),
)
"""Settings that the caller of a flow may change: `Params` with every key optional, typed for Prefect's form.

Callers may not change permissions, promotion, the ledger, the servers, limits on runs, or alerts.
"""
