"""What `up` tells Prefect's server of alerts: one automation for each kind of trouble, and the blocks that send them.

Only what bears our tag and one of our names is ever changed or removed. Whether one is switched on is its people's: a
switch on Prefect's page stays as it was left.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.errors import PlatformError
from ratchet.platform.sending import ENVIRONMENT, PASSWORD, WEBHOOK
from ratchet.platform.servers import call
from ratchet.platform.troubles import TROUBLES, Trouble
from ratchet.settings.model import AlertSettings

__all__ = ["NOBODY", "arrange", "require_secrets"]

NOBODY = AlertSettings()  # is told

_OURS = "ratchet-alert"  # the tag of our automations
_DOCUMENT = "ratchet-alerts"  # the name of our blocks, one of each kind


@dataclass(frozen=True)
class _Block:
    """A kind of block that `flows.alerts` has the class of."""

    slug: str
    kind: str
    about: str
    capabilities: tuple[str, ...]


_WEBHOOK = _Block(
    "ratchet-webhook",
    "Ratchet webhook",
    f"Where Ratchet's alerts go as JSON. `environment`: to the address in {WEBHOOK}.",
    (),
)
_MAIL = _Block(
    "ratchet-e-mail",
    "Ratchet e-mail",
    f"Whom Ratchet's alerts are mailed to, and how. The mail server's password is in {PASSWORD}.",
    ("notify",),
)


def require_secrets(settings: AlertSettings, environment: Mapping[str, str]) -> None:
    """Make sure that Prefect's server has, or will have, what the settings need in its environment.

    Raises:
        PlatformError: it has not; names the variable.
    """
    needed = [(WEBHOOK, "alerts.webhook", settings.webhook)] if settings.webhook == ENVIRONMENT else []
    if settings.email_to and settings.smtp_user != "none":
        needed.append((PASSWORD, "alerts.smtp_user", settings.smtp_user))
    for name, key, value in needed:
        if not environment.get(name):
            raise PlatformError(
                f"{name}: not in the environment that Prefect's server is started in, and {key} is {value}: "
                f"`ratchet down`, `export {name}=...`, then `ratchet up`; or `ratchet set {key}=none`"
            )


def arrange(api: str, settings: AlertSettings) -> str | None:
    """Make Prefect's automations and blocks what the settings say; in words, who is told. None: nobody is.

    Raises:
        PlatformError: Prefect's server refuses or does not answer.
    """
    names = [trouble.name for trouble in TROUBLES]
    wanted = {"automations": {"name": {"any_": names}, "tags": {"all_": [_OURS]}}}
    found = {automation["name"]: automation for automation in call(api, "/automations/filter", wanted)}
    if not settings.has_recipients:
        for automation in found.values():
            call(api, f"/automations/{automation['id']}", method="DELETE")
        for block in (_WEBHOOK, _MAIL) if found else ():
            _remove(api, block)
        return None
    ways = _ways(api, settings)
    for trouble in TROUBLES:
        _put(api, _automation(trouble, ways), found.get(trouble.name))
    for block in (_WEBHOOK, _MAIL):
        if block.slug not in ways:
            _remove(api, block)
    told = ["the webhook"] * (_WEBHOOK.slug in ways) + list(settings.email_to)
    return ", ".join(told)


def _ways(api: str, settings: AlertSettings) -> dict[str, str]:
    """The blocks to send by: each kind's slug, and the block's id."""
    ways = {}
    if settings.webhook != "none":
        ways[_WEBHOOK.slug] = _keep(api, _WEBHOOK, {"url": settings.webhook})
    if settings.email_to:
        data = {
            "recipients": list(settings.email_to),
            "sender": settings.email_from,
            "server": settings.smtp,
            "security": settings.smtp_security,
            "user": settings.smtp_user,
        }
        ways[_MAIL.slug] = _keep(api, _MAIL, data)
    return ways


def _automation(trouble: Trouble, ways: Mapping[str, str]) -> dict[str, Any]:
    actions = []
    if hook := ways.get(_WEBHOOK.slug):
        actions.append({"type": "call-webhook", "block_document_id": hook, "payload": trouble.payload})
    if mail := ways.get(_MAIL.slug):
        letter = {"subject": trouble.subject, "body": trouble.letter}
        actions.append({"type": "send-notification", "block_document_id": mail, **letter})
    return {
        "name": trouble.name,
        "description": trouble.description,
        "tags": [_OURS],
        "trigger": trouble.trigger,
        "actions": actions,
    }


def _put(api: str, automation: dict[str, Any], found: Mapping[str, Any] | None) -> None:
    if found is None:
        call(api, "/automations/", automation)
    elif not _holds(automation, found):  # else it is left alone: putting it forgets what was told lately
        call(api, f"/automations/{found['id']}", {**automation, "enabled": found["enabled"]}, method="PUT")


def _holds(wanted: Any, found: Any) -> bool:
    """Does what the server has say all that is wanted? It says more: ids, defaults."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(_holds(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(wanted) != len(found):
            return False
        if all(isinstance(one, str) for one in wanted):  # a set, which comes back in any order
            return sorted(wanted) == sorted(found)
        return all(map(_holds, wanted, found))
    return bool(wanted == found)


def _keep(api: str, block: _Block, data: dict[str, Any]) -> str:
    """Make the block hold this; its id."""
    kinds = call(api, "/block_types/filter", {"block_types": {"slug": {"any_": [block.slug]}}})
    kind = kinds[0] if kinds else call(api, "/block_types/", _kind(block))
    found = _documents(api, block)
    if not found:
        schema = {"block_type_id": kind["id"], "capabilities": block.capabilities, "fields": _fields(block, data)}
        made = call(api, "/block_schemas/", schema)
        document = {"name": _DOCUMENT, "data": data, "block_type_id": kind["id"], "block_schema_id": made["id"]}
        return str(call(api, "/block_documents/", document)["id"])
    if found[0]["data"] != data:
        change = {"data": data, "merge_existing_data": False}
        call(api, f"/block_documents/{found[0]['id']}", change, method="PATCH")
    return str(found[0]["id"])


def _remove(api: str, block: _Block) -> None:
    for document in _documents(api, block):
        call(api, f"/block_documents/{document['id']}", method="DELETE")


def _documents(api: str, block: _Block) -> list[dict[str, Any]]:
    wanted = {
        "block_types": {"slug": {"any_": [block.slug]}},
        "block_documents": {"name": {"any_": [_DOCUMENT]}},
        "include_secrets": True,
    }
    found: list[dict[str, Any]] = call(api, "/block_documents/filter", wanted)
    return found


def _kind(block: _Block) -> dict[str, str]:
    return {"name": block.kind, "slug": block.slug, "description": block.about}


def _fields(block: _Block, data: Mapping[str, Any]) -> dict[str, Any]:
    """The form that Prefect's page shows for it."""
    text: dict[str, Any] = {"type": "string"}
    forms = {
        name: {"type": "array", "items": text} if isinstance(value, list) else text for name, value in data.items()
    }
    return {
        "title": block.kind,
        "description": block.about,
        "type": "object",
        "properties": {name: {"title": name.capitalize(), **form} for name, form in forms.items()},
        "required": list(data),
        "block_type_slug": block.slug,
        "secret_fields": [],
        "block_schema_references": {},
    }
