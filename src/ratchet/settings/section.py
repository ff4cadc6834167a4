"""Base class of all sections of params.yaml, and the types of settings."""

import unicodedata
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = [
    "MAILBOX",
    "Amount",
    "Augmentation",
    "ColumnName",
    "ColumnNames",
    "ColumnType",
    "Confidence",
    "Count",
    "Fraction",
    "Function",
    "FunctionName",
    "FunctionNames",
    "Host",
    "InnerShare",
    "Kind",
    "MinimumMetric",
    "Minutes",
    "Names",
    "Port",
    "Positive",
    "PositiveAmount",
    "PositiveShare",
    "PowerOfTwo",
    "PublicAddress",
    "Section",
    "Share",
    "Text",
    "ValidationMetric",
    "setting",
]


class Section(BaseModel):
    """One section of params.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    captions: ClassVar[dict[str, str]] = {}  # title of a group of settings, by its first setting


def _require_power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError("allowed are powers of two: 1, 2, 4, ...")
    return number


def _require_part_of_day(minutes: int) -> int:
    if _DAY % minutes:
        raise ValueError("allowed are minutes of which a day has a whole number: 5, 60, 1440, ...")
    return minutes


def _require_different(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("allowed are names of which each stands once")
    return names


def _composed(name: str) -> str:
    """Return the name of a column in the Unicode form NFC, as tables have it."""
    return unicodedata.normalize("NFC", name)


_DAY = 1440  # minutes
Text = Annotated[str, Field(min_length=1)]
Function = Annotated[str, Field(pattern=r"^(none|[\w.]+:\w+)$")]
FunctionName = Annotated[str, Field(pattern=r"^[\w.]+:\w+$"), "package.module:function"]
Augmentation = Annotated[dict[str, Any], "{NAME: VALUE}"] | Annotated[Text, "package.module:Class"]
FunctionNames = Annotated[tuple[FunctionName, ...], Field(strict=False), AfterValidator(_require_different)]
Kind = Annotated[str, Field(pattern=r"^(image|table|text|tokens|[\w.]+:\w+)$")]
Names = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_require_different)]
ColumnName = Annotated[Text, AfterValidator(_composed)]
ColumnNames = Annotated[tuple[ColumnName, ...], Field(strict=False), AfterValidator(_require_different)]
ValidationMetric = Literal[
    "validation/accuracy",
    "validation/balanced_accuracy",
    "validation/f1",
    "validation/loss",
    "validation/mae",
    "validation/rmse",
    "validation/r2",
    "validation/perplexity",
]
MinimumMetric = Literal[
    "auto",
    "none",
    "accuracy",
    "balanced_accuracy",
    "top_k",
    "macro_f1",
    "roc_auc",
    "log_loss",
    "ece",
    "mae",
    "rmse",
    "r2",
    "median_error",
    "micro_f1",
    "exact_match",
    "right_labels",
    "loss",
    "perplexity",
    "bits_per_character",
    "bits_per_byte",
]
ColumnType = Literal["numeric", "categorical", "datetime", "text", "id", "ignored"]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Minutes = Annotated[int, Field(ge=1, le=_DAY), AfterValidator(_require_part_of_day)]
PowerOfTwo = Annotated[int, Field(ge=1), AfterValidator(_require_power_of_two)]
Amount = Annotated[float, Field(ge=0.0)]
PositiveAmount = Annotated[float, Field(gt=0.0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]
InnerShare = Annotated[float, Field(gt=0.0, lt=1.0)]
Confidence = Annotated[float, Field(gt=0.5, lt=1.0)]
Port = Annotated[int, Field(ge=1024, le=65535)]
Host = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?$")]
PublicAddress = Annotated[str, Field(pattern=r"^(auto|https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?)$")]
MAILBOX = r"^[^\s@<>,;]+@[^\s@<>,;]+$"


def setting(default: Any, description: str, *, decides: bool = True) -> Any:
    """Return a field with its default and its description for params.yaml, messages, docs and the run form.

    `decides` is False for a setting of training that changes no weight.
    """
    return Field(default, description=description, json_schema_extra=None if decides else {"decides": False})
