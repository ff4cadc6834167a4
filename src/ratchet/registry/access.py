"""The current user, and the check that the settings allow an act."""

import os
import pwd
from collections.abc import Sequence
from typing import Literal

from ratchet.errors import NotAllowed
from ratchet.settings.model import AccessSettings

__all__ = ["Role", "require", "user"]

Role = Literal["runners", "approvers", "admins"]


def user() -> str:
    """Return this process's user by the system account. Environment variables do not count: anyone can set them."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container can run under a number that has no name
        return str(os.getuid())


def require(access: AccessSettings, role: Role, who: str, act: str) -> None:
    """Check that `who` has the role that an act needs.

    Raises:
        NotAllowed: `who` does not have it; the message names the setting and the users who do.
    """
    people: str | Sequence[str] = getattr(access, role)
    if people != "everyone" and who not in people:
        allowed = ", ".join(people) or "no user"
        raise NotAllowed(
            f"{who} may not {act}: params.yaml: access.{role} allows {allowed}. Fix: ask one of them, or have {who} "
            "added"
        )
