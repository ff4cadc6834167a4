"""Who somebody is, and whether the settings let them do what they are about to."""

import os
from typing import Literal

from ratchet.errors import NotAllowed
from ratchet.settings.model import AccessSettings

__all__ = ["Role", "require", "user"]

Role = Literal["runners", "approvers", "admins"]


def user() -> str:
    """This process's user by the system's own account, not by variables that anybody may set."""
    if not hasattr(os, "getuid"):
        import getpass

        return getpass.getuser()
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under a number that has no name
        return str(os.getuid())


def require(access: AccessSettings, role: Role, who: str, act: str) -> None:
    """Let `who` do `act` only if they have the role.

    Raises:
        NotAllowed: naming the setting and who has the role.
    """
    people: object = getattr(access, role)
    if people != "everyone" and who not in getattr(access, role):
        allowed = ", ".join(getattr(access, role)) or "nobody"
        raise NotAllowed(
            f"{who} may not {act}: params.yaml: access.{role} allows {allowed}: ask them, or have {who} added"
        )
