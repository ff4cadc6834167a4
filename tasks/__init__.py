"""The stages: files in, files out. `dvc repro` runs `python -m tasks.NAME`; flows call the same functions."""

import sys
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[1] / "src"
if (_SOURCE / "ratchet").is_dir():  # in another git worktree, Python would find that of the project that is installed
    sys.path.insert(0, str(_SOURCE))
