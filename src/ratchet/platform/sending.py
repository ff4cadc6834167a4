"""How an alert leaves this machine: as JSON to a webhook, as an e-mail to a mail server.

What must not be known is asked of the environment in the moment of sending, and no error says it: Prefect shows errors
on its pages and keeps them.
"""

import os
import smtplib
import socket
import ssl
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from ratchet.errors import PlatformError, first_line

__all__ = ["ENVIRONMENT", "PASSWORD", "SECRETS", "WEBHOOK", "MailServer", "mail", "post"]

WEBHOOK, PASSWORD = "RATCHET_ALERTS_WEBHOOK", "RATCHET_ALERTS_SMTP_PASSWORD"
SECRETS = (WEBHOOK, PASSWORD)
ENVIRONMENT = "environment"  # in the place of an address: it is the one in WEBHOOK

Answer = TypeVar("Answer")

_TIMEOUT = 10.0  # seconds that a receiver may take to answer
_PAUSES = (1.0, 5.0)  # seconds before it is tried again: the sender is Prefect's server, which has other things to do


@dataclass(frozen=True)
class MailServer:
    """Where letters are handed in; `user` "none": without signing in."""

    host: str
    port: int
    security: Literal["none", "starttls", "tls"]
    user: str

    @classmethod
    def parse(cls, place: str, security: Literal["none", "starttls", "tls"], user: str) -> "MailServer":
        """`place` as HOST:PORT, an IPv6 address in brackets."""
        host, _, port = place.rpartition(":")
        return cls(host.strip("[]"), int(port), security, user)


class _Passing(Exception):
    """It may go well the next time."""


def post(address: str, payload: str) -> int:
    """Send JSON to the address, or, of `ENVIRONMENT`, to the one in the environment; the status of the answer.

    Raises:
        PlatformError: nobody took it. Names the receiver's host alone.
    """
    where = os.environ.get(WEBHOOK, "") if address == ENVIRONMENT else address
    parts = urlsplit(where)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PlatformError(
            f"{WEBHOOK}: not an http(s) address in the environment of Prefect's server: `ratchet down`, set it, then "
            "`ratchet up`"
        )
    shown = f"the webhook at {parts.scheme}://{parts.hostname}"
    body, headers = payload.encode(), {"Content-Type": "application/json", "User-Agent": "ratchet"}
    request = urllib.request.Request(where, data=body, headers=headers, method="POST")
    return _with_patience(lambda: _post(request), shown)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message that is sent on would arrive as a GET without a body."""

    def redirect_request(self, *_: object) -> None:
        return None


def _post(request: urllib.request.Request) -> int:
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        said = f"answered {error.code} {error.reason}"
        error.close()
        if error.code == 429 or error.code >= 500:
            raise _Passing(said) from None
        raise PlatformError(said) from None
    except urllib.error.URLError as error:
        raise _Passing(f"cannot be reached ({error.reason})") from None
    except OSError as error:
        raise _Passing(f"cannot be reached ({first_line(error)})") from None
    except Exception as error:  # not HTTP at all; what such an error says may hold the address
        raise PlatformError(f"is not to be talked to ({type(error).__name__})") from None


def mail(server: MailServer, *, sender: str, recipients: Sequence[str], subject: str, body: str) -> None:
    """Hand in one letter for all recipients.

    Args:
        sender: "auto": ratchet@ this machine.

    Raises:
        PlatformError: the server did not take it, or not for everybody.
    """
    letter = EmailMessage()
    letter["Subject"] = " ".join(subject.split())
    letter["From"] = f"ratchet@{socket.getfqdn()}" if sender == "auto" else sender
    letter["To"] = ", ".join(recipients)
    letter["Date"] = formatdate(localtime=True)
    letter["Message-ID"] = f"<{uuid.uuid4()}@{letter['From'].addresses[0].domain}>"
    letter["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's holiday note is to answer it
    letter.set_content(body)
    password = os.environ.get(PASSWORD, "")
    if server.user != "none" and not password:
        raise PlatformError(
            f"{PASSWORD}: not in the environment of Prefect's server, and alerts.smtp_user is {server.user}: "
            "`ratchet down`, set it, then `ratchet up`"
        )
    _with_patience(lambda: _mail(server, letter, password), f"the mail server at {server.host}:{server.port}")


def _mail(server: MailServer, letter: EmailMessage, password: str) -> None:
    try:
        with _connected(server) as connection:
            if server.user != "none":
                connection.login(server.user, password)
            refused = connection.send_message(letter)
    except smtplib.SMTPRecipientsRefused as error:
        raise PlatformError(f"refuses {', '.join(error.recipients)}") from None
    except smtplib.SMTPAuthenticationError as error:
        raise PlatformError(f"does not let {server.user} in ({error.smtp_code})") from None
    except smtplib.SMTPResponseException as error:
        words = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        said = f"answered {error.smtp_code} {words}"
        raise (_Passing if 400 <= error.smtp_code < 500 else PlatformError)(said) from None
    except smtplib.SMTPServerDisconnected:
        raise _Passing("hung up") from None
    except smtplib.SMTPException as error:
        raise PlatformError(f"does not take it ({first_line(error)})") from None
    except OSError as error:
        raise _Passing(f"cannot be reached ({first_line(error)})") from None
    if refused:
        raise PlatformError(f"refuses {', '.join(refused)}; the others have it")


def _connected(server: MailServer) -> smtplib.SMTP:
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


def _with_patience(send: Callable[[], Answer], shown: str) -> Answer:
    """Send; what may pass is tried again after each of the pauses."""
    for pause in (*_PAUSES, None):
        try:
            return send()
        except _Passing as error:
            if pause is None:
                raise PlatformError(f"{shown} {error}, {len(_PAUSES) + 1} times") from None
        except PlatformError as error:
            raise PlatformError(f"{shown} {error}") from None
        time.sleep(pause)
    raise AssertionError("the last turn returns or raises")
