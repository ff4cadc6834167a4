"""Code edited between a kill and the next run, or after a run: what counts, and what is recorded about it."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest
from waiting import until

from ratchet import settings

pytestmark = pytest.mark.system

SETTINGS = {
    "training.epochs": 4,
    "training.batch_size": 64,
    "training.checkpoint_steps": 2,
    "gate.minimum_metric": "none",
    "gate.champion": "not-worse",
    "gate.tolerance": 0.99,
    "gate.slice_tolerance": 0.99,
    "gate.latency_factor": 0.0,
    "evaluation.explained_errors": 0,
}
STEPS = 4 * 20
DOCTOR, OPTIMIZER, RESNET = (
    f"src/ratchet/{name}" for name in ("doctor/rules.toml", "training/optim.py", "training/models/resnet.py")
)
CLIPPED = "        nn.utils.clip_grads_with_norm_(clipped, plan.clip_norm, remaining)\n"


def edit(project: Any, path: str, before: str, after: str) -> None:
    file = project.root / path
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def say_more(project: Any) -> None:
    """Edit a comment, a docstring, an annotation and a message of the doctor."""
    edit(project, OPTIMIZER, '    """Clip the elements, then', '    # First the elements.\n    """Clip elements, then')
    edit(project, OPTIMIZER, "    plan: Plan,\n    norm_of", "    plan: object,\n    norm_of")
    edit(project, DOCTOR, "The doctor skips the checks of the model", "No check of the model was made")


def halve_steps(project: Any) -> None:
    edit(project, OPTIMIZER, CLIPPED, CLIPPED.replace("plan.clip_norm,", "plan.clip_norm / 2,"))


def without_records(project: Any) -> Any:
    """Return a copy without MLflow's records, which name the folder of the original."""
    shutil.rmtree(project.root / "mlruns")
    project.good("git", "checkout", "--", "mlruns")
    return project


