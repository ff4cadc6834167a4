"""Notification blocks by which Prefect's server sends alerts: to a webhook, and by e-mail.

They hold no secret. Prefect returns the values of any block, its SecretStr fields included, to every client of its API
that asks with `include_secrets`. A secret address and the mail server's password are therefore read from the
environment of Prefect's server.
"""

import asyncio
from functools import partial
from typing import Any, Literal

import httpx
from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.blocks.webhook import Webhook
from prefect.logging import get_logger
from pydantic import Field, SecretStr

from flows.server import notify
from ratchet.errors import PlatformError

__all__ = ["RatchetMail", "RatchetWebhook"]

_log = get_logger("server.ratchet")


class RatchetWebhook(Webhook):
    """Webhook that gets alerts as JSON, with a field `text` for receivers that show only a text."""

    _block_type_name = "Ratchet webhook"
    _block_type_slug = "ratchet-webhook"

    url: SecretStr = Field(description="http(s) address, or environment: the one in RATCHET_ALERTS_WEBHOOK")

    async def call(self, payload: dict[str, Any] | str | None = None) -> httpx.Response:
        """Send it. An answer without success raises, so that Prefect shows the action as failed."""
        assert isinstance(payload, str), "an automation's payload is a rendered template"
        try:
            status = await asyncio.to_thread(notify.post, self.url.get_secret_value(), payload)
        except PlatformError as error:
            _log.error("an alert was not delivered: %s", error)
            raise
        return httpx.Response(status)


class RatchetMail(NotificationBlock):
    """Recipients of alerts by e-mail, and the mail server."""

    _block_type_name = "Ratchet e-mail"
    _block_type_slug = "ratchet-e-mail"

    recipients: list[str] = Field(description="e-mail addresses")
    sender: str = Field(description="e-mail address; auto: ratchet@ this machine")
    server: str = Field(description="mail server, HOST:PORT")
    security: Literal["none", "starttls", "tls"] = Field(description="encryption of the connection")
    user: str = Field(description="SMTP user, with the password in RATCHET_ALERTS_SMTP_PASSWORD; none: no login")

    async def notify(self, body: str, subject: str | None = None) -> None:
        """Send one message to all recipients."""
        server = notify.MailServer.parse(self.server, self.security, self.user)
        send = partial(notify.mail, server, sender=self.sender, recipients=self.recipients)
        try:
            await asyncio.to_thread(send, subject=subject or "Ratchet", body=body)
        except PlatformError as error:
            _log.error("an alert was not delivered: %s", error)
            raise NotificationError(str(error)) from None
