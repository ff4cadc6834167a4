"""The temporary folder of `ratchet preflight`."""

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
