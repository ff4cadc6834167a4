"""How an alert leaves: to a web server and a mail server that take it, refuse it, or hide behind a certificate."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import PlatformError
from ratchet.platform import sending
from ratchet.platform.processes import free_port
from ratchet.platform.sending import MailServer, mail, post

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again as often, but at once."""
    monkeypatch.setattr(sending, "_PAUSES", (0.0, 0.0))


@pytest.fixture
def hook(webhook: Any) -> Iterator[Any]:
    yield webhook
    webhook.got.clear()
    webhook.answers.clear()


@pytest.fixture
def office(post_office: Any) -> Iterator[Any]:
    yield post_office
    post_office.letters.clear()
    post_office.signed_in.clear()
    post_office.unknown, post_office.knows_nobody, post_office.context, post_office.secured = "", False, None, 0
    post_office.only_tls = False


def server(office: Any, security: str = "none", user: str = "none") -> MailServer:
    return MailServer.parse(f"{HOST}:{office.port}", security, user)  # type: ignore[arg-type]


def send(place: MailServer, subject: str = "Trouble", body: str = "It broke.\n", sender: str = "auto") -> None:
    mail(place, sender=sender, recipients=["ann@example.org", "bob@example.org"], subject=subject, body=body)


def test_a_webhook_that_is_busy_is_asked_again(hook: Any) -> None:
    hook.answers += [503, 429]
    assert post(f"http://{HOST}:{hook.port}/in", '{"text": "ö"}') == 200
    assert hook.got == [("/in", {"text": "ö"})]


@pytest.mark.parametrize("status", [404, 302])
def test_a_webhook_that_refuses_is_asked_once_and_its_address_is_not_said(hook: Any, status: int) -> None:
    hook.answers += [status]
    with pytest.raises(PlatformError) as told:
        post(f"http://{HOST}:{hook.port}/5ecret?key=5ecret", "{}")
    assert str(told.value).startswith(f"the webhook at http://{HOST} answered {status} ")
    assert "5ecret" not in str(told.value)
    assert not hook.got


@pytest.mark.parametrize("address", ["http://127.0.0.1:5ecret/", "http://127.0.0.1/5ecret\n", "5ecret", "ftp://5ecret"])
def test_no_error_says_the_secret_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(sending.WEBHOOK, address)
    with pytest.raises(PlatformError) as told:
        post(sending.ENVIRONMENT, "{}")
    assert "5ecret" not in str(told.value)
    assert "RATCHET_ALERTS_WEBHOOK" in str(told.value) or "http://127.0.0.1" in str(told.value)


def test_a_webhook_that_is_not_there_is_told_after_three_tries() -> None:
    with pytest.raises(PlatformError, match=r"cannot be reached \(.*refused.*\), 3 times$"):
        post(f"http://{HOST}:{free_port(HOST)}/in", "{}")


def test_a_letter_arrives_as_it_was_written(office: Any) -> None:
    send(server(office), subject="Ärger:\n mit\tallem", body="Zeile eins\n.\nZeile drei: ö\n")
    [letter] = office.letters
    assert letter["Subject"] == "Ärger: mit allem"
    assert letter["From"].startswith("ratchet@")
    assert letter["To"] == "ann@example.org, bob@example.org"
    assert "ö" in letter.get_content()
    assert not office.signed_in


def test_a_recipient_whom_nobody_knows_is_named_and_the_other_gets_the_letter(office: Any) -> None:
    office.unknown = "bob@"
    with pytest.raises(PlatformError, match=r"refuses bob@example\.org; the others have it"):
        send(server(office))
    assert len(office.letters) == 1


def test_a_wrong_password_is_told_and_not_said(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    office.knows_nobody = True
    monkeypatch.setenv(sending.PASSWORD, "5ecret")
    with pytest.raises(PlatformError, match=r"does not let ratchet in \(535\)") as told:
        send(server(office, user="ratchet"))
    assert "5ecret" not in str(told.value)


def test_a_password_that_is_not_there_is_named(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sending.PASSWORD, raising=False)
    with pytest.raises(PlatformError, match="RATCHET_ALERTS_SMTP_PASSWORD: not in the environment"):
        send(server(office, user="ratchet"))


@pytest.fixture
def certificate(tmp_path: Path, office: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mail server's; who trusts it is told by SSL_CERT_FILE."""
    path = tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=here"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(path), "-addext", f"subjectAltName=IP:{HOST}"]
    subprocess.run([*make, *files], check=True, capture_output=True)
    office.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    office.context.load_cert_chain(path, tmp_path / "key.pem")
    return path


def test_starttls_keeps_the_password_secret(office: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv(sending.PASSWORD, "5ecret")
    send(server(office, security="starttls", user="ratchet"))
    assert (office.secured, len(office.signed_in), len(office.letters)) == (1, 1, 1)


def test_tls_from_the_first_byte(office: Any, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    office.only_tls = True
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv(sending.PASSWORD, "5ecret")
    send(server(office, security="tls", user="ratchet"))
    assert (office.secured, len(office.signed_in), len(office.letters)) == (1, 1, 1)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_server_that_nobody_vouches_for_gets_no_letter(office: Any, certificate: Path, security: str) -> None:
    office.only_tls = security == "tls"
    with pytest.raises(PlatformError, match="certificate verify failed"):
        send(server(office, security=security))
    assert not office.letters


def test_a_mail_server_without_tls_gets_no_letter_where_it_is_asked_for(office: Any) -> None:
    with pytest.raises(PlatformError, match="STARTTLS"):
        send(server(office, security="starttls"))
    assert not office.letters
