"""The page at `/`: one HTML file that loads nothing, and asks the model server as any client does."""

import base64
import hashlib
from functools import cache
from pathlib import Path

from starlette.responses import Response

from ratchet import reports

__all__ = ["page"]

_FOLDER = Path(__file__).parent
_SCRIPTS = ("forms.js", "answers.js", "page.js")
_COLOURS = Path(reports.__file__).parent / "templates" / "report.css"


def page() -> Response:
    """Return the page. Its policy allows its own style and script only, by their hashes."""
    content, policy = _page()
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
    return Response(content, media_type="text/html", headers=headers)


@cache
def _page() -> tuple[str, str]:
    """Return the page and its Content-Security-Policy."""
    style = _COLOURS.read_text() + (_FOLDER / "page.css").read_text()
    script = "".join((_FOLDER / name).read_text() for name in _SCRIPTS)
    content = (_FOLDER / "page.html").read_text().replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data: blob:; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return content, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
