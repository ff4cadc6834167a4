"""Settings changed between a kill and the next `ratchet train`: which continue the training, and what is output."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from waiting import until

pytestmark = pytest.mark.slow

WRITTEN = (
    "training.keep_last=5", "training.keep_best=2", "training.log_every=3", "training.checkpoint_steps=2",
    "training.profile=2", "training.doctor=always", "training.overfit_gap=0.01", "training.max_rollbacks=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(new_project: Callable[[str], Any]) -> Any:
    """A project that has trained once, by DVC."""
    project = new_project("identity")
    project.good("dvc", "repro", "train")
    return project


def killed(project: Any) -> None:
    """Train, killed after the first checkpoint."""
    running = project.workspace.running
    process = project.start(*project.stage("train"), log=project.home / "killed.log")
    until(lambda: any(running.glob("[!.]*/step-*.safetensors")), process=process, pause=0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_logging_settings_may_change_during_and_after_a_run(trained: Any) -> None:
    expected = trained.digests("data/model")
    killed(trained)
    trained.good("ratchet", "set", *WRITTEN)
    message = trained.good(*trained.stage("train"))
    assert "continues at step" in message
    assert "unfinished" not in message
    assert trained.digests("data/model") == expected
    trained.good("dvc", "repro", "train")
    trained.good("ratchet", "set", "training.keep_last=3", "training.log_every=1", "training.profile=0")
    assert "up to date" in trained.good("dvc", "status", "train")  # finished, it is not trained again
    assert trained.digests("data/model") == expected


def test_an_unfinished_run_continues_after_settings_are_restored(trained: Any) -> None:
    """The run of another identity is reported."""
    expected = trained.digests("data/model")
    killed(trained)
    (theirs,) = trained.workspace.running.glob("[!.]*/")
    trained.good("ratchet", "set", "training.learning_rate=0.001")
    output = trained.good("dvc", "repro", "train")
    assert "this run starts at step 0. Another run is unfinished, at step" in output
    assert "Differences: training.learning_rate was 2.0e-3, is now" in output
    assert f"To delete it: `rm -r {theirs}`" in output
    assert trained.digests("data/model") != expected
    assert list(theirs.glob("step-*.safetensors"))
    trained.good("ratchet", "set", "training.learning_rate=2.0e-3")
    assert "continues at step" in trained.good(*trained.stage("train"))
    assert trained.digests("data/model") == expected
