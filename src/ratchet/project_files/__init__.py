"""The files that a project begins with: examples of settings, and the rules of DVC, Prefect and git.

In the repository they are its own; a wheel has them beside this module.
"""

from pathlib import Path

__all__ = ["FOLDER", "NAMES"]

NO_RESULT = "a project has copies, which DVC tracks"

_HERE = Path(__file__).parent
FOLDER = _HERE if (_HERE / "dvc.yaml").exists() else _HERE.parents[2]
NAMES = (
    ".dvc/.gitignore",
    ".dvcignore",
    ".gitignore",
    "data/.gitignore",
    "data/pretrained/.gitignore",
    "data/raw/.gitignore",
    "data/reports/.gitignore",
    "dvc.yaml",
    "mlruns/.gitignore",
    "prefect.yaml",
)
