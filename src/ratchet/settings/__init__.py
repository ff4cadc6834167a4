"""Settings: params.yaml, the model that checks it, and messages for its errors."""

from ratchet.settings.file import changed, dotted, flatten, load, override, parse_assignments, plan, template

__all__ = ["changed", "dotted", "flatten", "load", "override", "parse_assignments", "plan", "template"]
