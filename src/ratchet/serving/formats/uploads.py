"""Image files in a request: one file as the body, or forms (multipart/form-data) with files and options.

Names of files are ignored: nothing of a request is ever used as a path.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

from ratchet.kinds.protocol import InputError
from ratchet.serving.versions.additions import AnswerOptions
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["UPLOADS", "is_upload", "read_upload"]

_FORM = "multipart/form-data"
_FILES = ("file", "files")
UPLOADS = frozenset({_FORM, "image/png", "image/jpeg", "image/webp", "image/bmp", "image/gif", "image/tiff"})
"""Media types of bodies that carry files. A page of another origin may send a form without asking the server first, so
`RequestFilter` must check the headers Origin and Sec-Fetch-Site."""
_MOST_PARTS = 4096  # of a form


def is_upload(headers: Mapping[str, str]) -> bool:
    """Return whether the body carries files."""
    return _media_type(headers) in UPLOADS


def read_upload(body: bytes, headers: Mapping[str, str], loaded: LoadedVersion) -> dict[str, Any]:
    """Return the files and options as the JSON format has them: {"input": [bytes, ...], "options": {...}}.

    Raises:
        InputError: the model takes no files, or the form is damaged or has an unknown field.
    """
    input_spec = loaded.spec.input
    if not loaded.kind.takes_files(input_spec):
        raise InputError(
            f"Content-Type: found {_media_type(headers)}; the model takes {input_spec.description}. Fix: send JSON"
        )
    if _media_type(headers) != _FORM:
        return {"input": [body]}
    files: list[bytes] = []
    options: dict[str, Any] = {}
    content: dict[str, Any] = {"input": files, "options": options}
    for name, value in _parts(body, headers["content-type"]):
        if name in _FILES:
            files.append(value)
        elif name == "top_k":
            options["top_k"] = _whole_number(value)
        elif name in AnswerOptions._fields:
            options[name] = {b"true": True, b"false": False}.get(value, _number(value))
        elif name == "model":
            content["model"] = value.decode(errors="replace")
        else:
            raise InputError(
                f"{name[:100]}: unknown field; allowed: abstain, file, files, interval, model, novelty, top_k"
            )
    if not files:
        raise InputError("file: is missing. Fix: send one part with this name for each image")
    return content


def _parts(body: bytes, content_type: str) -> list[tuple[str, bytes]]:
    """Return name and content of each part of a form (RFC 7578)."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import Field, File, FormParser, parse_options_header

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise InputError("Content-Type: multipart/form-data has no boundary")
    parts: list[tuple[str, bytes]] = []
    ends: list[bool] = []

    def add(part: Field | File) -> None:
        if len(parts) == _MOST_PARTS:
            raise InputError(f"the form has too many parts; allowed: {_MOST_PARTS:,}")
        if isinstance(part, File):
            part.file_object.seek(0)
        content = part.file_object.read() if isinstance(part, File) else part.value
        parts.append(((part.field_name or b"").decode(errors="replace"), content or b""))

    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # the answer already names each fault of a form
    config = {"MAX_MEMORY_FILE_SIZE": len(body) + 1, "UPLOAD_ERROR_ON_BAD_CTE": True}  # no file is written to disk
    try:
        FormParser(_FORM, add, add, lambda: ends.append(True), boundary, config=config).write(body)
    except FormParserError as error:
        fault = re.sub(r"""\"b(?:'(.*)'|"(.*)")\"""", r'"\1\2"', str(error)).removesuffix(': "None"')
        where = f"part {len(parts)} of the form: {fault}"
        raise InputError(f'{where}; allowed: Content-Disposition: form-data; name="file"') from error
    if not ends:
        raise InputError("the form has no end: its last boundary is missing")
    return parts


def _whole_number(value: bytes) -> int:
    if not value.isdigit() or len(value) > 9:
        raise InputError(f"top_k: found {value[:20].decode(errors='replace')!r}; allowed: a whole number of 1 or more")
    return int(value)


def _number(value: bytes) -> float | str:
    """Return a number; a text that is none as it is, for the message."""
    text = value[:20].decode(errors="replace")
    try:
        return float(text)
    except ValueError:
        return text


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()
