"""Pretrained weights through the real commands: a server on this machine, caches, and downloads that go wrong."""

import hashlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from waiting import until
from weights_project import Project

from ratchet import settings, weights
from ratchet.kinds import ImageInput, ModelSpec
from ratchet.problems import Classes
from ratchet.settings.model_names import torchvision_classifiers
from ratchet.training import build
from ratchet.training.models.pretrained import find_pretrained, load_pretrained
from ratchet.weights_sources import is_address
from ratchet.workspace import Workspace


@dataclass
class Mirror:
    """A web server with one file, of which it may send a part only."""

    content: bytes
    sent: int | None = None  # bytes that it sends; None: all
    stays: bool = False  # it keeps the connection open after them
    gone: threading.Event = field(default_factory=threading.Event)  # ends the open connections
    requests: int = 0

    @property
    def name(self) -> str:
        return f"shufflenet_v2_x0_5-{hashlib.sha256(self.content).hexdigest()[:8]}.pth"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(self.content)))
        handler.end_headers()
        handler.wfile.write(self.content[: self.sent])
        handler.wfile.flush()
        if self.stays:
            self.gone.wait()


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A state dict as torchvision's files have it."""
    from torchvision.models import shufflenet_v2_x0_5

    path = tmp_path_factory.mktemp("weights") / "state.pth"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        torch.save(shufflenet_v2_x0_5().state_dict(), path)
    return path.read_bytes()


@pytest.fixture
def mirror(content: bytes) -> Iterator[tuple[Mirror, str]]:
    """The server, and the address of its file."""
    served = Mirror(content)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served, f"http://127.0.0.1:{server.server_port}/models/{served.name}"
        served.gone.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_fetched_weights_are_checked_and_fit_their_network(project: Project, mirror: tuple[Mirror, str]) -> None:
    served, address = mirror
    output = project.run("weights", "shufflenet_v2_x0_5", "--from", address)
    assert f"SHA-256 {hashlib.sha256(served.content).hexdigest()}" in output
    assert f"next: ratchet set model.name=shufflenet_v2_x0_5 model.pretrained={served.name}" in output
    assert project.files == [served.name]
    spec = ModelSpec("shufflenet_v2_x0_5", ImageInput(64, 64, 3, (0.5,) * 3, (0.2,) * 3), Classes(("a", "b")))
    path = find_pretrained(project.workspace.pretrained, served.name)
    assert path
    with torch.random.fork_rng():
        report = load_pretrained(build(spec), path)
    assert (report.misshaped, report.missing, report.unexpected) == (("fc.weight", "fc.bias"), (), ())
    assert "is there, and its SHA-256 is right" in project.run("weights", "shufflenet_v2_x0_5", "--from", address)
    assert served.requests == 1


def test_damaged_file_is_fetched_again(project: Project, mirror: tuple[Mirror, str]) -> None:
    served, address = mirror
    project.workspace.pretrained.mkdir(parents=True)
    (project.workspace.pretrained / served.name).write_bytes(served.content[:-1])
    project.run("weights", "shufflenet_v2_x0_5", "--from", address)
    assert (project.workspace.pretrained / served.name).read_bytes() == served.content


def test_download_that_ends_early_leaves_nothing(project: Project, mirror: tuple[Mirror, str]) -> None:
    served, address = mirror
    served.sent = 1_000
    message = project.run("weights", "shufflenet_v2_x0_5", "--from", address, code=1)
    assert f"it ended after 1,000 of {len(served.content):,} bytes. Fix: " in message
    assert project.files == []


def test_weights_with_another_hash_are_not_kept(project: Project, mirror: tuple[Mirror, str]) -> None:
    served, address = mirror
    served.content = served.content[:-1] + bytes([served.content[-1] ^ 1])
    message = project.run("weights", "shufflenet_v2_x0_5", "--from", address, code=1)
    assert f"has the SHA-256 {hashlib.sha256(served.content).hexdigest()}; allowed: one that begins with" in message
    assert project.files == []


