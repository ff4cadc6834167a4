"""The engine `ray`, on a real cluster of two nodes of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray_cluster import VARIABLES, require_ray

from ratchet import scale
from ratchet.errors import PlatformError
from ratchet.scale.on_ray import _other_machines
from ratchet.settings.model import ScaleSettings

FUNCTION = "scale_acts:act"
ACTS = """
import os
import signal
from pathlib import Path

from ratchet.errors import DataError


def act(shard):
    calls = Path(shard["marks"], str(shard["number"]))
    with calls.open("a") as file:
        file.write("x")
    if shard.get("kills") and calls.stat().st_size == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if shard.get("refuses"):
        raise DataError("rows.csv: damaged. Fix: save it again")
    return {"square": shard["number"] ** 2}
"""
SCRIPT = """
import json, os, sys
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from ratchet import scale
from ratchet.errors import DataError
from ratchet.settings.model import ScaleSettings

home = Path(sys.argv[1])
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
node = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
second = cluster.add_node(**node)
settings = ScaleSettings(engine="ray", workers=4, address=cluster.address)

def spread(engine, shards, on_result=lambda *_: None):
    return scale.map("scale_acts:act", shards, folder=str(home / engine.engine), settings=engine, state=home,
                     on_result=on_result)

def lose_a_node(place, result, is_earlier):
    if second in cluster.list_all_nodes():
        cluster.remove_node(second, allow_graceful=False)

shards = [{"number": number, "marks": str(home), "kills": number == 5} for number in range(24)]
results = spread(settings, shards, lose_a_node)
try:
    spread(settings, [{"number": 99, "marks": str(home), "refuses": True}])
except DataError as error:
    refused = str(error)
here = spread(ScaleSettings(), [shard | {"kills": False} for shard in shards])
print(json.dumps([results == here, refused, ray.is_initialized(), os.environ["RAY_USAGE_STATS_ENABLED"]]))
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_lost_worker_and_a_lost_node_change_no_result(tmp_path: Path) -> None:
    require_ray()
    (tmp_path / "scale_acts.py").write_text(ACTS)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, **VARIABLES, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    expected = '[true, "rows.csv: damaged. Fix: save it again", false, "0"]'
    assert done.stdout.strip().splitlines()[-1] == expected
    assert (tmp_path / "99").read_text() == "x"  # an error of the data is not repeated
    assert len((tmp_path / "5").read_text()) >= 2


@pytest.mark.parametrize("address", ["10.0.0.9:6379", "ray://cluster.example:10001"])
def test_a_remote_cluster_without_token_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    settings = ScaleSettings(engine="ray", address=address)
    with pytest.raises(
        PlatformError, match=r"scale\.address: found .*, and no token.*Fix: start it with RAY_AUTH_MODE"
    ):
        scale.map("json:loads", ["1"], folder=str(tmp_path), settings=settings, state=tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_only_living_nodes_of_other_machines_need_a_token() -> None:
    nodes = [
        {"NodeID": str(number), "Alive": is_alive, "NodeManagerAddress": address}
        for number, (address, is_alive) in enumerate(
            [("10.0.0.4", True), ("10.0.0.4", True), ("10.0.0.9", False), ("10.0.0.7", True)]
        )
    ]
    assert _other_machines(nodes[:3], "0") == []
    assert _other_machines(nodes, "1") == ["10.0.0.7"]
    assert _other_machines(nodes[:1], "unknown") == ["10.0.0.4"]


def test_ray_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        PlatformError, match=r"ray is not installed. Fix: uv pip install .* requirements-ray.txt; .*ratchet\[ray\]"
    ):
        scale.map("json:loads", ["1"], folder=str(tmp_path), settings=ScaleSettings(engine="ray"), state=tmp_path)
