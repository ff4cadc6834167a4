"""Every reason why a sample is refused: its rule, the value that the quarantine table shows, and the fix.

Schemas name the rules: image_rules.py, listing_rules.py, tables/rules.py. A file that is not the
expected image is `unreadable` or `format-not-allowed`; its fix depends on what it really is (FILE_KINDS). The value of
an image whose pixels cannot be decoded is the decoder's message (reading/images.py). This module imports no other
library, because worker processes import it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["FILE_KINDS", "FIX_BY_VALUE", "REASONS", "FileKind", "Reason", "fix", "why_unopened"]


class Reason(NamedTuple):
    """A text with the value that breaks a rule, with names of columns in braces, and the fix."""

    value: str
    fix: str


REASONS: Mapping[str, Reason] = {
    # files
    "empty-file": Reason("0 bytes", "the file is empty: fetch it again, or remove it"),
    "permission": Reason(
        "{problem}", "this user has no permission to read the file: change its permissions, or remove it"
    ),
    "unreadable": Reason(
        "{problem}", "not an image, or damaged, or outside every class folder: save it again, or move it away"
    ),
    # images
    "format-not-allowed": Reason("{format}", "convert the image, or allow its format in data.formats"),
    "format-mismatch": Reason(
        "{format} in a file named as {claimed}", "the content has another format than the extension: rename the file"
    ),
    "animated": Reason("{frames} frames", "the file has several frames: keep one"),
    "too-small": Reason("{width} x {height} pixels", "remove the image, or lower data.min_side"),
    "too-large": Reason("{width} x {height} pixels", "scale the image down, or raise data.max_pixels"),
    "bad-aspect": Reason("{width} x {height} pixels", "crop the image, or raise data.max_aspect"),
    "unknown-label": Reason("{label}", "the label is not a class: correct it, or list the class in data.classes"),
    # rows of a table
    "no-path": Reason("", "the row has no path: add it, or remove the row"),
    "outside-folder": Reason(
        "{path}", "the path is outside data.path: move the image into it and use a path relative to it"
    ),
    "missing-file": Reason("{path}", "the file is not in data.path: correct the path, or add the image"),
    "unknown-split": Reason("{split}", "write train, validation or test, or leave it empty"),
    "personal-data": Reason(
        "{column} looks like a personal address or number",
        "remove it, list the column in data.drop or data.hash, or set data.refuse_personal=false",
    ),
    "ragged-row": Reason(
        "{value}", "the row has more or fewer cells than the header: quote cells that contain the separator"
    ),
    "nested-value": Reason(
        "{value}", "other rows have a text there: write one text, or remove the row; data.drop leaves out the column"
    ),
    "repeated-header": Reason(
        "the header again", "the header is repeated among the rows, as in joined files: remove the line"
    ),
    # texts
    "not-utf-8": Reason(
        "{problem}", "save the text as UTF-8; if it comes from Windows, `iconv -f WINDOWS-1252 -t UTF-8` converts it"
    ),
    "not-text": Reason("{problem}", "the file is not a text: save its text as UTF-8, or move it away"),
    "no-text-key": Reason(
        "{problem}", "correct or remove the line; if another key has the texts, name it by data.text_column"
    ),
    "unreadable-text": Reason(
        "{problem}", "the file is outside every class folder or cannot be opened: move it away, or correct it"
    ),
    "nul-character": Reason(
        "{problem}", "remove the character; a text full of them is UTF-16 without a byte order mark, or no text"
    ),
    "empty-text": Reason("{problem}", "the text is missing or has no visible character: add it, or remove the sample"),
    # rows of a table that are samples themselves
    "not-a-number": Reason(
        "{column} {value}",
        "nearly all values of the column are numbers: correct this one, empty it, or list it in data.missing; or set "
        "the column to categorical in data.columns",
    ),
    "not-a-date": Reason(
        "{column} {value}",
        "nearly all values of the column are dates: correct this one, empty it, or list it in data.missing; or set the "
        "column to categorical in data.columns",
    ),
    "infinite-number": Reason(
        "{column} {value}", "the number is infinite or beyond 3.4e38: correct it, empty it, or list it in data.missing"
    ),
    "no-label": Reason("", "the row has no label: add it, or remove the row"),
    "label-not-a-number": Reason(
        "{label}", "the label is no number: correct it, or set data.problem to classification"
    ),
    "infinite-label": Reason("{label}", "the label is infinite or beyond 3.4e38: correct it, or remove the row"),
    "no-order": Reason(
        "{column} {value}", "the row has no value in the column of data.order_by: add it, or remove the row"
    ),
    # samples of a user's own kind
    "raised": Reason("{problem}", "your code raised an error for this sample: correct the file it reads, or the code"),
    "not-arrays": Reason(
        "{problem}",
        "return a dictionary with value and the label from __getitem__, and one of NumPy arrays of numbers from arrays",
    ),
    "other-shape": Reason(
        "{image}", "all samples must have the same type and shape, and most have another: convert, resize or crop it"
    ),
    "not-finite": Reason(
        "nan or infinity in {image}",
        "some values are nan or infinite: correct the file or the computation, such as a division by zero",
    ),
    # duplicates
    "duplicate-id": Reason(
        "{value}", "another sample has the same id: use unique ids, and put each sample into one split"
    ),
    "duplicate-across-splits": Reason(
        "{value}", "the same content is in a split that must stay unseen: remove one of the samples"
    ),
}
"""By rule."""

_FETCH_AGAIN = "fetch it again: a copy or download was interrupted, or the disk was full"
_CONVERT = "convert it to JPEG or PNG"
_MOVE = "move it out of the image folders, or take it off the list"
_UNPACK = "unpack it, and set data.path to the folder"
_NOT_FETCHED = "its content was not fetched: run"
_DECODABLE = {"jpeg": "JPEG", "png": "PNG", "webp": "WebP", "bmp": "BMP", "tiff": "TIFF", "gif": "GIF"}


@dataclass(frozen=True)
class FileKind:
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


_IMAGES = {
    **{name: (f"a {title} image", f"{_FETCH_AGAIN}, or save it again") for name, title in _DECODABLE.items()},
    "avif": ("an AVIF image", f"{_CONVERT}, or allow avif in data.formats"),
    "heif": (
        "a HEIC/HEIF image",
        f"{_CONVERT}, or allow heif in data.formats and run `uv pip install pillow-heif`",
    ),
    "jxl": ("a JPEG XL image", _CONVERT),
    "jpeg2000": ("a JPEG 2000 image", _CONVERT),
    "psd": ("a Photoshop document", _CONVERT),
    "exr": ("an OpenEXR image", _CONVERT),
    "svg": ("an SVG drawing", "draw it as a PNG of the size you need"),
    "dicom": ("a DICOM image", "export it as 16-bit greyscale PNG"),
}
_OTHERS = {
    "html": ("an HTML page", "a server sent a page instead of the file: check its address"),
    "xml": ("an XML document", _MOVE),
    "json": ("JSON", _MOVE),
    "pdf": ("a PDF document", "export its images as JPEG or PNG"),
    "xlsx": ("an Excel workbook", _MOVE),
    "xls": ("an old Excel or Office document", _MOVE),
    "zip": ("a ZIP archive", _UNPACK),
    "gzip": ("a gzip archive", _UNPACK),
    "bzip2": ("a bzip2 archive", _UNPACK),
    "xz": ("an xz archive", _UNPACK),
    "7z": ("a 7-Zip archive", _UNPACK),
    "rar": ("a RAR archive", _UNPACK),
    "tar": ("a tar archive", _UNPACK),
    "video": ("a video", "save its frames as JPEG or PNG"),
    "numpy": ("a NumPy array", "save it as PNG, or read it with your own kind (data.kind)"),
    "parquet": ("a Parquet table", _MOVE),
    "arrow": ("an Arrow table", _MOVE),
    "sqlite": ("an SQLite database", _MOVE),
    "text": ("text", _MOVE),
    "zeros": ("only zero bytes", _FETCH_AGAIN),
    "git-lfs": ("a Git LFS pointer", f"{_NOT_FETCHED} `git lfs pull` in its repository"),
    "dvc": ("a DVC pointer", f"{_NOT_FETCHED} `dvc pull` in its repository, and use the file itself"),
    "git-annex": ("a git-annex pointer", f"{_NOT_FETCHED} `git annex get` there"),
}
FILE_KINDS = {
    name: FileKind(name, description, fix, image=name in _IMAGES, decodable=name in _DECODABLE)
    for name, (description, fix) in (_IMAGES | _OTHERS).items()
}
"""By name."""


def why_unopened(kind: FileKind | None, detail: str | None, *, decodable: bool) -> str:
    """Return the reason why a file cannot be opened as an image.

    Args:
        kind: what it really is; None: not known.
        detail: message of the decoder, if it has a particular one.
        decodable: whether this kind can be decoded here, so that the file must be damaged.
    """
    if kind is None:
        return detail or "no image in any known format, or its header is damaged"
    if decodable:
        return f"{kind.description}, but its header is damaged or cut off" + (f" ({detail})" if detail else "")
    return f"{kind.description} that cannot be decoded here" if kind.image else f"{kind.description}, not an image"


FIX_BY_VALUE = frozenset({"unreadable", "format-not-allowed"})
"""Rules whose fix depends on the value."""


def fix(rule: str, value: str | None) -> str:
    """Return the fix for a sample that breaks a rule with this value."""
    if rule == "unreadable":
        known = (kind.fix for kind in FILE_KINDS.values() if (value or "").startswith(kind.description))
        return next(known, REASONS[rule].fix)
    if rule != "format-not-allowed" or value is None:
        return REASONS[rule].fix
    if value == "gif":
        return f"{_CONVERT}, or allow gif in data.formats: its first frame is used"
    if value in (*_DECODABLE, "ppm"):
        return REASONS[rule].fix
    return FILE_KINDS[value].fix if value in FILE_KINDS else _CONVERT
