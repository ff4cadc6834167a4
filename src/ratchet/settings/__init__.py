"""Settings: params.yaml, the model that checks it, and messages for its errors."""

from ratchet.settings.file import Edit, changed, dotted, flatten, load, override, parse_assignments, plan, template

__all__ = ["Edit", "changed", "dotted", "flatten", "load", "override", "parse_assignments", "plan", "template"]

NO_RESULT = "it reads params.yaml; DVC tracks the values"
