"""Files and folders that operating systems, NAS boxes and file managers write beside a user's data, and hidden ones."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ignored", "is_system_name", "is_system_path"]

_NAMES = frozenset({
    "@eadir", "@recently-snapshot", "@recycle", "@sharebin", "@tmp", "#recycle", "#snapshot",  # Synology, QNAP
    "__macosx", "icon\r", "network trash folder", "temporary items",  # macOS; others begin with a dot
    "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "$recycle.bin", "recycler",  # Windows
    "system volume information",
    "lost+found", "__pycache__",
})  # fmt: skip
"""In lower case. Names that begin with a dot are hidden: .DS_Store, ._NAME, .thumbnails, .ipynb_checkpoints."""
_ENDINGS = ("@synoeastream", "@synoresource")


@dataclass
class Ignored:
    """Files that are no samples: their number, the path of the first, and which they are."""

    files: int = 0
    first: str = ""
    which: str = "that systems write or hide"

    def add(self, path: str, files: int = 1) -> None:
        """Count files, the first of which has this path."""
        self.files += files
        self.first = min(self.first or path, path)

    @property
    def text(self) -> str:
        """Message for the user; empty if there are none."""
        if not self.files:
            return ""
        noun = "file" if self.files == 1 else "files"
        return f"ignored {self.files:,} {noun} {self.which}, such as {self.first}"


def is_system_path(parts: Sequence[str]) -> bool:
    """Whether a path, in its parts below the user's folder, is or is inside of something hidden or of a system."""
    return any(map(is_system_name, parts))


def is_system_name(name: str) -> bool:
    """Whether a file or folder of this name is hidden or of a system."""
    folded = name.casefold()
    return name.startswith(".") or folded in _NAMES or folded.endswith(_ENDINGS)
