"""The real kind of a file and its fix: the reason in the quarantine table must be true."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from ratchet.data.reading.identify import identify
from ratchet.data.reading.images import ImageDecoder
from ratchet.data.reading.pixels import to_pixels
from ratchet.data.reading.storage import LocalFolder
from ratchet.errors import SettingsError


def saved(kind: str, **options: object) -> bytes:
    content = io.BytesIO()
    Image.effect_noise((64, 48), 60).convert("RGB").save(content, kind, **options)
    return content.getvalue()


def zipped(name: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, "x")
    return content.getvalue()


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(range(200))
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"

CASES = {
    "phone.heic": (HEIC, "format-not-allowed", "heif", "run `uv pip install pillow-heif`"),
    "phone.jpg": (HEIC, "format-not-allowed", "heif", "allow heif in data.formats"),
    "live.avif": (saved("AVIF"), "format-not-allowed", "avif", "allow avif in data.formats"),
    "moving.gif": (saved("GIF"), "format-not-allowed", "gif", "its first frame is used"),
    "a.jxl": (b"\xff\x0a" + bytes(range(50)), "format-not-allowed", "jxl", "convert it to JPEG or PNG"),
    "b.jxl": (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(20), "format-not-allowed", "jxl", "convert it"),
    "a.jp2": (saved("JPEG2000"), "format-not-allowed", "jpeg2000", "convert it to JPEG or PNG"),
    "logo.svg": (b'<?xml version="1.0"?>\n<svg xmlns="x"/>', "format-not-allowed", "svg", "draw it as a PNG"),
    "scan.dcm": (bytes(128) + b"DICM" + bytes(range(99)), "format-not-allowed", "dicom", "export it as 16-bit"),
    "pointer.png": (LFS, "unreadable", "a Git LFS pointer, not an image", "run `git lfs pull`"),
    "tracked.png": (
        b"outs:\n- md5: 0\n  size: 9\n  hash: md5\n  path: tracked.png\n",
        "unreadable",
        "a DVC pointer, not an image",
        "run `dvc pull`",
    ),
    "annexed.png": (b"/annex/objects/SHA256E-s9--0.png\n", "unreadable", "a git-annex pointer, not", "git annex get"),
    "error.jpg": (b"<!DOCTYPE html>\n<html>404", "unreadable", "an HTML page, not an image", "check its address"),
    "feed.png": (b"<?xml version='1.0'?><rss/>", "unreadable", "an XML document, not an image", "move it out"),
    "notes.txt": ("three of these are löwen".encode(), "unreadable", "text, not an image", "move it out"),
    "utf16.txt": ("three of these".encode("utf-16"), "unreadable", "text, not an image", "move it out"),
    "labels.json": (b'{"a": 1}', "unreadable", "JSON, not an image", "move it out"),
    "paper.pdf": (b"%PDF-1.7\n" + bytes(range(99)), "unreadable", "a PDF document, not an image", "export its images"),
    "all.zip": (zipped("a.png"), "unreadable", "a ZIP archive, not an image", "unpack it"),
    "list.xlsx": (zipped("xl/workbook.xml"), "unreadable", "an Excel workbook, not an image", "move it out"),
    "all.tar.gz": (b"\x1f\x8b\x08" + bytes(99), "unreadable", "a gzip archive, not an image", "unpack it"),
    "film.mp4": (b"\0\0\0\x18ftypisom\0\0\0\0isommp42" + bytes(99), "unreadable", "a video, not an image", "save its"),
    "array.npy": (b"\x93NUMPY\x01\0" + bytes(99), "unreadable", "a NumPy array, not an image", "data.kind"),
    "empty.png": (b"", "empty-file", "0 bytes", "fetch it again"),
    "zeros.png": (bytes(4_096), "unreadable", "only zero bytes (4,096 of them)", "fetch it again"),
    "half.png": (bytes(5_000) + b"rest", "unreadable", "only zero bytes in the first 4,096 of 5,004", "fetch it again"),
    "cut.png": (saved("PNG")[:20], "unreadable", "a PNG image, but its header is damaged or cut", "fetch it"),
    "cut.jpg": (saved("JPEG")[:20], "unreadable", "a JPEG image, but its header is damaged", "fetch it again"),
    "cut.webp": (saved("WEBP")[:18], "unreadable", "a WebP image, but its header is damaged", "fetch it again"),
    "half.jpg": (saved("JPEG")[:900], "unreadable", "image file is truncated", "save it again"),
    "noise.bin": (bytes(range(255, 0, -1)), "unreadable", "no image in any known format", "save it again"),
}  # fmt: skip


def test_every_reason_names_the_real_format_and_its_fix(two_classes) -> None:
    cat = two_classes.root / "images" / "cat"
    for name, (content, _, _, _) in CASES.items():
        (cat / name).write_bytes(content)
    two_classes.ingest(max_bad_fraction=0.5)
    table = pl.read_parquet(two_classes.quarantine)
    assert set(table["source"]) == {f"cat/{name}" for name in CASES}
    for row in table.iter_rows(named=True):
        _, rule, value, fix = CASES[row["source"].removeprefix("cat/")]
        if row["rule"] == "format-mismatch":  # the file breaks a second rule
            continue
        assert row["rule"] == rule, row
        assert row["value"].startswith(value), row
        assert fix in row["hint"], row


def test_an_extension_of_another_format_is_also_a_mismatch(two_classes) -> None:
    cat = two_classes.root / "images" / "cat"
    (cat / "phone.jpg").write_bytes(HEIC)
    (cat / "photo.heic").write_bytes(saved("JPEG"))
    two_classes.ingest()
    assert two_classes.bad() == {
        "cat/phone.jpg": {"format-not-allowed", "format-mismatch"},
        "cat/photo.heic": {"format-mismatch"},
    }


def test_a_damaged_file_has_no_format_to_blame(two_classes) -> None:
    """First bytes alone prove neither a wrong extension nor a format that is not allowed."""
    (two_classes.root / "images" / "cat" / "cut.webp").write_bytes(saved("GIF")[:12])
    two_classes.ingest()
    table = pl.read_parquet(two_classes.quarantine)
    assert table.select("source", "rule", "value").rows() == [
        ("cat/cut.webp", "unreadable", "a GIF image, but its header is damaged or cut off")
    ]


def test_an_allowed_gif_gives_its_first_frame(two_classes) -> None:
    frames = [Image.new("RGB", (24, 20), colour) for colour in ((200, 0, 0), (0, 200, 0))]
    cat = two_classes.root / "images" / "cat"
    frames[0].save(cat / "moving.gif", save_all=True, append_images=frames[1:])
    two_classes.ingest(formats=("png", "gif"))
    assert two_classes.bad() == {}
    split, row = two_classes.index().filter(pl.col("id") == "cat/moving.gif").select("split", "row").row(0)
    assert two_classes.images(split)[row, 5, 5].tolist() == [200, 0, 0]


def test_allowed_avif_is_read(two_classes) -> None:
    (two_classes.root / "images" / "cat" / "a.avif").write_bytes(saved("AVIF"))
    two_classes.ingest(formats=("png", "avif"))
    assert two_classes.bad() == {}
    assert "cat/a.avif" in two_classes.index()["id"].to_list()


@pytest.mark.parametrize("workers", [1, 2])
def test_allowed_heic_is_read(two_classes, workers: int, monkeypatch) -> None:
    """Also by processes, each of which must register the reader."""
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif, which is optional, is not installed")
    monkeypatch.setattr("ratchet.data.reading.survey._MIN_FOR_PROCESSES", 10)
    monkeypatch.setattr("ratchet.data.reading.storage._FRESH", 0)
    image = Image.new("RGB", (64, 48), (200, 30, 30))
    path = two_classes.root / "images" / "cat" / "phone.HEIC"
    pillow_heif.from_pillow(image).save(path)
    assert identify(path.read_bytes()).name == "heif"  # type: ignore[union-attr]
    two_classes.cache = two_classes.root / "cache.parquet"
    two_classes.ingest(workers=workers)
    assert two_classes.bad() == {"cat/phone.HEIC": {"format-not-allowed"}}
    two_classes.ingest(formats=("png", "heif"), workers=workers)
    assert two_classes.bad() == {}
    split, row = two_classes.index().filter(pl.col("id") == "cat/phone.HEIC").select("split", "row").row(0)
    assert np.abs(two_classes.images(split)[row].astype(int) - (200, 30, 30)).max() < 12


def test_heif_without_its_library_is_refused_with_the_fix(two_classes, monkeypatch) -> None:
    from ratchet.data.reading import images

    monkeypatch.setitem(__import__("sys").modules, "pillow_heif", None)
    images._register_heif.cache_clear()
    with pytest.raises(
        SettingsError, match=r"data\.formats: found heif, which needs pillow-heif .*uv pip install pillow-heif"
    ):
        two_classes.ingest(formats=("png", "heif"))
    assert not two_classes.packed.exists()


def test_a_released_file_that_cannot_be_decoded_stays_quarantined(two_classes) -> None:
    from ratchet.data import overrides, quarantine

    (two_classes.root / "images" / "cat" / "a.jxl").write_bytes(CASES["a.jxl"][0])
    two_classes.ingest()
    two_classes.releases = two_classes.root / "releases.csv"
    bad = quarantine.read(two_classes.quarantine)
    assert overrides.add(two_classes.releases, bad, "cat/a.jxl", reason="test", by="me") == ["format-not-allowed"]
    two_classes.ingest()
    assert two_classes.bad() == {"cat/a.jxl": {"unreadable"}}


def lossless_jpeg(values: np.ndarray) -> bytes:
    """Return a lossless JPEG (ITU-T T.81, annex H): each pixel as its difference to the pixel before."""
    height, width = values.shape
    bits = []
    for row in range(height):
        for column in range(width):
            left, above = values[row, column - 1], values[row - 1, column]
            expected = 128 if row == column == 0 else int(left) if column else int(above)
            difference = (int(values[row, column]) - expected + 128) % 256 - 128
            length = abs(difference).bit_length()
            bits.append(f"{length:04b}")  # every length has a code of four bits
            if length:
                bits.append(format(difference if difference > 0 else difference + (1 << length) - 1, f"0{length}b"))
    stream = "".join(bits)
    stream += "1" * (-len(stream) % 8)
    coded = bytes(int(stream[at : at + 8], 2) for at in range(0, len(stream), 8)).replace(b"\xff", b"\xff\0")
    frame = b"\xff\xc3" + struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes([1, 0x11, 0])
    table = b"\xff\xc4" + struct.pack(">HB", 28, 0) + bytes([0, 0, 0, 9, *[0] * 12]) + bytes(range(9))
    scan = b"\xff\xda" + struct.pack(">HB", 8, 1) + bytes([1, 0, 1, 0, 0])
    return b"\xff\xd8" + frame + table + scan + coded + b"\xff\xd9"


def test_a_lossless_jpeg_is_decoded_whole_and_then_scaled(tmp_path: Path) -> None:
    """It has no blocks that could be decoded at a fraction of their size."""
    values = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    (tmp_path / "a.jpg").write_bytes(lossless_jpeg(values))
    (facts,), (pixels,) = ImageDecoder((8, 1), 10**7).read_all(LocalFolder(tmp_path).read, ["a.jpg"])
    assert (facts.readable, facts.problem) == (True, None)
    np.testing.assert_array_equal(pixels, to_pixels(Image.fromarray(values), size=8, channels=1))


def test_transparent_pixels_of_16_bit_colour_become_white(tmp_path: Path) -> None:
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    values = np.full((8, 8, 3), 0x4020, ">u2")
    values[2] = 0x1388
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)) + chunk(b"tRNS", b"\x13\x88" * 3)
    data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in values)))
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b""))
    _, (pixels,) = ImageDecoder((8, 3), 10**7).read_all(LocalFolder(tmp_path).read, ["a.png"])
    assert pixels[:, 0, 0].tolist() == [0x40, 0x40, 255, *[0x40] * 5]


def test_libtiff_prints_nothing_about_damaged_files(two_classes, capfd) -> None:
    content = bytearray(saved("TIFF", compression="tiff_deflate"))
    content[200:400] = bytes(200)
    (two_classes.root / "images" / "cat" / "bad.tiff").write_bytes(content)
    two_classes.ingest()
    assert two_classes.bad() == {"cat/bad.tiff": {"unreadable"}}
    assert capfd.readouterr() == ("", "")
