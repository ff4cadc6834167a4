"""Real searches in temporary projects: `ratchet search` without its page, in a process of its own.

python -m bench.search_runs   begins or continues the search of the project in the working folder
"""

import os
import subprocess
import sys
from pathlib import Path

from bench.project import ROOT, Project
from ratchet import settings
from ratchet.search.records import Study
from ratchet.search.store import StudyStore
from ratchet.workspace import Workspace

__all__ = ["digits", "environment", "read", "search"]

STUDY = "digits"


def digits(folder: Path, changes: dict[str, object]) -> Project:
    """Return a project with the packed digits and these settings beside those of the default params.yaml."""
    project = Project(folder, {"search.study": STUDY, **changes})
    project.stage("ingest")
    return project


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that finds this repository from another working folder."""
    inherited = {name: value for name, value in os.environ.items() if name != "RATCHET_ROOT"}
    return {**inherited, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **more}


def search(project: Project) -> Study:
    """Begin or continue the search of a project, wait for its end, and return the study."""
    command = [sys.executable, "-m", "bench.search_runs"]
    subprocess.run(command, cwd=project.folder, env=environment(), check=True)
    return read(project)


def read(project: Project) -> Study:
    """Return the study of a project."""
    workspace = Workspace(project.folder)
    return StudyStore(workspace, settings.load(workspace.params).search.storage, STUDY).require()


def main() -> None:
    """Search in the working folder, as `ratchet search` does it, with a core for each worker.

    Two threads of a training wait for each other, so that on a busy machine they need many times the processor time.
    """
    from tasks.progress import Terminal
    from tasks.search import run_workers
    from tasks.search_study import begin

    workspace = Workspace.find()
    params = settings.load(workspace.params)
    if hasattr(os, "sched_setaffinity") and params.search.workers:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-params.search.workers :])
    with Terminal("search", unit="trials") as progress:
        store, _, has_work = begin(params, workspace)
        if has_work:
            run_workers(params, workspace, store, progress=progress)


if __name__ == "__main__":
    main()
