"""Identify the real kind of a file by its first bytes, so that the reason for a refusal is true."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["HEAD", "ZEROS", "Kind", "fix_for_format", "fix_for_problem", "identify"]

HEAD = 4096
"""Bytes from the beginning of a file that are enough to identify it."""

ZEROS = "only zero bytes"
_FETCH_AGAIN = "fetch it again: a copy or download was interrupted, or the disk was full"
_CONVERT = "convert it to JPEG or PNG"
_MOVE = "move it out of the image folders, or take it off the list"


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: short name for code.
        description: name for messages, with its article.
        fix: advice for a user who expected an image.
        image: whether it is an image.
        decodable: whether Pillow always reads this format, so that a file that it cannot open is damaged.
    """

    name: str
    description: str
    fix: str
    image: bool = False
    decodable: bool = False


_POINTER = {
    "git-lfs": Kind(
        "git-lfs", "a Git LFS pointer", "its content was not fetched: run `git lfs pull` in its repository"
    ),
    "dvc": Kind(
        "dvc", "a DVC pointer", "its content was not fetched: run `dvc pull` in its repository, and use the file itself"
    ),
    "git-annex": Kind("git-annex", "a git-annex pointer", "its content was not fetched: run `git annex get` there"),
}
_KINDS = {
    kind.name: kind
    for kind in (
        *(
            Kind(name, f"a {title} image", f"{_FETCH_AGAIN}, or save it again", image=True, decodable=True)
            for name, title in (
                ("jpeg", "JPEG"), ("png", "PNG"), ("webp", "WebP"), ("bmp", "BMP"), ("tiff", "TIFF"), ("gif", "GIF"),
            )
        ),
        Kind("avif", "an AVIF image", f"{_CONVERT}, or allow avif in data.formats", image=True),
        Kind(
            "heif", "a HEIC/HEIF image",
            f"{_CONVERT}, or allow heif in data.formats and run `uv pip install pillow-heif`", image=True,
        ),
        Kind("jxl", "a JPEG XL image", _CONVERT, image=True),
        Kind("jpeg2000", "a JPEG 2000 image", _CONVERT, image=True),
        Kind("psd", "a Photoshop document", _CONVERT, image=True),
        Kind("exr", "an OpenEXR image", _CONVERT, image=True),
        Kind("svg", "an SVG drawing", "draw it as a PNG of the size you need", image=True),
        Kind("dicom", "a DICOM image", "export it as 16-bit greyscale PNG", image=True),
        Kind("html", "an HTML page", "a server sent a page instead of the file: check its address"),
        Kind("xml", "an XML document", _MOVE),
        Kind("json", "JSON", _MOVE),
        Kind("pdf", "a PDF document", "export its images as JPEG or PNG"),
        Kind("xlsx", "an Excel workbook", _MOVE),
        Kind("xls", "an old Excel or Office document", _MOVE),
        Kind("zip", "a ZIP archive", "unpack it, and set data.path to the folder"),
        Kind("gzip", "a gzip archive", "unpack it, and set data.path to the folder"),
        Kind("bzip2", "a bzip2 archive", "unpack it, and set data.path to the folder"),
        Kind("xz", "an xz archive", "unpack it, and set data.path to the folder"),
        Kind("7z", "a 7-Zip archive", "unpack it, and set data.path to the folder"),
        Kind("rar", "a RAR archive", "unpack it, and set data.path to the folder"),
        Kind("tar", "a tar archive", "unpack it, and set data.path to the folder"),
        Kind("video", "a video", "save its frames as JPEG or PNG"),
        Kind("numpy", "a NumPy array", "save it as PNG, or read it with your own Dataset (data.factory)"),
        Kind("parquet", "a Parquet table", _MOVE),
        Kind("arrow", "an Arrow table", _MOVE),
        Kind("sqlite", "an SQLite database", _MOVE),
        Kind("text", "text", _MOVE),
        Kind("zeros", ZEROS, _FETCH_AGAIN),
    )
} | _POINTER  # fmt: skip

