"""Names of registered models: those that MLflow, its filters and addresses such as NAME/VERSION can hold."""

import re

from ratchet.data.manifest import Manifest
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["name_fault", "registered_name", "valid_name"]

NO_RESULT = "of a check at the start, and of the name in the registry"

# `/`, `@` and `:` divide a name from its version, quotes and `%` end or change a filter of MLflow.
_REFUSED = re.compile(r"""[/\\@:%'"`\x00-\x1f\x7f]""")


def valid_name(name: str) -> str:
    """Return the name of a data set as the name of a model: "bob's sales" becomes "bob-s sales"."""
    return _REFUSED.sub("-", name).strip().strip(".") or "model"


def name_fault(name: str) -> str | None:
    """Return the message for a registry.model that MLflow or an address cannot hold; None if it is valid."""
    if valid_name(name) == name:
        return None
    return (
        f"registry.model: found {name!r}. Allowed: a name without / \\ @ : % and quotes, and without a dot or space at "
        f"its ends. Fix: `ratchet set 'registry.model={valid_name(name)}'`"
    )


def registered_name(params: Params, workspace: Workspace) -> str:
    """Return registry.model; of auto, the name of the packed data as a valid name."""
    name = params.registry.model
    return valid_name(Manifest.read(workspace.packed).name) if name == "auto" else name
