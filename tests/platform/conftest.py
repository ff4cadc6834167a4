"""Who is told of trouble in these tests: a web server and a mail server of their own, which keep what they get."""

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
    """A web server that takes JSON.

    Attributes:
        got: what was posted: the path, and the content.
        answers: the statuses to answer with, one after the other; then 200.
    """

    got: list[tuple[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    server: http.server.ThreadingHTTPServer | None = None
    port: int = 0

    def begin(self) -> None:
        """Listen, again at the same port if it was ended."""
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
        """Be gone: whoever comes is refused."""
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def told(self, kind: str) -> list[dict[str, Any]]:
        """What it got of one kind of trouble."""
        return [content for _, content in self.got if content["kind"] == kind]


class _Lines(socketserver.StreamRequestHandler):
    """As much of SMTP as a sender needs who is served one letter at a time."""

    server: "_Sink"

    def say(self, *lines: str) -> None:
        for line in lines:
            self.wfile.write(f"{line}\r\n".encode())

    def setup(self) -> None:
        if self.server.post.only_tls:
            self.make_secret()
        super().setup()

    def make_secret(self) -> None:
        post = self.server.post
        assert post.context is not None
        self.request = post.context.wrap_socket(self.request, server_side=True)
        post.secured += 1

    def handle(self) -> None:
        self.say("220 here")
        while line := self.rfile.readline().decode().strip():
            if not self.obey(*line.split(maxsplit=1)):
                return

    def finish(self) -> None:
        super().finish()
        self.request.close()  # a connection made secret is not the one that the server knows

    def obey(self, word: str, rest: str = "") -> bool:
        post = self.server.post
        match word.upper():
            case "EHLO":
                self.say("250-here", "250-STARTTLS", "250 AUTH PLAIN") if post.context else self.say(
                    "250-here", "250 AUTH PLAIN"
                )
            case "STARTTLS":
                self.say("220 go on")
                self.make_secret()
                super().setup()
            case "AUTH":
                post.signed_in.append(rest)
                self.say("535 no" if post.knows_nobody else "235 welcome")
            case "RCPT" if post.unknown and post.unknown in rest:
                self.say("550 nobody of that name")
            case "DATA":
                self.say("354 go on")
                content = b"".join(iter(self.rfile.readline, b".\r\n"))
                post.letters.append(message_from_bytes(content, policy=policy.default))
                self.say("250 taken")
            case "QUIT":
                self.say("221 bye")
                return False
            case _:
                self.say("250 yes")
        return True


class _Sink(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, post: "PostOffice") -> None:
        super().__init__(("127.0.0.1", 0), _Lines)
        self.post = post

    def handle_error(self, *who: Any) -> None:
        if not isinstance(sys.exception(), ssl.SSLError):  # a sender who does not trust the certificate hangs up
            super().handle_error(*who)


@dataclass
class PostOffice:
    """A mail server that keeps every letter.

    Attributes:
        signed_in: what was said to be let in, as it was said.
        secured: how many connections were made secret.
        context: by which they are; without one it offers none.
        only_tls: they are from their first byte.
        unknown: the address of nobody.
        knows_nobody: nobody is let in.
    """

    letters: list[EmailMessage] = field(default_factory=list)
    signed_in: list[str] = field(default_factory=list)
    secured: int = 0
    context: ssl.SSLContext | None = None
    only_tls: bool = False
    unknown: str = ""
    knows_nobody: bool = False
    port: int = 0

    def about(self, words: str) -> list[str]:
        """The letters whose subject has these words."""
        return [letter.get_content() for letter in list(self.letters) if words in str(letter["Subject"])]


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
