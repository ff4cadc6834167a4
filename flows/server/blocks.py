"""Notification blocks by which Prefect's server sends alerts: as JSON to a webhook, and by e-mail.

They hold no secret. Prefect returns the values of any block, its SecretStr fields included, to every client of its API
that asks with `include_secrets`. A secret address and the mail server's password are therefore read from the
environment of Prefect's server at the moment of sending. No error contains one: Prefect shows errors on its pages and
stores them.
"""

import asyncio
import os
import smtplib
import socket
import ssl
import time
import uuid
from collections.abc import Callable
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import httpx
from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.blocks.webhook import Webhook
from prefect.logging import get_logger
from pydantic import Field, SecretStr

from ratchet.errors import PlatformError, first_line
from ratchet.servers.environment import FROM_ENVIRONMENT, MAIL_PASSWORD, WEBHOOK

__all__ = ["RatchetMail", "RatchetWebhook"]

Answer = TypeVar("Answer")

_log = get_logger("server.ratchet")
_TIMEOUT = 10.0  # seconds that a receiver may take to answer
_PAUSES = (1.0, 5.0)  # seconds before each retry; few, because Prefect's server has other things to do


class _TemporaryError(Exception):
    """An error after which a retry may succeed."""


class RatchetWebhook(Webhook):
    """Webhook that gets alerts as JSON, with a field `text` for receivers that show only a text."""

    _block_type_name = "Ratchet webhook"
    _block_type_slug = "ratchet-webhook"

    url: SecretStr = Field(description="http(s) address, or environment: the one in RATCHET_ALERTS_WEBHOOK")

    async def call(self, payload: dict[str, Any] | str | None = None) -> httpx.Response:
        """Send it. An answer without success raises, so that Prefect shows the action as failed."""
        assert isinstance(payload, str), "an automation's payload is a rendered template"
        try:
            return httpx.Response(await asyncio.to_thread(self.send, payload))
        except PlatformError as error:
            _log.error("an alert was not delivered: %s", error)
            raise

    def send(self, payload: str) -> int:
        """Send JSON. Return the HTTP status.

        Raises:
            PlatformError: it was not delivered. Names only the receiver's host.
        """
        address = self.url.get_secret_value()
        url = os.environ.get(WEBHOOK, "") if address == FROM_ENVIRONMENT else address
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PlatformError(
                f"{WEBHOOK}: not an http(s) address in the environment of Prefect's server. Fix: `ratchet down`, set "
                "it, then `ratchet up`"
            )
        return _with_retries(lambda: _post(url, payload), f"the webhook at {parts.scheme}://{parts.hostname}")


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
        try:
            await asyncio.to_thread(self.send, subject or "Ratchet", body)
        except PlatformError as error:
            _log.error("an alert was not delivered: %s", error)
            raise NotificationError(str(error)) from None

    def send(self, subject: str, body: str) -> None:
        """Send one message to all recipients.

        Raises:
            PlatformError: the server did not accept it, or not for every recipient.
        """
        message = EmailMessage()
        message["Subject"] = " ".join(subject.split())
        message["From"] = f"ratchet@{socket.getfqdn()}" if self.sender == "auto" else self.sender
        message["To"] = ", ".join(self.recipients)
        message["Date"] = formatdate(localtime=True)
        message["Message-ID"] = f"<{uuid.uuid4()}@{message['From'].addresses[0].domain}>"
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no automatic reply
        message.set_content(body)
        password = os.environ.get(MAIL_PASSWORD, "")
        if self.user != "none" and not password:
            raise PlatformError(
                f"{MAIL_PASSWORD}: not in the environment of Prefect's server, and alerts.smtp_user is {self.user}. "
                "Fix: `ratchet down`, set it, then `ratchet up`"
            )
        _with_retries(lambda: self._send_once(message, password), f"the mail server at {self.server}")

    def _send_once(self, message: EmailMessage, password: str) -> None:
        try:
            with self._connect() as connection:
                if self.user != "none":
                    connection.login(self.user, password)
                refused = connection.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            raise PlatformError(f"refuses {', '.join(error.recipients)}") from None
        except smtplib.SMTPAuthenticationError as error:
            raise PlatformError(f"refuses the login of {self.user} ({error.smtp_code})") from None
        except smtplib.SMTPResponseException as error:
            text = error.smtp_error
            answer = f"answered {error.smtp_code} {text.decode(errors='replace') if isinstance(text, bytes) else text}"
            raise (_TemporaryError if 400 <= error.smtp_code < 500 else PlatformError)(answer) from None
        except smtplib.SMTPServerDisconnected:
            raise _TemporaryError("closed the connection") from None
        except smtplib.SMTPException as error:
            raise PlatformError(f"does not accept the message ({first_line(error)})") from None
        except OSError as error:
            raise _TemporaryError(f"cannot be reached ({first_line(error)})") from None
        if refused:
            raise PlatformError(f"refuses {', '.join(refused)}; the other recipients have the message")

    def _connect(self) -> smtplib.SMTP:
        host, _, port = self.server.rpartition(":")
        host = host.strip("[]")  # of an IPv6 address
        if self.security == "tls":
            return smtplib.SMTP_SSL(host, int(port), timeout=_TIMEOUT, context=ssl.create_default_context())
        connection = smtplib.SMTP(host, int(port), timeout=_TIMEOUT)
        if self.security == "starttls":
            try:
                connection.starttls(context=ssl.create_default_context())
            except BaseException:
                connection.close()
                raise
        return connection


def _post(url: str, payload: str) -> int:
    headers = {"Content-Type": "application/json", "User-Agent": "ratchet"}
    try:
        # Without redirects: a redirected message would arrive as a GET without a body.
        with httpx.Client(verify=ssl.create_default_context(), timeout=_TIMEOUT, follow_redirects=False) as client:
            response = client.post(url, content=payload, headers=headers)
    except httpx.TransportError as error:
        raise _TemporaryError(f"cannot be reached ({first_line(error)})") from None
    except Exception as error:  # the text of any other error may contain the address
        raise PlatformError(f"cannot be used ({type(error).__name__})") from None
    if response.is_success:
        return response.status_code
    answer = f"answered {response.status_code} {response.reason_phrase}"
    raise (_TemporaryError if response.status_code == 429 or response.is_server_error else PlatformError)(answer)


def _with_retries(send: Callable[[], Answer], receiver: str) -> Answer:
    """Call `send`, and again after each of the pauses while the error is temporary."""
    for pause in (*_PAUSES, None):
        try:
            return send()
        except _TemporaryError as error:
            if pause is None:
                raise PlatformError(f"{receiver} {error}, {len(_PAUSES) + 1} times") from None
        except PlatformError as error:
            raise PlatformError(f"{receiver} {error}") from None
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")
