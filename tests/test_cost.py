"""The cost of work, measured on real work: threads and children count, counters that begin again are followed."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from ratchet.cost import POWERCAP, CostMeter, TrainingCost, add

BURNS = "import sys, time\nwhile time.process_time() < 0.4: pass\nprint('burnt', flush=True)\nsys.stdin.read()\n"


def test_cpu_time_of_a_child_counts_once() -> None:
    meter = CostMeter()
    child = subprocess.Popen([sys.executable, "-c", BURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    running = meter.spent().cpu
    child.communicate()
    ended = meter.spent().cpu
    assert running >= 0.38  # the system counts in hundredths
    assert running - 0.05 <= ended < running + 0.4


def test_threads_count_and_what_was_spent_before_does_not() -> None:
    def burn() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.2:
            pass

    burn()
    meter = CostMeter()
    assert meter.spent().cpu < 0.2
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    spent = meter.spent()
    assert spent.cpu >= 0.185  # the system counts in hundredths
    assert spent.wall >= 0.19
    assert spent.gpu == 0.0


def processor(folder: Path, joules: dict[str, float]) -> None:
    """A folder as Linux shows it, with zones by name; their counters begin again after 100 J."""
    for number, (name, value) in enumerate(joules.items()):
        zone = folder / f"intel-rapl:{number}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text(f"{int(value * 1e6)}\n")
        (zone / "max_energy_range_uj").write_text("100000000\n")


def test_processor_energy_is_right_across_a_counter_overflow(tmp_path: Path) -> None:
    processor(tmp_path, {"package-0": 90.0, "package-1": 10.0, "psys": 50.0})
    meter = CostMeter(powercap=tmp_path)
    assert meter.spent().energy == {"processor": 0.0}
    processor(tmp_path, {"package-0": 95.0, "package-1": 11.0, "psys": 60.0})
    assert meter.spent().energy == {"processor": 6.0}
    processor(tmp_path, {"package-0": 5.0, "package-1": 11.5, "psys": 70.0})
    assert meter.spent().energy == {"processor": 16.5}


@pytest.mark.parametrize("content", ["", "none"])
def test_energy_that_cannot_be_read_is_not_known(tmp_path: Path, content: str) -> None:
    assert CostMeter(powercap=tmp_path / "no such folder").spent().energy == {}
    processor(tmp_path, {"package-0": 1.0})
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text(content)
    assert CostMeter(powercap=tmp_path).spent().energy == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_gpu_time_and_energy_count_from_first_use() -> None:
    meter = CostMeter(powercap=POWERCAP)
    meter.use("cuda")
    matrix = torch.ones(4096, 4096, device="cuda")
    while (spent := meter.spent()).gpu < 1.0:
        matrix = (matrix @ matrix).clamp(0, 1)
    assert spent.gpu <= spent.wall
    assert spent.energy.get("GPU", 1.0) > 0.0


def test_attempts_add_up_and_unknown_energy_stays_unknown() -> None:
    first = TrainingCost(10.0, 20.0, 5.0, {"GPU": 360.0, "processor": 36.0})
    second = TrainingCost(1.0, 2.0, 0.5, {"GPU": 36.0})
    assert add([]) is None
    assert add([first]) == first
    assert add([first, second]) == TrainingCost(11.0, 22.0, 5.5, {"GPU": 396.0}, attempts=2)
    assert TrainingCost.from_json(first.to_json()) == first


def test_it_is_told_in_words_and_hours() -> None:
    cheap = TrainingCost(23.4, 41.2, 0.0)
    assert cheap.summary == "23.4 s wall, 41.2 CPU-seconds"
    assert cheap.metrics() == pytest.approx(
        {"cost/wall_hours": 0.0065, "cost/cpu_hours": 41.2 / 3600, "cost/gpu_hours": 0.0}
    )
    dear = TrainingCost(3600.0 * 30, 3600.0 * 100, 3600.0 * 29, {"GPU": 3.6e7, "processor": 3.6e6}, attempts=3)
    assert dear.summary == "30 h wall, 100 CPU-hours, 29 GPU-hours, 11,000 Wh (GPU and processor), in 3 attempts"
    assert dear.metrics()["cost/energy_wh"] == pytest.approx(11000.0)
    assert TrainingCost(600.0, 1200.0, 300.0).summary == "10 min wall, 20 CPU-minutes, 5 GPU-minutes"
