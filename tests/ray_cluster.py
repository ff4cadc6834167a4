"""A Ray cluster of two nodes on this machine, of which one can be killed. Ray is an extra, so tests skip without it."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from waiting import until

VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "5e" * 32,
    "RAY_raylet_start_wait_time_s": "300",  # a busy machine is no fault
}
SCRIPT = """
import sys
from pathlib import Path
from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
second = cluster.add_node(**node)
Path(sys.argv[1]).write_text(cluster.address)
for line in sys.stdin:
    cluster.remove_node(second, allow_graceful=False)
    Path(sys.argv[1]).unlink()
cluster.shutdown()
"""


@dataclass(frozen=True)
class RayCluster:
    """The cluster's process, and the file with its address, which is deleted when its second node is gone."""

    process: "subprocess.Popen[bytes]"
    file: Path

    @property
    def address(self) -> str:
        return self.file.read_text()

    def tasks(self) -> list[psutil.Process]:
        """Processes that carry out a task now."""
        return [each for each in psutil.Process(self.process.pid).children(recursive=True) if has_title(each, "ray::_")]

    def kill_second_node(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        until(lambda: not self.file.exists(), process=self.process)


def has_title(process: psutil.Process, start: str) -> bool:
    """Return whether the title of a process begins so; no, if it has ended."""
    try:
        return "".join(process.cmdline()).startswith(start)
    except psutil.NoSuchProcess:
        return False


def require_ray() -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install --require-hashes -r requirements-ray.txt")


@contextmanager
def ray_cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[RayCluster]:
    require_ray()
    file, log = folder / "address", folder / "cluster.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, str(file)],
            env={**environment, **VARIABLES}, cwd=folder, stdin=subprocess.PIPE, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(file.exists, process=process, log=log)
        yield RayCluster(process, file)
    finally:
        process.communicate()
