"""Settings: params.yaml, the model that checks it, and messages for its errors."""

from ratchet.settings.file import (
    Edit,
    changed,
    differences,
    dotted,
    flatten,
    load,
    override,
    parse_assignments,
    plan,
    read_text,
    restored_text,
    template,
    write_text,
)

__all__ = [
    "Edit",
    "changed",
    "differences",
    "dotted",
    "flatten",
    "load",
    "override",
    "parse_assignments",
    "plan",
    "read_text",
    "restored_text",
    "template",
    "write_text",
]