_BEGINNINGS = (
    (b"\xff\xd8\xff", "jpeg"), (b"\x89PNG", "png"), (b"GIF8", "gif"), (b"II*\0", "tiff"), (b"MM\0*", "tiff"),
    (b"\xff\x0a", "jxl"), (b"\0\0\0\x0cJXL ", "jxl"), (b"\0\0\0\x0cjP  ", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    (b"8BPS", "psd"), (b"\x76\x2f\x31\x01", "exr"), (b"%PDF-", "pdf"), (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "xls"),
    (b"PK\x05\x06", "zip"), (b"\x1f\x8b\x08", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz"),
    (b"7z\xbc\xaf\x27\x1c", "7z"), (b"Rar!\x1a\x07", "rar"), (b"\x93NUMPY", "numpy"), (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"), (b"SQLite format 3\0", "sqlite"), (b"\x1aE\xdf\xa3", "video"), (b"FLV\x01", "video"),
    (b"version https://git-lfs.github.com/", "git-lfs"), (b"version https://hawser.github.com/", "git-lfs"),
    (b"/annex/objects/", "git-annex"),
)  # fmt: skip
_HEIF = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"})
_AVIF = frozenset({b"avif", b"avis"})


def identify(head: bytes) -> Kind | None:
    """Return the kind of a file that begins with these bytes (HEAD of them, or the whole file); None: not known."""
    name = next((name for start, name in _BEGINNINGS if head.startswith(start)), None) or _by_structure(head)
    return _KINDS.get(name or "")


def fix_for_problem(problem: str) -> str | None:
    """Return the fix for a problem that begins with the description of a kind; None for any other problem."""
    return next((kind.fix for kind in _KINDS.values() if problem.startswith(kind.description)), None)


def fix_for_format(name: str) -> str | None:
    """Return the fix for an image of a format that is not allowed; None: allow the format in data.formats."""
    if name == "gif":
        return f"{_CONVERT}, or allow gif in data.formats: its first frame is used"
    if name in ("jpeg", "png", "webp", "bmp", "tiff", "ppm"):
        return None
    return _KINDS[name].fix if name in _KINDS else _CONVERT


def _by_structure(head: bytes) -> str | None:
    if head[:4] == b"RIFF":
        return {b"WEBP": "webp", b"AVI ": "video"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        return _by_brands(head)
    if head[:4] == b"PK\x03\x04":
        return "xlsx" if b"[Content_Types].xml" in head or b"xl/" in head else "zip"
    if head[128:132] == b"DICM":
        return "dicom"
    if head[257:262] == b"ustar":
        return "tar"
    if head[:2] == b"BM" and len(head) >= 14 and head[6:10] == b"\0\0\0\0":
        return "bmp"
    if head and not head.strip(b"\0"):
        return "zeros"
    return _by_text(head)


def _by_brands(head: bytes) -> str:
    """Identify an ISO media file by the brands in its first box."""
    size = min(int.from_bytes(head[:4], "big"), 256)
    brands = [head[8:12], *_fours(head[16:size])]
    if _AVIF & set(brands):
        return "avif"
    return "heif" if _HEIF & set(brands) else "video"


def _fours(content: bytes) -> Iterator[bytes]:
    return (content[at : at + 4] for at in range(0, len(content) - 3, 4))


def _by_text(head: bytes) -> str | None:
    """Identify text in UTF-8, or in an encoding with a byte order mark."""
    try:
        text = head.decode("utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "strict")
    except UnicodeDecodeError as error:
        if (
            error.reason != "unexpected end of data" and error.start < len(head) - 4
        ):  # not just a character cut off at the end
            return None
        text = head[: error.start].decode(errors="ignore")
    if any(ord(letter) < 32 and letter not in "\t\n\r\f\x1b" for letter in text):
        return None
    start = text.lstrip()[:1024].lower()
    if start.startswith(("<!doctype html", "<html")):
        return "html"
    if start.startswith(("<svg", "<?xml", "<!--", "<!doctype svg")):
        return "svg" if "<svg" in start else "xml" if start.startswith("<?xml") else "text"
    if start.startswith(("outs:", "md5:")) and "md5:" in start and "path:" in start:
        return "dvc"
    if start.startswith(("{", "[{", "[\n", "[ ", "[[")):
        return "json"
    return "text"
