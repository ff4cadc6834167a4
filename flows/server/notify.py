"""Delivery of alerts: as JSON to a webhook, as an e-mail to a mail server.

Secrets are read from the environment at the moment of sending, and no error contains one: Prefect shows errors on its
pages and stores them.
"""

import os
import smtplib
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import httpx

from ratchet.errors import PlatformError, first_line
from ratchet.servers.environment import FROM_ENVIRONMENT, MAIL_PASSWORD, WEBHOOK

__all__ = ["MailServer", "mail", "post"]

Answer = TypeVar("Answer")

_TIMEOUT = 10.0  # seconds that a receiver may take to answer
_PAUSES = (1.0, 5.0)  # seconds before each retry; few, because Prefect's server has other things to do


@dataclass(frozen=True)
class MailServer:
    """Address of a mail server; `user` "none": no login."""

    host: str
    port: int
    security: Literal["none", "starttls", "tls"]
    user: str

    @classmethod
    def parse(cls, address: str, security: Literal["none", "starttls", "tls"], user: str) -> "MailServer":
        """Read `address` as HOST:PORT, with an IPv6 address in brackets."""
        host, _, port = address.rpartition(":")
        return cls(host.strip("[]"), int(port), security, user)


class _TemporaryError(Exception):
    """An error after which a retry may succeed."""


def post(address: str, payload: str) -> int:
    """Send JSON to `address`, or to the address in the environment if it is "environment". Return the HTTP status.

    Raises:
        PlatformError: it was not delivered. Names only the receiver's host.
    """
    url = os.environ.get(WEBHOOK, "") if address == FROM_ENVIRONMENT else address
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PlatformError(
            f"{WEBHOOK}: not an http(s) address in the environment of Prefect's server. Fix: `ratchet down`, set it, "
            "then `ratchet up`"
        )
    receiver = f"the webhook at {parts.scheme}://{parts.hostname}"
    return _with_retries(lambda: _post(url, payload), receiver)


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


def mail(server: MailServer, *, sender: str, recipients: Sequence[str], subject: str, body: str) -> None:
    """Send one message to all recipients.

    Args:
        sender: "auto": ratchet@ this machine.

    Raises:
        PlatformError: the server did not accept it, or not for every recipient.
    """
    message = EmailMessage()
    message["Subject"] = " ".join(subject.split())
    message["From"] = f"ratchet@{socket.getfqdn()}" if sender == "auto" else sender
    message["To"] = ", ".join(recipients)
    message["Date"] = formatdate(localtime=True)
    message["Message-ID"] = f"<{uuid.uuid4()}@{message['From'].addresses[0].domain}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no automatic reply
    message.set_content(body)
    password = os.environ.get(MAIL_PASSWORD, "")
    if server.user != "none" and not password:
        raise PlatformError(
            f"{MAIL_PASSWORD}: not in the environment of Prefect's server, and alerts.smtp_user is {server.user}. Fix: "
            "`ratchet down`, set it, then `ratchet up`"
        )
    _with_retries(lambda: _mail(server, message, password), f"the mail server at {server.host}:{server.port}")


def _mail(server: MailServer, message: EmailMessage, password: str) -> None:
    try:
        with _connect(server) as connection:
            if server.user != "none":
                connection.login(server.user, password)
            refused = connection.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        raise PlatformError(f"refuses {', '.join(error.recipients)}") from None
    except smtplib.SMTPAuthenticationError as error:
        raise PlatformError(f"refuses the login of {server.user} ({error.smtp_code})") from None
    except smtplib.SMTPResponseException as error:
        text = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        answer = f"answered {error.smtp_code} {text}"
        raise (_TemporaryError if 400 <= error.smtp_code < 500 else PlatformError)(answer) from None
    except smtplib.SMTPServerDisconnected:
        raise _TemporaryError("closed the connection") from None
    except smtplib.SMTPException as error:
        raise PlatformError(f"does not accept the message ({first_line(error)})") from None
    except OSError as error:
        raise _TemporaryError(f"cannot be reached ({first_line(error)})") from None
    if refused:
        raise PlatformError(f"refuses {', '.join(refused)}; the other recipients have the message")


def _connect(server: MailServer) -> smtplib.SMTP:
    if server.security == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(server.host, server.port, timeout=_TIMEOUT, context=context)
    connection = smtplib.SMTP(server.host, server.port, timeout=_TIMEOUT)
    if server.security == "starttls":
        try:
            connection.starttls(context=ssl.create_default_context())
        except BaseException:
            connection.close()
            raise
    return connection


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
