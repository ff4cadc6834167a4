"""Register killed at random moments: real stages, a real MLflow database.

After each kill there is one version of one training, and an audit finds nothing wrong but an act that was cut off.
Kills at chosen steps are in tests/registry/test_promotion.py.
"""

import json
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet import settings
from ratchet.registry import audit as auditing
from ratchet.registry.promotion import Promotions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has imported MLflow and PyTorch"),
]

KILLS = 3
OPEN = {  # a gate that lets everything in
    "gate.champion": "not-worse",
    "gate.tolerance": 0.99,
    "gate.slice_tolerance": 0.99,
    "gate.minimum": 0.0,
    "gate.latency_factor": 0.0,
    "evaluation.explained_errors": 0,  # seconds of importing
}


class Struck:
    """A project with two registered versions, and the zygote that executes commands until it is killed."""

    def __init__(self, project: Any, zygote: "subprocess.Popen[str]", trained: tuple[Path, Path]) -> None:
        self.project, self.zygote = project, zygote
        self.trained = trained  # copies of the outputs of both trainings
        self.params = settings.load(project.workspace.params)
        self.took = 0.0  # seconds of the last command that came to its end

    def do(self, *command: str, after: float | None = None) -> int:
        """Run a command and kill it so many seconds later; its exit code."""
        assert self.zygote.stdin
        assert self.zygote.stdout
        started = time.monotonic()
        self.zygote.stdin.write(json.dumps({"command": command, "near": "", "after": 0}) + "\n")
        self.zygote.stdin.flush()
        process = int(self.zygote.stdout.readline())
        assert process > 1, f"{process} is no process: the command before this one was not waited for"
        if after is not None and not select.select([self.zygote.stdout], [], [], after)[0]:
            subprocess.run(["kill", "-KILL", str(process)], check=False)
        code = int(self.zygote.stdout.readline())
        if code == 0:
            self.took = time.monotonic() - started
        return code

    @property
    def succession(self) -> Promotions:
        return Promotions(self.project.workspace, self.params, "digits")

    def faults(self, name: str) -> list[str]:
        """Audit a model; a model that is not there yet has no fault."""
        succession = Promotions(self.project.workspace, self.params, name)
        if not succession.entries() and succession.registry.anchor(name) is None:
            return []
        return [fault.removeprefix(name) for fault in auditing.audit(self.project.workspace, self.params, name)]


