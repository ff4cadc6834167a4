"""Identify the real kind of a file by its first bytes, so that the reason for a refusal is true."""

from collections.abc import Iterator

from ratchet.data.refusal_reasons import FILE_KINDS, FileKind

__all__ = ["HEAD", "identify"]

HEAD = 4096
"""Bytes from the beginning of a file that are enough to identify it."""

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


def identify(head: bytes) -> FileKind | None:
    """Return the kind of a file that begins with these bytes (HEAD of them, or the whole file); None: not known."""
    name = next((name for start, name in _BEGINNINGS if head.startswith(start)), None) or _by_structure(head)
    return FILE_KINDS.get(name or "")


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
        is_cut_character = error.reason == "unexpected end of data" or error.start >= len(head) - 4
        if not is_cut_character:
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
