"""Delivery of alerts to a web server and a mail server that accept it, refuse it, or have an unknown certificate."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import reserved_port

from flows.server import blocks
from flows.server.blocks import RatchetMail, RatchetWebhook
from ratchet.errors import PlatformError
from ratchet.servers.environment import FROM_ENVIRONMENT, MAIL_PASSWORD, WEBHOOK

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry as often, but at once."""
    monkeypatch.setattr(blocks, "_PAUSES", (0.0, 0.0))


@pytest.fixture
def hook(webhook: Any) -> Iterator[Any]:
    yield webhook
    webhook.got.clear()
    webhook.answers.clear()


@pytest.fixture
def office(post_office: Any) -> Iterator[Any]:
    yield post_office
    post_office.messages.clear()
    post_office.signed_in.clear()
    post_office.unknown, post_office.refuses_logins, post_office.context, post_office.secured = "", False, None, 0
    post_office.only_tls = False


def server(office: Any, security: str = "none", user: str = "none") -> RatchetMail:
    both = ["ann@example.org", "bob@example.org"]
    return RatchetMail(recipients=both, sender="auto", server=f"{HOST}:{office.port}", security=security, user=user)  # type: ignore[arg-type]


def send(place: RatchetMail, subject: str = "Trouble", body: str = "It broke.\n") -> None:
    place.send(subject, body)


def post(address: str, payload: str) -> int:
    return RatchetWebhook(url=address).send(payload)


def test_busy_webhook_is_retried(hook: Any) -> None:
    hook.answers += [503, 429]
    assert post(f"http://{HOST}:{hook.port}/in", '{"text": "ö"}') == 200
    assert hook.got == [("/in", {"text": "ö"})]


@pytest.mark.parametrize("status", [404, 302])
def test_refusing_webhook_is_not_retried_and_its_address_is_secret(hook: Any, status: int) -> None:
    hook.answers += [status]
    with pytest.raises(PlatformError) as caught:
        post(f"http://{HOST}:{hook.port}/5ecret?key=5ecret", "{}")
    assert str(caught.value).startswith(f"the webhook at http://{HOST} answered {status} ")
    assert "5ecret" not in str(caught.value)
    assert not hook.got


@pytest.mark.parametrize("address", ["http://127.0.0.1:5ecret/", "http://127.0.0.1/5ecret\n", "5ecret", "ftp://5ecret"])
def test_no_error_contains_the_secret_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(WEBHOOK, address)
    with pytest.raises(PlatformError) as caught:
        post(FROM_ENVIRONMENT, "{}")
    assert "5ecret" not in str(caught.value)
    assert "RATCHET_ALERTS_WEBHOOK" in str(caught.value) or "http://127.0.0.1" in str(caught.value)


def test_missing_webhook_is_reported_after_three_attempts() -> None:
    with pytest.raises(PlatformError, match=r"cannot be reached \(.*refused.*\), 3 times$"):
        post(f"http://{HOST}:{reserved_port(HOST)}/in", "{}")


def test_message_arrives_as_it_was_written(office: Any) -> None:
    send(server(office), subject="Ärger:\n mit\tallem", body="Zeile eins\n.\nZeile drei: ö\n")
    [message] = office.messages
    assert message["Subject"] == "Ärger: mit allem"
    assert message["From"].startswith("ratchet@")
    assert message["To"] == "ann@example.org, bob@example.org"
    assert "ö" in message.get_content()
    assert not office.signed_in


def test_unknown_recipient_is_named_and_others_get_the_message(office: Any) -> None:
    office.unknown = "bob@"
    with pytest.raises(PlatformError, match=r"refuses bob@example\.org; the other recipients have the message"):
        send(server(office))
    assert len(office.messages) == 1


def test_wrong_password_is_reported_and_not_shown(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    office.refuses_logins = True
    monkeypatch.setenv(MAIL_PASSWORD, "5ecret")
    with pytest.raises(PlatformError, match=r"refuses the login of ratchet \(535\)") as caught:
        send(server(office, user="ratchet"))
    assert "5ecret" not in str(caught.value)


def test_missing_password_is_named(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MAIL_PASSWORD, raising=False)
    with pytest.raises(PlatformError, match="RATCHET_ALERTS_SMTP_PASSWORD: not in the environment"):
        send(server(office, user="ratchet"))


@pytest.fixture
def certificate(tmp_path: Path, office: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mail server's certificate; clients trust it through SSL_CERT_FILE."""
    path = tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=here"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(path), "-addext", f"subjectAltName=IP:{HOST}"]
    subprocess.run([*make, *files], check=True, capture_output=True)
    office.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    office.context.load_cert_chain(path, tmp_path / "key.pem")
    return path


def test_starttls_encrypts_the_password(office: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv(MAIL_PASSWORD, "5ecret")
    send(server(office, security="starttls", user="ratchet"))
    assert (office.secured, len(office.signed_in), len(office.messages)) == (1, 1, 1)


def test_tls_encrypts_from_the_first_byte(office: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    office.only_tls = True
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv(MAIL_PASSWORD, "5ecret")
    send(server(office, security="tls", user="ratchet"))
    assert (office.secured, len(office.signed_in), len(office.messages)) == (1, 1, 1)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_server_with_unknown_certificate_gets_no_message(office: Any, certificate: Path, security: str) -> None:
    office.only_tls = security == "tls"
    with pytest.raises(PlatformError, match="certificate verify failed"):
        send(server(office, security=security))
    assert not office.messages


def test_mail_server_without_tls_gets_no_message_if_required(office: Any) -> None:
    with pytest.raises(PlatformError, match="STARTTLS"):
        send(server(office, security="starttls"))
    assert not office.messages