@pytest.fixture(scope="module")
def struck(
    new_project: Callable[[str], Any], use_small_net: Callable[[Any], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Struck]:
    project, folder = new_project("struck"), tmp_path_factory.mktemp("struck")
    use_small_net(project)
    settings.override(project.workspace.params, OPEN)
    project.good(*project.stage("ingest"))
    log, trained = folder / "log", (folder / "seed 0", folder / "seed 1")
    for seed, copy in enumerate(trained):
        settings.override(project.workspace.params, {"seed": seed})
        for stage in ("train", "evaluate", "export"):
            project.good(*project.stage(stage))
        shutil.copytree(project.workspace.data, copy, ignore=shutil.ignore_patterns("registration.json"))
        project.good(*project.stage("register"))
    command = [sys.executable, str(Path(__file__).with_name("zygote.py"))]
    with (
        log.open("a") as errors,
        subprocess.Popen(
            command, cwd=project.root, env=project.environment | {"OMP_NUM_THREADS": "1"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        ) as zygote,
    ):  # fmt: skip
        try:
            yield Struck(project, zygote, trained)
        finally:
            zygote.kill()
            print(log.read_text())


def test_evaluate_killed_at_any_moment_ends_with_equal_metrics(struck: Struck) -> None:
    before, chance = struck.project.digests("data/reports"), random.Random(4)
    assert struck.do("tasks.evaluate") == 0
    for _ in range(2):
        struck.do("tasks.evaluate", after=chance.uniform(0.0, struck.took))
    assert struck.do("tasks.evaluate") == 0
    assert struck.project.digests("data/reports") == before


def test_repeatedly_killed_register_makes_one_version_each(struck: Struck) -> None:
    chance, ends = random.Random(5), Counter[str]()
    settings.override(struck.project.workspace.params, {"registry.model": "model-0"})
    assert struck.do("tasks.register") == 0  # how long a new name takes
    kills, names = 0, 0
    while kills < KILLS:
        names += 1
        name = f"model-{names}"  # registered again, of the same training
        settings.override(struck.project.workspace.params, {"registry.model": name})
        code, reach = -signal.SIGKILL, 0.3  # the first strike comes early, when there is no version yet
        while code == -signal.SIGKILL:
            code = struck.do("tasks.register", after=chance.uniform(0.0, reach * struck.took))
            kills += code == -signal.SIGKILL
            reach = max(1.2, 1.5 * reach)  # a busy machine takes longer than it took, and must come to an end
            ends[_left(struck, name)] += 1
        assert code == 0
        assert struck.faults(name) == []
        assert struck.succession.registry.aliases(name) == {"champion": "1"}
        acts = [entry.what for entry in struck.succession.ledger.entries(model=name)]
        assert acts[:3] == ["judge", "register", "promote"]
        assert set(acts[3:]) <= {"renew"}
    print(f"{kills} kills: {dict(ends)}")
    assert ends["0 versions: agree"]
    assert ends["1 versions: agree"]
    settings.override(struck.project.workspace.params, {"registry.model": "auto"})


def test_later_registration_rewrites_nothing_that_is_sealed(struck: Struck) -> None:
    """Neither under another name nor under the first one, judged again by other rules."""
    version = struck.succession.registry.find("digits/2")
    sealed = struck.succession.evidence(version)
    for name in ("another", "digits"):
        changed = {"registry.model": name, "registry.purpose": "another", "gate.minimum": 0.25}
        settings.override(struck.project.workspace.params, changed)
        assert struck.do("tasks.register") == 0
        assert {**struck.succession.evidence(version), "verdict": sealed["verdict"]} == sealed
        assert [struck.faults(model) for model in ("digits", name)] == [[], []]
    assert struck.succession.ledger.entries(model="digits")[-1].what == "renew"
    settings.override(struck.project.workspace.params, {"registry.model": "auto", "gate.minimum": 0.0})


def _left(struck: Struck, name: str) -> str:
    """Describe the state of a model after a kill: at most one version, and only faults of an interruption."""
    versions = struck.succession.registry.versions(name)
    assert len(versions) <= 1
    faults = [fault.removeprefix(" version 1: ").removeprefix(": ") for fault in struck.faults(name)]
    # A second run of the stage writes files again, and their digests at its end.
    assert all("was cut off" in fault or fault.startswith(("report/", "provenance/", "verdict")) for fault in faults), (
        faults
    )
    return f"{len(versions)} versions: {'; '.join(sorted(set(faults))) or 'agree'}"


def test_two_registrations_at_once_are_each_judged_against_their_champion(
    struck: Struck, new_project: Callable[[str], Any], use_small_net: Callable[[Any], None], tmp_path: Path
) -> None:
    shared = {"tracking.uri": f"sqlite:///{tmp_path}/mlflow.db", "registry.ledger": f"sqlite:///{tmp_path}/ledger.db"}
    projects = [new_project(f"at-once-{number}") for number in range(2)]
    for seed, project in enumerate(projects):
        use_small_net(project)
        settings.override(project.workspace.params, {**shared, **OPEN, "seed": seed})
        shutil.copytree(struck.trained[seed], project.workspace.data, dirs_exist_ok=True)
    logs = [tmp_path / f"log-{number}" for number in range(2)]
    at_work = [project.start(*project.stage("register"), log=log) for project, log in zip(projects, logs, strict=True)]
    assert [process.wait() for process in at_work] == [0, 0], [log.read_text() for log in logs]
    succession = Promotions(projects[0].workspace, settings.load(projects[0].workspace.params), "digits")
    promoted = [entry for entry in succession.entries() if entry.what == "promote"]
    assert [entry.content["over"] for entry in promoted] == [None, promoted[0].version]
    last = [entry for entry in succession.entries() if entry.version == promoted[1].version]
    judged = [entry.content["over"] for entry in last if entry.what in ("register", "renew")]
    assert judged[-1] == promoted[0].version  # whatever it was compared with before
    assert succession.registry.aliases("digits") == {"champion": promoted[1].version}
    assert list(auditing.audit(projects[0].workspace, succession.params)) == []
