"""Ingest of real sets, and sets that are refused. Row counts are those that the authors publish."""

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from torchvision.datasets import FashionMNIST, utils

from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, SettingsError

Shared = Callable[[str], Path]


def test_digits_are_packed_whole_and_unaltered(place) -> None:
    manifest = place.ingest(source="digits")
    assert (manifest.name, manifest.input.height, manifest.input.width, manifest.input.channels) == ("digits", 8, 8, 1)
    assert manifest.target.names == tuple("0123456789")
    assert sum(split.rows for split in manifest.splits.values()) == 1797
    assert manifest == Manifest.read(place.packed)
    digits, index = load_digits(), place.index()
    for split in manifest.splits:
        mine = index.filter(index["split"] == split)
        original = np.array([int(name) for name in mine["id"]])
        assert np.array_equal(place.images(split)[..., 0], np.rint(digits.images[original] * 255 / 16))
        assert np.array_equal(np.load(place.packed / split / "targets.npy"), digits.target[original])
        assert mine["row"].to_list() == list(range(len(original)))
        assert mine["id"].is_sorted()
    assert place.progress[-1] == (1797, 1797)
    assert sorted(place.progress) == place.progress


def test_manifest_statistics_are_those_of_the_training_pixels(place) -> None:
    manifest = place.ingest(source="digits")
    pixels = place.images("train").astype(np.float64)
    assert manifest.input.mean == pytest.approx((pixels.mean(),))
    assert manifest.input.std == pytest.approx((pixels.std(),))


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "inside", "shape", "rows"),
    [
        ("FashionMNIST", "FashionMNIST", (28, 28, 1), (60_000, 10_000)),
        ("CIFAR10", "cifar-10-batches-py", (32, 32, 3), (50_000, 10_000)),
    ],
)
def test_torchvision_set_is_read_from_a_local_copy(place, shared: Shared, name, inside, shape, rows) -> None:
    manifest = place.ingest(source=name, path=str(shared(inside)), download=False)
    assert (manifest.input.height, manifest.input.width, manifest.input.channels) == shape
    assert (manifest.name, len(manifest.target.names)) == (name, 10)
    kept = {split: files.rows for split, files in manifest.splits.items()}
    assert kept["train"] + kept["validation"] + manifest.quarantined == rows[0]
    assert kept["test"] == rows[1]
    assert kept["validation"] / rows[0] == pytest.approx(0.15, abs=0.01)
    labels = np.load(place.packed / "test" / "targets.npy")
    assert np.bincount(labels).tolist() == [1000] * 10
    assert set(manifest.quarantined_by_rule) <= {"duplicate-across-splits"}


def test_hymenoptera_is_ingested_and_its_gif_quarantined(place, shared: Shared) -> None:
    folder = shared("hymenoptera/train") / "hymenoptera"
    manifest = place.ingest(path=str(folder))
    assert place.bad() == {"train/ants/imageNotFound.gif": {"format-not-allowed"}}
    assert manifest.target.names == ("ants", "bees")
    assert sum(split.rows for split in manifest.splits.values()) == 244
    assert (manifest.input.height, manifest.input.channels) == (64, 3)
    assert str(folder) not in (place.packed / "manifest.json").read_text()


def test_a_missing_set_is_reported_with_path_and_fix(place) -> None:
    with pytest.raises(DataError) as refusal:
        place.ingest(source="CIFAR10", path="nowhere", download=False)
    assert str(place.root / "nowhere") in str(refusal.value)
    assert "data.download" in str(refusal.value)
    assert not place.packed.exists()


def test_a_truncated_set_is_refused_with_its_folder(place, shared: Shared) -> None:
    real = shared("cifar-10-batches-py") / "cifar-10-batches-py"
    folder = place.root / "cifar" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for path in real.iterdir():
        if path.name != "test_batch":
            (folder / path.name).symlink_to(path)
    (folder / "test_batch").write_bytes((real / "test_batch").read_bytes()[:20_000_000])
    with pytest.raises(DataError, match=re.escape(f"no usable copy of CIFAR10 in {place.root / 'cifar'}")):
        place.ingest(source="CIFAR10", path="cifar", download=False)


def test_unknown_source_lists_the_nearest_names(place) -> None:
    with pytest.raises(SettingsError, match=r"'CIFAR01'.*CIFAR10"):
        place.ingest(source="CIFAR01")


@pytest.mark.parametrize("name", ["FakeData", "EMNIST", "PhotoTour"])
def test_set_that_the_settings_cannot_describe_is_refused(place, name: str) -> None:
    with pytest.raises(DataError, match=name):
        place.ingest(source=name, download=False)


def test_set_without_one_class_per_image_is_refused(place) -> None:
    """MovingMNIST has videos and no classes; its file is an array of (frame, video, height, width)."""
    folder = place.root / "images" / "MovingMNIST"
    folder.mkdir(parents=True)
    np.save(folder / "mnist_test_seq.npy", np.zeros((20, 3, 64, 64), np.uint8))
    with pytest.raises(DataError, match="MovingMNIST"):
        place.ingest(source="MovingMNIST", download=False)


def test_a_missing_or_damaged_manifest_is_a_clear_error(place) -> None:
    with pytest.raises(DataError, match="not found"):
        Manifest.read(place.packed)
    place.packed.mkdir(parents=True)
    (place.packed / "manifest.json").write_text('{"format": 1, "kind"')
    with pytest.raises(DataError, match="damaged"):
        Manifest.read(place.packed)
    (place.packed / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(DataError, match="format 99"):
        Manifest.read(place.packed)


def test_a_download_shows_no_bars_of_its_own(
    place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each update would be a line of the terminal, beside the bar of the stage. The server has other files."""

    class Others(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "400000")
            self.end_headers()
            self.wfile.write(bytes(400_000))

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    bar = utils.tqdm
    with ThreadingHTTPServer(("127.0.0.1", 0), Others) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(FashionMNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        with pytest.raises(DataError, match=r"(?s)its download failed \(.*Fix: check network and disk"):
            place.ingest(source="FashionMNIST", path=str(tmp_path / "none"), download=True)
        server.shutdown()
    assert list((tmp_path / "none").rglob("*.gz"))
    assert capsys.readouterr().err == ""
    assert utils.tqdm is bar
