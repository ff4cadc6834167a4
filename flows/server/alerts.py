"""Alerts on Prefect's server: an automation for each alert rule, and the blocks that send the messages.

Only automations with our tag and one of our names are ever changed or removed. Users may switch one off on Prefect's
page; it stays off.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

from prefect.blocks.core import Block
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.actions import ActionTypes, CallWebhook, SendNotification
from prefect.events.filters import AutomationFilter, AutomationFilterName, AutomationFilterTags
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound

from flows.server.alert_rules import ALERT_RULES, AlertRule
from flows.server.blocks import RatchetMail, RatchetWebhook
from flows.server.client import DIRECT
from ratchet.settings.model import AlertSettings

__all__ = ["set_alerts"]

_TAG = "ratchet-alert"  # of our automations
_DOCUMENT = "ratchet-alerts"  # name of our blocks, one of each kind


def set_alerts(client: SyncPrefectClient, settings: AlertSettings) -> list[str]:
    """Make Prefect's automations and blocks those of the settings. Return the receivers of alerts, for people."""
    names = AutomationFilterName(any_=[rule.name for rule in ALERT_RULES])
    ours = AutomationFilter(name=names, tags=AutomationFilterTags(all_=[_TAG]))
    existing = {automation.name: automation for automation in client.read_automations(automations=ours)}
    blocks = _blocks(settings)
    if blocks:
        ids = {kind: asyncio.run(_save(block)) for kind, block in blocks.items()}
        for rule in ALERT_RULES:
            _put(client, _automation(rule, ids), existing.get(rule.name))
    else:
        for automation in existing.values():
            client.delete_automation(automation.id)
    for kind in (RatchetWebhook, RatchetMail):
        if kind not in blocks:
            _remove(client, kind)
    return ["the webhook"] * (RatchetWebhook in blocks) + list(settings.email_to)


def _blocks(settings: AlertSettings) -> dict[type[Block], Block]:
    blocks: dict[type[Block], Block] = {}
    if settings.webhook != "none":
        blocks[RatchetWebhook] = RatchetWebhook(url=settings.webhook)
    if settings.email_to:
        blocks[RatchetMail] = RatchetMail(
            recipients=list(settings.email_to),
            sender=settings.email_from,
            server=settings.smtp,
            security=settings.smtp_security,
            user=settings.smtp_user,
        )
    return blocks


async def _save(block: Block) -> UUID:
    async with get_client(httpx_settings=DIRECT) as client:
        return await block.asave(_DOCUMENT, overwrite=True, client=client)


def _remove(client: SyncPrefectClient, kind: type[Block]) -> None:
    with suppress(ObjectNotFound):
        document = client.read_block_document_by_name(_DOCUMENT, kind.get_block_type_slug())
        client.delete_block_document(document.id)


def _automation(rule: AlertRule, blocks: Mapping[type[Block], UUID]) -> AutomationCore:
    actions: list[ActionTypes] = []
    if webhook := blocks.get(RatchetWebhook):
        actions.append(CallWebhook(block_document_id=webhook, payload=rule.payload))
    if mail := blocks.get(RatchetMail):
        actions.append(SendNotification(block_document_id=mail, subject=rule.subject, body=rule.body))
    return AutomationCore(
        name=rule.name, description=rule.description, tags=[_TAG], trigger=rule.trigger, actions=actions
    )


def _put(client: SyncPrefectClient, automation: AutomationCore, existing: Automation | None) -> None:
    if existing is None:
        client.create_automation(automation)
        return
    # Every field is set, because the client sends only those that are. The server accepts no owner in an update.
    wanted = automation.model_dump(exclude={"owner_resource"}) | {"enabled": existing.enabled}
    # Without a change there is no update: it would reset the time since the last alert.
    if wanted != existing.model_dump(exclude={"id", "owner_resource"}):
        client.update_automation(existing.id, AutomationCore.model_validate(wanted))