def interrupt(project: Any) -> None:
    """Train again, and kill the training after a few checkpoints."""
    for folder in ("model", "checkpoints", "baseline", "running"):
        shutil.rmtree(project.root / "data" / folder, ignore_errors=True)
    running = project.workspace.running
    process = project.start(*project.stage("train"), log=(log := project.home / "log"))
    until(lambda: len([*running.glob("[!.]*/step-*.safetensors")]) > 2, process=process, log=log, pause=0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(
    new_project: Callable[..., Any], use_small_net: Callable[[Any], None], share_server: Callable[[Any], None]
) -> Any:
    """A project that has trained by DVC."""
    project = new_project("undisturbed")
    use_small_net(project)
    share_server(project)
    settings.override(project.workspace.params, SETTINGS)
    project.good("dvc", "repro", "train")
    return project


@pytest.fixture(scope="module")
def killed(undisturbed: Any, new_project: Callable[..., Any]) -> Any:
    """The same, trained again and killed after a few checkpoints."""
    project = without_records(new_project("killed", of=undisturbed))
    interrupt(project)
    return project


def test_a_killed_training_continues_after_an_edited_comment(
    killed: Any, undisturbed: Any, new_project: Callable[..., Any], assert_same_training: Callable[..., None]
) -> None:
    project = new_project("comment", of=killed)
    project.good("ratchet", "relocate")  # MLflow may have its records
    say_more(project)
    assert "continues at step" in project.good(*project.stage("train"))
    assert_same_training(project, undisturbed, steps=STEPS)


def test_an_edited_optimizer_is_refused_unless_allowed(undisturbed: Any, new_project: Callable[..., Any]) -> None:
    """A registered training that is trained again, killed and continued with changed code is another run.

    Record, model card and MLflow's sealed tags name the file, and the step from which it counts. Edited comments before
    that leave nothing to do.
    """
    project = without_records(new_project("optimizer", of=undisturbed))
    project.good("dvc", "repro")
    say_more(project)
    assert "Nothing to do" in project.good("ratchet", "train")
    assert "up to date" in project.good("dvc", "status")
    sealed = project.digests("mlruns/artifacts")
    interrupt(project)
    halve_steps(project)
    refusal = " ".join(project.refused(*project.stage("train")).split())
    assert f"train: {OPTIMIZER} changed since the interrupted training in {project.workspace.running}/" in refusal
    assert "`ratchet train --continue-with-changed-code`" in refusal
    assert [*project.workspace.running.glob("[!.]*/step-*")]

    output = project.good("ratchet", "train", "--continue-with-changed-code")
    assert f"goes on with changed code: {OPTIMIZER}" in output
    assert re.search(r"continues at step \d", output)
    assert project.digests("data/model") != undisturbed.digests("data/model")
    change = assert_recorded(project)
    first, second = sorted(project.workspace.mlruns.glob("journal/*/provenance.json"), key=lambda path: len(str(path)))
    assert second.parent.name.startswith(f"{first.parent.name}-")
    assert [json.loads(path.read_text())["code_changes"] for path in (first, second)] == [[], [change]]
    after = project.digests("mlruns/artifacts")
    assert {path: after[path] for path in sealed} == sealed
    project.good("ratchet", "audit")
    assert "Nothing to do" in project.good("ratchet", "train")

    # Another registered name, and a project that has the model from DVC's cache: their runs are new.
    settings.override(project.workspace.params, {"registry.model": "another"})
    for prepare in (lambda: None, lambda: without_records(project)):
        prepare()
        project.good(*project.stage("register"))
        record = json.loads((project.workspace.reports / "provenance.json").read_text())
        assert record["code_changes"] == [change]


def assert_recorded(project: Any) -> dict[str, Any]:
    """Return the change of code in the newest run's record, which its card and its sealed tags name."""
    record = json.loads((project.workspace.reports / "provenance.json").read_text())
    change: dict[str, Any]
    [change] = record["code_changes"]
    assert (change["files"], 0 < change["step"] < STEPS) == ([OPTIMIZER], True)
    summary = f"{OPTIMIZER} from step {change['step']}"
    artifacts = project.workspace.mlruns / "artifacts" / record["mlflow_run"]
    [card] = artifacts.rglob("card/card.md")
    assert summary in card.read_text()
    [statement] = artifacts.rglob("report/statement.json")
    assert json.loads(statement.read_text())["tags"]["ratchet.code_changes"] == summary
    return change


def test_a_training_without_a_commit_says_so(undisturbed: Any, new_project: Callable[..., Any]) -> None:
    """And none begins while git fails: its record would have no commit though there is one."""
    project = without_records(new_project("no-commit", of=undisturbed))
    for folder in ("model", "checkpoints", "baseline", "running"):
        shutil.rmtree(project.root / "data" / folder, ignore_errors=True)
    repository = project.root / ".git"
    (repository / "HEAD").rename(repository / "away")
    assert "train: git rev-parse failed in" in project.refused(*project.stage("train"))
    assert not project.workspace.model.exists()
    repository.rename(project.home / "repository")
    output = " ".join(project.good(*project.stage("train")).split())
    assert "the provenance record has no commit" in output
    assert "Fix: commit the project to git before the next training" in output


def test_a_run_without_a_step_records_no_changed_code(
    killed: Any, undisturbed: Any, new_project: Callable[..., Any]
) -> None:
    """The training's code is still the code before, and goes on with it."""
    project = new_project("no-step", of=killed)
    project.good("ratchet", "relocate")  # MLflow may have its records
    halve_steps(project)
    spent = "budget.cpu_hours=0.00000001"
    assert "not continued" in project.refused("ratchet", "train", "--continue-with-changed-code", "--set", spent)
    project.good("git", "checkout", "--", OPTIMIZER)
    assert "continues at step" in project.good(*project.stage("train"))
    assert project.digests("data/model") == undisturbed.digests("data/model")


def test_dvc_trains_again_for_code_but_no_comment(undisturbed: Any, new_project: Callable[..., Any]) -> None:
    """Nor another network. The stage code takes a second, and then DVC's status is clean."""
    project = without_records(new_project("finished", of=undisturbed))
    say_more(project)
    edit(project, RESNET, "import torch", "import math\nimport torch")
    with (project.root / "nets/small.py").open("a") as net:
        net.write("# the end\n")
    assert "train:" not in project.good("dvc", "status", "train", "code")
    output = project.good("dvc", "repro", "train")
    assert "Running stage 'code'" in output
    assert "Stage 'train' didn't change" in output
    assert "up to date" in project.good("dvc", "status", "train", "code")
    edit(project, "nets/small.py", "Dropout(0.2)", "Dropout(0.3)")
    assert "Running stage 'train'" in project.good("dvc", "repro", "train")
    halve_steps(project)
    refusal = project.refused("dvc", "repro", "--single-item", "--force", "train")  # without the stage code
    assert f"data/code.json: {OPTIMIZER} changed since it was written" in " ".join(refusal.split())
    output = project.good("dvc", "repro", "train")
    assert "Stage 'ingest' didn't change" in output
    assert "Running stage 'train'" in output
