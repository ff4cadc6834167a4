"""Receivers of alerts in these tests: a web server and a mail server that keep what they receive."""

import http.server
import json
import socketserver
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest


@dataclass
class Webhook:
    """A web server that accepts JSON.

    Attributes:
        got: path and content of each POST.
        answers: statuses to answer with, in this order; then 200.
    """

    got: list[tuple[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    server: http.server.ThreadingHTTPServer | None = None
    port: int = 0

    def begin(self) -> None:
        """Listen. After `end`, listen at the same port again."""
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                status = receiver.answers.pop(0) if receiver.answers else 200
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if status == 200:
                    receiver.got.append((self.path, content))
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self) -> None:
        """Stop listening, so that connections are refused."""
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def alerts(self, kind: str) -> list[dict[str, Any]]:
        """Return the alerts of one kind."""
        return [content for _, content in self.got if content["kind"] == kind]


class _Lines(socketserver.StreamRequestHandler):
    """The part of SMTP that is needed for one message at a time."""

    server: "_Sink"

    def reply(self, *lines: str) -> None:
        for line in lines:
            self.wfile.write(f"{line}\r\n".encode())

    def setup(self) -> None:
        if self.server.post.only_tls:
            self.start_tls()
        super().setup()

    def start_tls(self) -> None:
        post = self.server.post
        assert post.context is not None
        self.request = post.context.wrap_socket(self.request, server_side=True)
        post.secured += 1

    def handle(self) -> None:
        self.reply("220 here")
        while line := self.rfile.readline().decode().strip():
            if not self.handle_command(*line.split(maxsplit=1)):
                return

    def finish(self) -> None:
        super().finish()
        self.request.close()  # the TLS connection is another object than the one that the server closes

    def handle_command(self, word: str, rest: str = "") -> bool:
        post = self.server.post
        match word.upper():
            case "EHLO":
                self.reply("250-here", "250-STARTTLS", "250 AUTH PLAIN") if post.context else self.reply(
                    "250-here", "250 AUTH PLAIN"
                )
            case "STARTTLS":
                self.reply("220 go on")
                self.start_tls()
                super().setup()
            case "AUTH":
                post.signed_in.append(rest)
                self.reply("535 no" if post.refuses_logins else "235 welcome")
            case "RCPT" if post.unknown and post.unknown in rest:
                self.reply("550 no such user")
            case "DATA":
                self.reply("354 go on")
                content = b"".join(iter(self.rfile.readline, b".\r\n"))
                post.messages.append(message_from_bytes(content, policy=policy.default))
                self.reply("250 taken")
            case "QUIT":
                self.reply("221 bye")
                return False
            case _:
                self.reply("250 yes")
        return True


class _Sink(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, post: "PostOffice") -> None:
        super().__init__(("127.0.0.1", 0), _Lines)
        self.post = post

    def handle_error(self, *who: Any) -> None:
        if not isinstance(sys.exception(), ssl.SSLError):  # a sender that does not trust the certificate hangs up
            super().handle_error(*who)


@dataclass
class PostOffice:
    """A mail server that keeps every message.

    Attributes:
        signed_in: arguments of the AUTH commands.
        secured: number of encrypted connections.
        context: for encryption; None: the server offers none.
        only_tls: connections are encrypted from their first byte.
        unknown: address of an unknown recipient.
        refuses_logins: every login fails.
    """

    messages: list[EmailMessage] = field(default_factory=list)
    signed_in: list[str] = field(default_factory=list)
    secured: int = 0
    context: ssl.SSLContext | None = None
    only_tls: bool = False
    unknown: str = ""
    refuses_logins: bool = False
    port: int = 0

    def about(self, text: str) -> list[str]:
        """Return the messages whose subject or text contains `text`."""
        contents = [(str(message["Subject"]), message.get_content()) for message in list(self.messages)]
        return [content for subject, content in contents if text in subject or text in content]


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    receiver = Webhook()
    receiver.begin()
    yield receiver
    receiver.end()


@pytest.fixture(scope="module")
def post_office() -> Iterator[PostOffice]:
    post = PostOffice()
    with _Sink(post) as sink:
        post.port = sink.server_address[1]
        threading.Thread(target=sink.serve_forever, daemon=True).start()
        yield post
        sink.shutdown()
