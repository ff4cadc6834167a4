"""A thousand damaged files: each is packed correctly or quarantined with a true reason, in every run."""

import hashlib
import io
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.refusal_reasons import REASONS
from ratchet.settings.model import DataSettings

pytestmark = pytest.mark.slow

COUNT = 1_000
GOOD = 60  # of each class
FORMATS = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP", "tiff": "TIFF", "gif": "GIF"}


def encoded_image(number: int, kind: str) -> bytes:
    drawn = np.random.default_rng(number)
    image = Image.fromarray(drawn.integers(0, 256, (20 + number % 9, 24, 3), dtype=np.uint8))
    content = io.BytesIO()
    image.save(content, FORMATS[kind])
    return content.getvalue()


def flipped(content: bytes, drawn: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(drawn.choice([1, 1, 2, 8, 64])):
        changed[drawn.randrange(len(changed))] ^= 1 << drawn.randrange(8)
    return bytes(changed)


def cut(content: bytes, drawn: random.Random) -> bytes:
    return content[: drawn.choice([1, 2, 4, 8, 12, 16, 33, len(content) // 2, len(content) - 1, len(content) - 4])]


def zeroed(content: bytes, drawn: random.Random) -> bytes:
    start = drawn.randrange(len(content))
    length = drawn.choice([1, 4, 64, len(content)])
    return content[:start] + bytes(length) + content[start + length :]


def padded(content: bytes, drawn: random.Random) -> bytes:
    return content + bytes(drawn.randrange(1, 5_000))


def spliced(content: bytes, drawn: random.Random) -> bytes:
    other = encoded_image(drawn.randrange(10**6), drawn.choice(list(FORMATS)))
    return content[: drawn.randrange(len(content))] + other[drawn.randrange(len(other)) :]


def wrong_size(content: bytes, drawn: random.Random) -> bytes:
    """Return a PNG whose header has another size and a correct checksum."""
    if not content.startswith(b"\x89PNG"):
        return flipped(content[:40], drawn) + content[40:]
    sides = struct.pack(">II", *(drawn.choice([0, 1, 23, 4_000, 60_000, 2**31 - 1]) for _ in range(2)))
    header = b"IHDR" + sides + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


def bomb(_content: bytes, drawn: random.Random) -> bytes:
    """Return a small PNG that decodes to hundreds of megabytes."""
    side = drawn.choice([8_000, 20_000])
    rows = zlib.compressobj(9)
    packed = b"".join(rows.compress(bytes(side * 3 + 1)) for _ in range(64)) + rows.flush()

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def noise(_content: bytes, drawn: random.Random) -> bytes:
    return drawn.randbytes(drawn.choice([0, 1, 100, 5_000]))


CONTENTS: list[Callable[[bytes, random.Random], bytes]] = [
    flipped,
    cut,
    zeroed,
    padded,
    spliced,
    wrong_size,
    bomb,
    noise,
]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> Path:
    """Good images of two classes, a thousand damaged files, and unusual file names."""
    root = tmp_path_factory.mktemp("damaged")
    drawn = random.Random(0)
    for label in ("cat", "dog"):
        folder = root / "images" / label
        folder.mkdir(parents=True)
        for number in range(GOOD):
            (folder / f"good-{number:03d}.png").write_bytes(encoded_image(number + 1000 * (label == "dog"), "png"))
    folder = root / "images" / "cat"
    for number in range(COUNT):
        kind = drawn.choice(list(FORMATS))
        named = drawn.choice([kind, kind, kind, drawn.choice(list(FORMATS)), "", "txt"])
        content = drawn.choice(CONTENTS)(encoded_image(5000 + number, kind), drawn)
        (folder / f"bad-{number:04d}.{named}").write_bytes(content)
    odd = encoded_image(9000, "png")
    for name in (
        "new\nline.png",
        "tab\t.png",
        "x" * 251 + ".png",
        "ünïcödé 🦊.png",
        "-rf.png",
        "a'b\"c.png",
        "%s{0}.png",
    ):
        (folder / name).write_bytes(encoded_image(9000 + len(name), "png"))
    with open(os.fsencode(folder) + b"/not-utf8-\xff.png", "wb") as file:
        file.write(odd)
    (folder / "folder.jpg").mkdir()
    (folder / "folder.jpg" / "inside.png").write_bytes(encoded_image(9500, "png"))
    (folder / "loop").symlink_to(folder)
    (folder / "round.png").symlink_to(folder / "round.png")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    os.mkfifo(folder / "pipe.png")
    return root


def run(root: Path, place: Path, **changes: object) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, str]]:
    """Return the index, the quarantine table, and the digests of all outputs."""
    settings = DataSettings(
        **{"source": "image-folder", "path": str(root / "images"), "max_bad_fraction": 1.0, **changes}
    )
    ingest(
        IngestTask(
            settings,
            packed=place / "packed",
            quarantine=place / "bad.parquet",
            root=root,
            cache=place / "cache.parquet",
        )
    )
    written = {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in place.rglob("*")
        if path.is_file() and path.name != "cache.parquet"
    }
    return pl.read_parquet(place / "packed" / "index.parquet"), pl.read_parquet(place / "bad.parquet"), written


def test_every_file_is_packed_or_quarantined(damaged: Path, tmp_path: Path) -> None:
    """Another number of workers and another run give the same bytes."""
    index, bad, written = run(damaged, tmp_path / "one", workers=2)
    refused = set(bad["source"])
    files = [path for path in (damaged / "images").rglob("*") if not path.is_dir()]
    links = sum(1 for path in files if "loop" in path.relative_to(damaged).parts)
    assert index.height + len(refused) == len(files) - links
    assert not refused & set(index["id"])
    good = index.filter(pl.col("id").str.contains("good-"))
    assert good.height == 2 * GOOD
    assert set(bad["rule"]) <= set(REASONS)
    assert bad["value"].str.len_chars().max() < 300
    assert not bad["value"].str.contains(str(damaged)).any()

    again = run(damaged, tmp_path / "two", workers=1)[2]
    assert again == written
    assert run(damaged, tmp_path / "one", workers=2)[2] == written


def test_packed_pixels_equal_those_that_pillow_decodes(damaged: Path, tmp_path: Path) -> None:
    index, _, _ = run(damaged, tmp_path, image_size=16, channels=3)
    kept = index.filter(pl.col("id").str.contains("bad-"))
    assert kept.height > COUNT / 20  # some damage is harmless: padding, a flipped pixel
    images = {
        split: np.concatenate([np.load(path) for path in sorted((tmp_path / "packed" / split).glob("images-*"))])
        for split in ("train", "validation", "test")
    }
    for split, row, name in kept.select("split", "row", "id").rows():
        with Image.open(damaged / "images" / name) as image:
            shown = image.convert("RGB")
        side = min(shown.size)
        left, top = (shown.width - side) / 2, (shown.height - side) / 2
        expected = shown.resize((16, 16), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        np.testing.assert_array_equal(images[split][row], np.asarray(expected), err_msg=name)


def test_the_reason_is_true(damaged: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    _, bad, _ = run(damaged, tmp_path)
    reasons = {rule: rows for (rule,), rows in bad.group_by("rule")}
    for name in reasons["unreadable"]["source"]:
        path = damaged / "images" / name
        if path.is_file():
            with pytest.raises(Exception), Image.open(path) as image:  # noqa: B017 - whatever Pillow raises
                image.load()
    for name in reasons["empty-file"]["source"]:
        assert (damaged / "images" / name).stat().st_size == 0
    for name, value in reasons["format-mismatch"].select("source", "value").rows():
        with Image.open(damaged / "images" / name) as image:
            assert value.startswith(str(image.format).lower())
    for name, value in reasons["too-large"].select("source", "value").rows():
        with Image.open(damaged / "images" / name) as image:
            assert value == f"{image.width} x {image.height} pixels"
            assert image.width * image.height > 50_000_000


def test_no_temporary_file_is_left(damaged: Path, tmp_path: Path) -> None:
    run(damaged, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.parquet", "cache.parquet", "packed"]
    shutil.rmtree(tmp_path / "packed")
