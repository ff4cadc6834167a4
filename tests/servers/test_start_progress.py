"""Progress of a service that starts: `ratchet up` waits as long as it computes."""

import subprocess
import sys

import pytest
from waiting import until

from flows.server.start_progress import StartProgress, cpu_seconds
from ratchet.servers.supervisor import Service


@pytest.mark.parametrize(
    ("program", "computes"), [("while True: pass", True), ("import signal; signal.pause()", False)]
)
def test_waiting_ends_when_a_service_computes_nothing(program: str, computes: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        service = Service("slow", "", "", "", 1.0, pid=process.pid)
        if computes:
            until(lambda: cpu_seconds(process.pid) > 0.1, process=process)
            progress = StartProgress(1e-9)  # any computation is more than a share of it
            progress.has_ended(service)
            before = cpu_seconds(process.pid)
            until(lambda: cpu_seconds(process.pid) > before, process=process)
            assert not progress.has_ended(service)
        else:
            progress = StartProgress(0.5)
            assert not progress.has_ended(service)  # its first period has just begun
            until(lambda: progress.has_ended(service), process=process)
    finally:
        process.kill()
        process.wait()
    assert cpu_seconds(process.pid) == 0.0