def test_killed_download_leaves_no_weights(project: Project, mirror: tuple[Mirror, str]) -> None:
    served, address = mirror
    served.sent, served.stays = 3 << 20, True
    with project.start("weights", "shufflenet_v2_x0_5", "--from", address) as process:
        draft = project.workspace.data / f".draft-{served.name}"
        until(lambda: draft.exists() and draft.stat().st_size >= 1 << 20, pause=0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not list(project.workspace.pretrained.iterdir())
    served.sent, served.stays = None, False
    project.run("weights", "shufflenet_v2_x0_5", "--from", address)
    assert project.files == [served.name]


def test_without_a_network_one_sentence_says_what_to_do(project: Project) -> None:
    with socket.socket() as closed:  # bound and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/resnet18-f37072fd.pth"
        message = project.run("weights", "resnet18", "--from", address, code=1)
    assert "cannot be fetched" in message
    assert "put it into data/pretrained as resnet18-f37072fd.pth" in message
    assert "`ratchet use photos-from-scratch`" in message
    assert project.files == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet19"], "found resnet19; allowed: a classifier of torchvision.models. Nearest: resnet18"),
        (["resnet18", "--from", "ftp://x/resnet18-f37072fd.pth"], "--from: found ftp://"),
        (["resnet18", "--from", "http://x/resnet18.zip"], "--from: found http://x/resnet18.zip"),
        (["resnet18", "--from", "http://[x/resnet18-f37072fd.pth"], "--from: found http://[x/"),
        (["resnet18", "--from", "http://x/%00-f37072fd.pth"], "--from: found http://x/%00-"),
        (["resnet18", "--from", "http://x/resnet18.pth"], "has no hash to check the file by"),
        (["resnet18", "--from", "http://x/resnet18.pth", "--sha256", "xyz"], "--sha256: found xyz"),
    ],
)
def test_wrong_argument_of_weights_is_refused(project: Project, arguments: list[str], message: str) -> None:
    assert message in project.run("weights", *arguments, code=1)
    assert project.files == []


def in_torch(cache: Path, name: str, content: bytes) -> None:
    (cache / "torch" / "hub" / "checkpoints").mkdir(parents=True)
    (cache / "torch" / "hub" / "checkpoints" / name).write_bytes(content)


def in_hugging_face(cache: Path, name: str, content: bytes, *, blob: str = "") -> None:
    folder = cache / "huggingface" / "hub" / f"models--timm--{name}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "blobs").mkdir()
    target = folder / "blobs" / (blob or hashlib.sha256(content).hexdigest())
    target.write_bytes(content)
    (folder / "snapshots" / "abc" / "model.safetensors").symlink_to(target)


def test_use_photos_without_weights_names_both_ways(project: Project) -> None:
    output = project.run("use", "photos")
    assert "warning: model.pretrained: there is no file resnet18-f37072fd.pth" in output
    assert "`ratchet weights resnet18` fetches weights; `ratchet use photos-from-scratch` trains without" in output
    assert output.endswith("next: what the warnings say, then ratchet train\n")
    assert "warning" not in project.run("use", "photos-from-scratch")
    assert settings.load(project.workspace.params).model.pretrained == "none"


