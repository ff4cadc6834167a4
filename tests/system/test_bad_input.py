"""Bad input through the real command line: one clear message, an exit code, nothing half-written."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flow_states import newest_states
from PIL import Image

from ratchet.servers import client_environment

pytestmark = pytest.mark.system

DEAD = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def shared_project(new_project: Callable[[str], Any]) -> Any:
    return new_project("bad-input")


@pytest.fixture
def fresh(shared_project: Any, share_server: Callable[[Any], None]) -> Iterator[Any]:
    """The project as it was committed; what a test does to it is undone."""
    share_server(shared_project)
    yield shared_project
    shared_project.good("git", "checkout", "--quiet", ".")
    shared_project.good("git", "clean", "-ffdx", "--quiet")


def written(project: Any) -> dict[str, str]:
    """Everything that a run could have half-written."""
    params = sha256(project.workspace.params.read_bytes()).hexdigest()
    digests = project.digests("data", "mlruns")
    for name in ("code", "settings"):  # as they are, whatever becomes of the run
        digests.pop(f"data/{name}.json", None)
    return {"params.yaml": params, **digests}


@contextmanager
def nothing_written(project: Any, *, but: tuple[str, ...] = ()) -> Iterator[None]:
    before = written(project)
    yield
    after = written(project)
    assert {path: after[path] for path in after if path not in but} == before


def images(folder: Path, count: int, *, first: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")


def use_pictures(project: Any) -> Path:
    project.good("ratchet", "set", "data.source=image-folder", "data.path=images")
    return project.root / "images"


def test_a_missing_folder_is_named_by_the_flow_too(fresh: Any, shared_server: Any) -> None:
    folder = use_pictures(fresh)
    with nothing_written(fresh):
        for command in (fresh.stage("ingest"), ("ratchet", "train", "--set", "seed=5")):
            message = fresh.refused(*command)
            assert f"data.path: {folder} does not exist. Fix: set it to the folder with your data" in message
    assert newest_states(shared_server.folder, last="ingest") == ("DataLoadFailed", {"ingest": "Failed"})


def test_an_unreachable_source_is_one_sentence_in_the_flow(fresh: Any) -> None:
    """DVC looks at the source before the stage does, and lets a storage's errors through as they are."""
    address = "ssh://127.0.0.1:9/set"
    fresh.good("ratchet", "set", "data.source=image-folder", f"data.path={address}")
    assert f"{address} does not answer" in fresh.refused(*fresh.stage("ingest"))
    address = "s3://bucket/set"
    fresh.good("ratchet", "set", f"data.path={address}")
    with nothing_written(fresh):
        message = fresh.refused(
            "ratchet", "train", AWS_ENDPOINT_URL="http://127.0.0.1:9", AWS_EC2_METADATA_DISABLED="true"
        )
    (sentence,) = [line for line in message.splitlines() if line.startswith("ratchet: data.path")]
    assert f"{address} does not answer" in sentence
    assert len(message.splitlines()) < 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MiB of its own."""
    place = tmp_path.resolve() / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)]
    if not mounted or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """Fill the disk up to `leave` bytes."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave)
    return filler


def test_a_run_continues_after_a_full_disk_has_room(small_disk: Path, shared_project: Any) -> None:
    project = shared_project.clone(small_disk / "project")
    quiet = {"PYTHONDONTWRITEBYTECODE": "1"}
    filler = fill(small_disk, leave=64 << 10)
    with nothing_written(project):
        message = project.refused(*project.stage("ingest"), **quiet)
    assert "cannot be written (No space left on device): free some space" in message
    assert not list((project.root / "data").rglob(".draft-*"))
    filler.unlink()
    project.good(*project.stage("ingest"), **quiet)
    filler = fill(small_disk, leave=512 << 10)
    message = project.refused(*project.stage("train"), **quiet)
    assert "No space left on device" in message
    assert not (project.root / "data" / "model").exists()
    filler.unlink()
    project.good(*project.stage("train"), **quiet)
    assert (project.root / "data" / "model" / "model.safetensors").is_file()


def test_whoever_may_not_run_is_told_before_the_work(fresh: Any) -> None:
    fresh.good("ratchet", "set", "access.runners=[ann]")
    with nothing_written(fresh):
        message = fresh.refused("ratchet", "train")
    assert "may not run train-flow: params.yaml: access.runners allows ann" in message


def test_a_labelled_run_checks_first_and_names_failed_loads(fresh: Any, shared_server: Any) -> None:
    script = "from flows.train import train_flow; state = train_flow(revision='HEAD', labelled=True, return_state=True)"
    command = ("python", "-c", f"{script}; print(state.name, state.message)")
    commit = fresh.good("git", "rev-parse", "HEAD").strip()
    variables = client_environment(fresh.workspace, shared_server.api) | {"RATCHET_COMMIT": commit}
    fresh.good("ratchet", "set", "access.runners=[ann]")
    assert "may not run train-flow: params.yaml: access.runners allows ann" in fresh.good(*command, **variables)
    fresh.good("ratchet", "set", "access.runners=everyone", "data.source=image-folder", "data.path=data/nowhere")
    output = fresh.good(*command, **variables)
    assert "DataLoadFailed data.path" in output
    assert "data/nowhere does not exist" in output
    assert "Traceback" not in output
    assert "NoneType" not in output


def test_with_mlflow_away_everything_but_registering_is_done_and_kept(
    fresh: Any, shared_server: Any, use_small_net: Callable[[Any], None]
) -> None:
    use_small_net(fresh)
    before = fresh.workspace.params.read_bytes()
    message = fresh.refused("ratchet", "train", "--set", f"tracking.uri={DEAD}")
    assert fresh.workspace.params.read_bytes() == before
    assert "tracking.uri is sqlite:///mlruns/mlflow.db again" in message
    assert f"MLflow at {DEAD} does not accept requests" in message
    assert "`ratchet sync`" in message
    state, tasks = newest_states(shared_server.folder, last="evaluate")
    assert state == "Failed"
    assert {name: tasks[name] for name in ("ingest", "train", "evaluate")} == dict.fromkeys(
        ("ingest", "train", "evaluate"), "Completed"
    )
    model = fresh.digests("data/model", "data/checkpoints", "data/reports")
    fresh.good("ratchet", "set", f"tracking.uri={DEAD}")
    assert f"MLflow at {DEAD}" in fresh.refused("ratchet", "sync")

    fresh.good("ratchet", "train", "--set", "tracking.uri=sqlite:///mlruns/mlflow.db")
    state, tasks = newest_states(shared_server.folder, last="register")
    assert state == "Completed"
    assert (tasks["train"], tasks["evaluate"], tasks["register"]) == ("Unchanged", "Unchanged", "Completed")
    after = fresh.digests("data/model", "data/checkpoints", "data/reports")
    assert {path: after[path] for path in model} == model
    registration = json.loads(fresh.workspace.registration.read_text())
    assert (registration["version"], registration["aliases"]) == ("1", ["champion"]), registration["summary"]
    assert fresh.good("ratchet", "sync").strip() == "Nothing to send: MLflow has everything."
