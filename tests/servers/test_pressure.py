"""Machine pressure: readings against this machine's own values, and events sent to a web server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from httpx import HTTPStatusError

from flows.server.client import prefect_client
from flows.server.deployments import note
from flows.server.pressure_events import PressureWatch
from ratchet import settings
from ratchet.servers.pressure import Reading, readings
from ratchet.settings.model import AlertSettings
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[2]
GIB = 2**30


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A project in which `up` has run."""
    shutil.copy(REPOSITORY / "params.yaml", tmp_path / "params.yaml")
    project = Workspace(tmp_path)
    place = note(project)
    place.parent.mkdir()
    place.touch()
    return project


def by_kind(workspace: Workspace, limits: AlertSettings | None = None, **more: Path) -> dict[str, Reading]:
    return {reading.kind: reading for reading in readings(workspace, limits or AlertSettings(), **more)}


def test_readings_are_the_machines_values(workspace: Workspace) -> None:
    current = by_kind(workspace)
    assert current["disk"].value == pytest.approx(shutil.disk_usage(workspace.root).free / GIB, rel=0.05)
    memory = psutil.virtual_memory()
    assert current["memory"].value >= 1.0 - memory.available / memory.total - 0.05


def test_each_file_system_is_read_once(workspace: Workspace) -> None:
    workspace.data.mkdir()
    workspace.mlruns.mkdir()
    assert [reading.kind for reading in readings(workspace, AlertSettings())].count("disk") == 1


def test_container_limit_counts_and_cached_files_do_not(workspace: Workspace, tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    for name, content in (
        ("max", f"{GIB}\n"),
        ("current", f"{GIB}\n"),
        ("stat", f"anon 1\ninactive_file {GIB // 4}\n"),
    ):
        (cgroup / f"memory.{name}").write_text(content)
    reading = by_kind(workspace, AlertSettings(memory_used=0.7), cgroup=cgroup)["memory"]
    machine = psutil.virtual_memory()
    assert reading.value == pytest.approx(max(0.75, 1.0 - machine.available / machine.total), abs=0.05)
    assert reading.is_short
    (cgroup / "memory.max").write_text("max\n")
    assert by_kind(workspace, cgroup=cgroup)["memory"].summary.endswith(" GiB of memory are in use")


@pytest.mark.parametrize(
    ("kind", "value", "limit", "short", "clear"),
    [
        ("disk", 4.9, 5.0, True, False),
        ("disk", 5.1, 5.0, False, False),
        ("disk", 5.3, 5.0, False, True),
        ("disk", 0.0, 0.0, False, True),
        ("memory", 0.96, 0.95, True, False),
        ("memory", 0.93, 0.95, False, False),
        ("memory", 0.89, 0.95, False, True),
        ("memory", 1.0, 1.0, False, True),
    ],
)
def test_reading_is_short_clear_or_between(kind: str, value: float, limit: float, short: bool, clear: bool) -> None:
    reading = Reading(kind, "there", value, limit, "", "")
    assert (reading.is_short, reading.is_clear) == (short, clear)


def test_shortage_is_reported_once_and_again_after_up(workspace: Workspace, webhook: Any) -> None:
    settings.override(workspace.params, {"alerts.free_disk_gib": 1.0e9, "alerts.memory_used": 1.0})
    webhook.answers.append(500)
    with prefect_client(f"http://127.0.0.1:{webhook.port}/api") as client:
        watch = PressureWatch(workspace, client)
        with pytest.raises(HTTPStatusError):
            watch.check()
        assert not webhook.got
        watch.check()
        watch.check()
        note(workspace).write_text("again")
        first, again = list(webhook.got), webhook.got
        watch.check()
    [(path, [event])] = first
    assert path == "/api/events"
    assert event["event"] == "ratchet.machine.pressure"
    assert event["resource"]["prefect.resource.id"].startswith("ratchet.machine.")
    assert event["payload"]["kind"] == "disk"
    assert event["payload"]["message"].endswith("; the limit is 1e+09 GiB")
    assert len(again) == 2


LIBRARY = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(index + 1UL); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strncpy(name, "Sample", length); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory *info) {
    if (device == (void *)2) return 4;  /* no permission: a GPU that is cut into slices */
    info->total = 80ULL << 30, info->used = (device == (void *)1 ? 8ULL : 79ULL) << 30, info->free = 0;
    return 0;
}
const char *nvmlErrorString(int error) { return "refused"; }
"""

LOOK = """
import sys
from pathlib import Path
from ratchet.settings.model import AlertSettings
from ratchet.servers.pressure import readings
from ratchet.workspace import Workspace
for reading in readings(Workspace(Path(sys.argv[1])), AlertSettings(memory_used=1.0)):
    if reading.kind == "gpu-memory":
        print(reading.place, reading.is_short, reading.summary)
"""


def test_each_readable_gpu_is_read(workspace: Workspace, tmp_path: Path) -> None:
    """NVIDIA's own Python binding, over a library that replaces the driver and has three GPUs."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is on this machine")
    (tmp_path / "nvml.c").write_text(LIBRARY)
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "nvml.c")], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", LOOK, str(workspace.root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "gpu-0 False 10.0% of 80.0 GiB of GPU 0 (Sample) are in use",
        "gpu-2 True 98.8% of 80.0 GiB of GPU 2 (Sample) are in use",
    ]
