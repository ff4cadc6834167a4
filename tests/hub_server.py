"""A server that speaks the few endpoints of Hugging Face's hub which Ratchet uses, over real HTTP."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Files by commit, and the commit of each branch."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    gated: bool = False


@dataclass
class Hub:
    """Repositories, and what goes wrong. Large files are sent by another host name, as the hub does."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    damage: bool = False  # one byte of a large file is another
    sent: int | None = None  # bytes of a large file that are sent; None: all
    unavailable: str = ""  # name of a file that cannot be read
    requests: list[str] = field(default_factory=list)  # paths, of the files behind redirects too
    tokens: list[tuple[str, str]] = field(default_factory=list)  # host name, and the header Authorization
    address: str = ""

    def add(self, name: str, files: dict[str, bytes], *, gated: bool = False) -> str:
        """Commit files to the branch main of a repository. Return the commit."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        repository = self.repositories.setdefault(name, Repository({}, {}, gated))
        repository.commits[commit] = files
        repository.branches["main"] = commit
        return commit

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path).strip("/").split("/")
        self.requests.append("/".join(path))
        self.tokens.append((handler.headers["Host"].partition(":")[0], handler.headers.get("Authorization", "")))
        if path[0] == "cdn":
            self._send_large(handler, path[1])
            return
        owner_name = path[2:4] if path[0] == "api" else path[:2]
        repository = self.repositories.get("/".join(owner_name))
        if repository is None:
            _send(handler, 401, b"", {"X-Error-Code": "RepoNotFound"})
        elif path[-1] == self.unavailable:
            _send(handler, 503, b"")
        elif path[0] != "api" and repository.gated and handler.headers.get("Authorization") != "Bearer right":
            _send(handler, 401, b"", {"X-Error-Code": "GatedRepo"})
        elif path[0] == "api":
            self._send_list(handler, repository, "/".join(path[5:]))
        else:
            self._send_file(handler, repository.commits[path[3]]["/".join(path[4:])])

    def _send_list(self, handler: BaseHTTPRequestHandler, repository: Repository, revision: str) -> None:
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            _send(handler, 404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": "0" * 40}
            | ({"lfs": {"sha256": _digest(content), "size": len(content)}} if name.endswith(".safetensors") else {})
            for name, content in repository.commits[commit].items()
        ]
        _send(handler, 200, json.dumps({"sha": commit, "siblings": siblings}).encode())

    def _send_file(self, handler: BaseHTTPRequestHandler, content: bytes) -> None:
        if content[:1] == b"{":  # a small text, of which the hub keeps no SHA-256
            _send(handler, 200, content)
            return
        other = self.address.replace("127.0.0.1", "localhost")
        _send(handler, 302, b"", {"Location": f"{other}/cdn/{_digest(content)}"})

    def _send_large(self, handler: BaseHTTPRequestHandler, digest: str) -> None:
        contents = [x for each in self.repositories.values() for files in each.commits.values() for x in files.values()]
        content = next(each for each in contents if _digest(each) == digest)
        if self.damage:
            content = content[:-1] + bytes([content[-1] ^ 1])
        _send(handler, 200, content, sent=self.sent)


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    content: bytes,
    headers: dict[str, str] | None = None,
    sent: int | None = None,
) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[:sent])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def running() -> Iterator[Hub]:
    """Yield a hub that answers at `hub.address`."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
