"""Settings: params.yaml, the model that checks it, and the messages for what is wrong in it."""

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
    take_back,
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
    "take_back",
    "template",
    "write_text",
]
