"""Remote files, on S3 and HTTP servers that run on this machine."""

import http.server
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ratchet.data.reading import storage
from ratchet.errors import DataError


def upload(folder: Path, bucket: str) -> None:
    import s3fs

    system = s3fs.S3FileSystem(skip_instance_cache=True)
    system.mkdir(bucket)
    system.put(f"{folder}/", f"{bucket}/set/", recursive=True)


def test_s3_gives_the_same_bytes_as_a_local_folder(two_classes, make_place, s3) -> None:
    upload(two_classes.root / "images", "same")
    two_classes.ingest()
    there = make_place("there")
    there.ingest(path="s3://same/set")
    local, remote = (
        {name: digest for name, digest in place.bytes().items() if "manifest" not in name}
        for place in (two_classes, there)
    )
    assert remote == local


def test_a_local_file_is_read_to_its_end() -> None:
    """As on file systems that do not know it, or return a file in parts: the first part is no whole image."""
    folder = Path("/proc/self")
    if not folder.exists():
        pytest.skip("this system has no /proc")
    assert (folder / "limits").stat().st_size == 0
    content = storage.LocalFolder(folder).read("limits")
    assert content == (folder / "limits").read_bytes() != b""


def test_unchanged_files_in_s3_are_not_fetched_again(two_classes, make_place, s3, monkeypatch) -> None:
    upload(two_classes.root / "images", "again")
    place = make_place("there")
    place.cache = place.root / "cache.parquet"
    place.ingest(path="s3://again/set")
    opened: list[str] = []
    read = storage.RemoteFolder.read
    monkeypatch.setattr(storage.RemoteFolder, "read", lambda self, name: (opened.append(name), read(self, name))[1])
    place.ingest(path="s3://again/set")
    assert opened == []
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).put(
        str(two_classes.root / "images" / "cat" / "0001.png"), "again/set/dog/more.png"
    )
    place.ingest(path="s3://again/set")
    assert place.index().height == 81
    assert opened.count("dog/more.png") <= 2
    assert len(opened) <= 1 + 65  # a preview of some decides the packed shape


def test_a_missing_bucket_and_a_missing_server_are_reported(place, s3, monkeypatch) -> None:
    with pytest.raises(DataError, match=r"s3://nowhere/set (contains nothing|does not answer)"):
        place.ingest(path="s3://nowhere/set")
    monkeypatch.setattr(storage, "_TRIES", 1)
    with pytest.raises(DataError, match=r"does not answer .*check the network, the address and the credentials"):
        place.ingest(path="http://127.0.0.1:9/set", source="image-manifest", manifest="labels.csv")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ssh://127.0.0.1:9/set", "ConnectionRefusedError: the connection is refused: .* start the server, or correct"),
        ("ssh://no-such-host.invalid/set", "its host name is not known: .* check the address in data.path"),
        ("s3://bucket/set", "no usable credentials: .* AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
    ],
)
def test_an_unreachable_source_is_reported_on_one_line(place, monkeypatch, tmp_path, url: str, message: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(storage, "_TRIES", 1)
    with pytest.raises(DataError, match=message) as refused:
        place.ingest(path=url)
    assert url in str(refused.value)
    assert "\n" not in str(refused.value)


def test_wrong_s3_credentials_and_a_missing_bucket_are_named(place, s3, monkeypatch) -> None:
    with pytest.raises(
        DataError, match=r"s3://nowhere/set does not answer .*bucket does not exist\)\. Fix: create the bucket"
    ):
        place.ingest(path="s3://nowhere/set")

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "find", forbidden)  # the test server has no access control
    with pytest.raises(DataError, match="access is denied: Access Denied"):
        place.ingest(path="s3://nowhere/set")


@pytest.mark.parametrize("url", ["https://me:secret@example.org/set", "s3://me@bucket/set"])
def test_credentials_in_a_url_are_refused_and_not_repeated(place, url: str) -> None:
    with pytest.raises(DataError, match="would be committed and recorded with every run") as refused:
        place.ingest(path=url)
    assert "secret" not in str(refused.value)


def test_an_unknown_protocol_is_reported(place) -> None:
    with pytest.raises(DataError, match="gopher"):
        place.ingest(path="gopher://example.org/set")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address of a web server for it."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_manifest_and_images_on_a_web_server_are_read(place, web: tuple[Path, str]) -> None:
    folder, address = web
    images = place.fill("flat", 80)
    shutil.copytree(images, folder / "flat")
    lines = [f"flat/{n:04d}.png,{'cat' if n < 40 else 'dog'}" for n in range(80)]
    (folder / "labels.csv").write_text("\n".join(["path,label", *lines, "flat/gone.png,cat"]))
    place.ingest(source="image-manifest", path=address, manifest="labels.csv")
    assert place.index().height == 80
    assert place.bad() == {"flat/gone.png": {"unreadable"}}


def test_a_server_that_fails_stops_the_run_without_quarantine(place, web: tuple[Path, str], monkeypatch) -> None:
    folder, address = web
    monkeypatch.setattr(storage, "_TRIES", 2)
    shutil.copytree(place.fill("flat", 80), folder / "flat")
    lines = [f"flat/{n:04d}.png,{'cat' if n < 40 else 'dog'}" for n in range(80)]
    (folder / "labels.csv").write_text("\n".join(["path,label", *lines]))
    fetch = storage.RemoteFolder._fetch

    def failing(self, name):
        if "0055" in name:
            raise ConnectionResetError("the server is gone")
        return fetch(self, name)

    monkeypatch.setattr(storage.RemoteFolder, "_fetch", failing)
    with pytest.raises(DataError, match=r"does not answer .*the server is gone"):
        place.ingest(source="image-manifest", path=address, manifest="labels.csv")
    assert not place.packed.exists()
    assert not place.quarantine.exists()
