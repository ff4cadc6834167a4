"""Frozen dataclasses as JSON and back.

A dataclass with `__pydantic_config__ = STRICT` is read strictly: types must match, and no key may be missing or
unknown. A field that is added to one whose old files must still be readable, as of `Provenance`, gets a default.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ConfigDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["STRICT", "from_plain", "parse", "to_plain"]

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")
"""Value of the class attribute `__pydantic_config__` of a dataclass that is read from JSON."""


def to_plain(value: object) -> dict[str, Any]:
    """Return a dataclass as plain data that JSON can hold: dicts, lists, strings, numbers and None."""
    plain: dict[str, Any] = _adapter(cast(Any, type(value))).dump_python(value, mode="json")
    return plain


def from_plain(kind: type[T], content: object) -> T:
    """Read what `to_plain` returned, and JSON made of it."""
    value: T = _adapter(cast(Any, kind)).validate_python(content)
    return value


def parse(kind: type[T], content: str | bytes) -> T:
    """Read a dataclass from JSON.

    Raises:
        ValueError: the content is not JSON of this type; the message names the first wrong field.
    """
    from pydantic import ValidationError

    try:
        value: T = _adapter(cast(Any, kind)).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ValueError(f"{field}: {first['msg']}" if field else first["msg"]) from error
    return value


@cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
