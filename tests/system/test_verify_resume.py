"""`ratchet verify-resume` with real kills, and with a training that does not resume correctly."""

import json
import signal

import pytest
from waiting import until

from ratchet import files, settings

pytestmark = pytest.mark.slow

SETTINGS = {"training.batch_size": 128, "training.epochs": 2, "training.pieces": 2}


@pytest.fixture(scope="module")
def ingested(new_project, use_small_net):
    """Project with the digits packed."""
    project = new_project("ingested")
    use_small_net(project)
    settings.override(project.workspace.params, SETTINGS)
    project.good(*project.stage("ingest"))
    return project


@pytest.fixture(scope="module")
def trained(new_project, ingested):
    """Project with a finished training in MLflow."""
    project = new_project("certified", of=ingested)
    project.good(*project.stage("train"))
    return project


def certificate(project) -> dict:
    [path] = project.workspace.mlruns.glob("certificates/*/resume.json")
    return files.read_json(path)


def test_exact_resume_is_certified_in_mlflow(trained) -> None:
    """Whatever the budget is, and without hooks."""
    from mlflow import MlflowClient

    changes = {"budget.wall_hours": 0.000001, "training.hooks": ["absent:hook"]}
    settings.override(trained.workspace.params, changes)
    before = trained.digests("data"), sorted(trained.workspace.mlruns.glob("journal/*"))
    output = trained.good("ratchet", "verify-resume", "--steps=14", "--kills=2", "--processes=1,2")
    assert (trained.digests("data"), sorted(trained.workspace.mlruns.glob("journal/*"))) == before
    assert not list(trained.workspace.state.glob("verify*"))

    proof = certificate(trained)
    assert proof["identical"] is True
    assert proof["differences"] == []
    assert proof["verdict"] in output
    assert proof["verdict"].startswith(f"identical: after {len(proof['kills'])} SIGKILL")
    assert [kill["processes"] for kill in proof["kills"]] == [1, 2][: len(proof["kills"])]
    assert all(kill["checkpoint"] <= kill["step"] <= 14 for kill in proof["kills"])
    assert proof["sha256"]["undisturbed"] == proof["sha256"]["killed"]
    assert any(name.startswith("checkpoints/") for name in proof["sha256"]["killed"])
    assert proof["settings"] == settings.load(trained.workspace.params).digest
    assert proof["code_changes"] == []
    assert proof["training"] == files.read_json(trained.workspace.model / "model.json")["training"]["key"]

    client = MlflowClient(f"sqlite:///{trained.root}/mlruns/mlflow.db")
    [run] = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert run.data.tags["ratchet.resume"] == proof["verdict"]
    attached = client.download_artifacts(run.info.run_id, "certificate/resume.json")
    with open(attached, encoding="utf-8") as file:
        assert json.load(file) == proof


def test_inexact_resume_gets_no_certificate(ingested, new_project) -> None:
    """The planted bug: dropout depends on the process, as if a checkpoint missed a generator's state."""
    project = new_project("inexact", of=ingested)
    device = project.root / "src" / "ratchet" / "training" / "device.py"
    correct = "np.random.SeedSequence(entropy)"
    text = device.read_text()
    assert text.count(correct) == 1
    device.write_text(text.replace(correct, "np.random.SeedSequence([*entropy, os.getpid()])"))

    done = project.run("ratchet", "verify-resume", "--steps=8", "--kills=1")
    assert done.returncode == 1, done.stdout
    assert "different: after one SIGKILL in 8 steps: checkpoints/" in done.stdout
    assert "numbers differ, by up to " in done.stdout
    assert "logged points: " in done.stdout
    assert "no training of these settings" in done.stdout
    proof = certificate(project)
    assert proof["identical"] is False
    assert proof["sha256"]["undisturbed"] != proof["sha256"]["killed"]


def test_interrupted_proof_leaves_nothing_behind(trained, tmp_path) -> None:
    def is_training() -> bool:
        return any(trained.workspace.state.glob("verify*/*/mlruns/journal/*/events.jsonl"))

    before = trained.digests("data")
    process = trained.start("ratchet", "verify-resume", "--steps=100", log=(log := tmp_path / "log"))
    try:
        until(is_training, process=process, log=log, pause=0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
    finally:
        process.kill()
    assert not list(trained.workspace.state.glob("verify*"))
    assert trained.digests("data") == before


@pytest.mark.parametrize(("sizes", "text"), [("1,4", "training.pieces=4"), ("1,x", "Allowed: numbers")])
def test_processes_that_cannot_train_are_refused(trained, sizes: str, text: str) -> None:
    assert text in trained.refused("ratchet", "verify-resume", f"--processes={sizes}")


def test_missing_data_is_reported_with_its_fix(new_project) -> None:
    message = new_project("empty").refused("ratchet", "verify-resume")
    assert message.startswith("ratchet: ")
    assert "ingest" in message