@pytest.mark.parametrize(
    ("fill", "name"),
    [
        (lambda cache: in_hugging_face(cache, "resnet18.a1_in1k", b"timm's"), "resnet18.a1_in1k.safetensors"),
        (
            lambda cache: in_torch(cache, "resnet18_a1_0-" + hashlib.sha256(b"old").hexdigest()[:8] + ".pth", b"old"),
            None,
        ),
        (lambda cache: in_hugging_face(cache, "resnet18.a1_in1k", b"damaged", blob="0" * 64), "missing"),
        (lambda cache: in_torch(cache, "resnet18-f37072fd.pth", b"damaged"), "missing"),
        (lambda cache: in_hugging_face(cache, "resnet18d.ra2_in1k", b"another network"), "missing"),
        (lambda cache: in_hugging_face(cache, "resnet18_gn.a1_in1k", b"another norm"), "missing"),
        (lambda cache: in_torch(cache, "resnet18_fbgemm_16fa66dd.pth", b"quantized"), "missing"),
    ],
)
def test_use_photos_takes_whole_weights_of_a_cache(
    project: Project, fill: Callable[[Path], None], name: str | None
) -> None:
    fill(project.cache)
    output = project.run("use", "photos")
    if name == "missing":
        assert "warning: model.pretrained: there is no file" in output
        assert project.files == []
        return
    chosen = settings.load(project.workspace.params).model.pretrained
    assert project.files == [chosen]
    assert name in (None, chosen)
    assert f"model.pretrained: resnet18-f37072fd.pth -> {chosen}" in output
    assert "warning" not in output


def test_a_new_project_takes_weights_of_a_cache(project: Project) -> None:
    missing = project.run("new", "without", "--like", "photos")
    assert "warning: model.pretrained: there is no file resnet18-f37072fd.pth" in missing
    assert missing.endswith("next: cd without, then what the warnings say, then ratchet train\n")
    in_hugging_face(project.cache, "resnet18.a1_in1k", b"timm's")
    output = project.run("new", "pets", "--like", "photos")
    pets = Workspace(project.workspace.root / "pets")
    assert settings.load(pets.params).model.pretrained == "resnet18.a1_in1k.safetensors"
    assert (pets.pretrained / "resnet18.a1_in1k.safetensors").read_bytes() == b"timm's"
    assert "warning: model.pretrained" not in output
    assert "warning: data.path: " in output
    assert "warning" not in project.run("new", "numbers")


def test_longer_name_of_a_network_is_another_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    name = f"vgg16_bn-{hashlib.sha256(b'with norms').hexdigest()[:8]}.pth"
    in_torch(tmp_path, name, b"with norms")
    assert list(weights.cached("vgg16", "vgg16-397923af.pth")) == []
    assert [each.name for each in weights.cached("vgg16_bn", "vgg16_bn-6c64b313.pth")] == [name]


def test_weights_of_a_cache_do_not_replace_a_given_hash(project: Project) -> None:
    in_hugging_face(project.cache, "resnet18.a1_in1k", b"timm's")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        project.environment["https_proxy"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert "cannot be fetched" in project.run("weights", "resnet18", "--sha256", "0" * 64, code=1)
    assert project.files == []


def test_signature_of_an_address_is_not_printed(project: Project) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/resnet18-f37072fd.pth?X-Amz-Signature=5ec4e7"
        message = project.run("weights", "resnet18", "--from", address, code=1)
    assert "cannot be fetched" in message
    assert "5ec4e7" not in message


def test_without_a_network_other_weights_of_a_cache_are_taken(project: Project) -> None:
    """Torchvision's address is not reached here: a proxy that refuses stands for the missing network."""
    in_hugging_face(project.cache, "resnet18.a1_in1k", b"timm's")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        project.environment["https_proxy"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        output = project.run("weights", "resnet18")
    assert "cannot be fetched" in output
    assert "next: ratchet set model.name=resnet18 model.pretrained=resnet18.a1_in1k.safetensors" in output
    assert project.files == ["resnet18.a1_in1k.safetensors"]


def test_source_of_every_file_of_torchvision_is_recognized() -> None:
    from torchvision.models import get_model_weights

    for model in torchvision_classifiers():
        for version in get_model_weights(model):
            source = weights.published(model, version.name).source
            beginning = source.file.rpartition("-")[2].partition(".")[0]
            recognized = weights.source_of(source.file, beginning.ljust(64, "0"))
            assert (recognized.file, recognized.mean, recognized.std) == (source.file, source.mean, source.std)
            assert is_address(recognized.source)
            assert not is_address(weights.source_of(source.file, "z" * 64).source)
