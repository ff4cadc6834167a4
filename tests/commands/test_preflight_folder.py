"""The temporary folder of `ratchet preflight`."""

import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from waiting import until

from commands.preflight import temporary_folder
from ratchet.registry.runs import SENDER


def test_late_writer_of_an_interrupted_run_leaves_no_folder() -> None:
    """The thread that sends to MLflow writes after the interruption, as on a slow disk."""
    usual = tempfile.tempdir

    def write(folder: Path) -> None:
        until(lambda: tempfile.tempdir == usual)
        for number in range(200):
            (folder / "mlruns").mkdir(parents=True, exist_ok=True)
            (folder / "mlruns" / f"{number}.db").touch()

    with temporary_folder() as folder:
        threading.Thread(target=write, args=[folder], name=SENDER).start()
    assert not folder.exists()


WORKERS = """
import multiprocessing.util
from commands.preflight import temporary_folder

with temporary_folder():
    multiprocessing.util.get_temp_dir()  # as a DataLoader with workers does
"""


def test_preflight_with_workers_ends_without_a_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", WORKERS], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
