"""Prefect's blocks by which alerts are sent: to a webhook, and by e-mail.

They hold no secret: Prefect gives a block's values to whoever asks its API for them. A secret address and the mail
server's password are read from the environment of Prefect's server, which `flows.server` starts.
"""

import asyncio
from functools import partial
from typing import Any, Literal

import httpx
from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.blocks.webhook import Webhook
from prefect.logging import get_logger
from pydantic import Field, SecretStr

from ratchet.errors import PlatformError
from ratchet.platform import sending

__all__ = ["RatchetMail", "RatchetWebhook"]

_log = get_logger("server.ratchet")


class RatchetWebhook(Webhook):
    """Where alerts go as JSON, with a field `text` for those that show a text alone."""

    _block_type_name = "Ratchet webhook"
    _block_type_slug = "ratchet-webhook"

    url: SecretStr = Field(description="http(s) address, or environment: the one in RATCHET_ALERTS_WEBHOOK")

    async def call(self, payload: dict[str, Any] | str | None = None) -> httpx.Response:
        """Send it; an answer that is no success is an error here, so that Prefect shows the action as failed."""
        assert isinstance(payload, str), "an automation's payload is a rendered template"
        try:
            status = await asyncio.to_thread(sending.post, self.url.get_secret_value(), payload)
        except PlatformError as error:
            _log.error("an alert was not delivered: %s", error)
            raise
        return httpx.Response(status)


class RatchetMail(NotificationBlock):
    """Whom alerts are mailed to, and by which mail server."""

    _block_type_name = "Ratchet e-mail"
    _block_type_slug = "ratchet-e-mail"

    recipients: list[str] = Field(description="e-mail addresses")
    sender: str = Field(description="e-mail address; auto: ratchet@ this machine")
    server: str = Field(description="mail server, HOST:PORT")
    security: Literal["none", "starttls", "tls"] = Field(description="of the way to it")
    user: str = Field(description="who signs in there, with the password in RATCHET_ALERTS_SMTP_PASSWORD; none: nobody")

    async def notify(self, body: str, subject: str | None = None) -> None:
        """Hand in one letter for all of them."""
        server = sending.MailServer.parse(self.server, self.security, self.user)
        send = partial(sending.mail, server, sender=self.sender, recipients=self.recipients)
        try:
            await asyncio.to_thread(send, subject=subject or "Ratchet", body=body)
        except PlatformError as error:
            _log.error("an alert was not delivered: %s", error)
            raise NotificationError(str(error)) from None
