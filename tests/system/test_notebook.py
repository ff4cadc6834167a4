"""examples/digits.ipynb in a real kernel, after another kernel was killed in its training."""

import os
import signal
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from waiting import until

import ratchet
from ratchet import settings

pytestmark = [
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore:Proactor event loop:RuntimeWarning"),
]
NOTEBOOK = Path(__file__).parents[2] / "examples" / "digits.ipynb"
SETTINGS = {"training.batch_size": 4, "training.checkpoint_steps": 1}  # steps of a millisecond or few
STEPS = 1570


def shown(cell: Any) -> str:
    """Everything that a cell shows, as HTML where it has it."""
    return "\n".join(
        output.get("text") or output["data"].get("text/html") or output["data"]["text/plain"] for output in cell.outputs
    )


def _refuse_errors(client: Any) -> bool:
    """Fail with the message of a cell that has ended with an error."""
    while client.iopub_channel.msg_ready():
        message = client.get_iopub_msg()
        assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
    return False


def kill_in_training(project: Any, *sources: str) -> int:
    """Run cells in a kernel, kill it after a checkpoint, and return the step of the newest when its training ended."""
    kernel = KernelManager()
    kernel.start_kernel(env=project.environment, cwd=str(project.root / "examples"))
    client = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=None)
    running = project.root / "data" / "running"
    try:
        for source in sources:
            client.execute(source)
        until(lambda: any(running.glob("*/step-*.safetensors")) or _refuse_errors(client), pause=0.01)
        os.kill(kernel.provisioner.pid, signal.SIGKILL)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    until(lambda: project.workspace.holder() is None)
    return max(int(path.stem.removeprefix("step-")) for path in running.glob("*/step-*.safetensors"))


def test_notebook_continues_the_training_of_a_killed_kernel(new_project, use_small_net, share_server) -> None:
    project = new_project("notebook")
    use_small_net(project)
    share_server(project)
    settings.override(project.workspace.params, SETTINGS)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    begin, train = (next(cell for cell in code if text in cell.source) for text in ("open()", "project.train("))

    step = kill_in_training(project, begin.source, train.source)
    assert 0 < step < STEPS

    folder = {"metadata": {"path": str(project.root / "examples")}}
    NotebookClient(notebook, timeout=None, resources=folder).execute(env=project.environment)
    cells = {cell.source.split("\n")[-1]: shown(cell) for cell in code}
    assert f"train: continues at step {step:,} of {STEPS:,}, from step-{step:012d}.safetensors" in cells["run"]
    assert "Passed the gate" in cells["run"]
    assert "Training curves" in cells["run"]
    assert "data:image" not in cells["run"]
    assert "data:image" in cells["run.worst(12)"]
    assert "gate  PASSED" in cells["run.verdict"]
    assert "<iframe srcdoc" in cells["run.worst(12)"]
    assert "predicted 9" in cells["run.confusion()"]
    assert "probability" in cells["run.predictions.head()"]
    assert "3 of 3 rows answered by digits version 1" in cells['champion.predict(folder / "*.png")']
    assert "B is +0.00 points" in cells['project.compare(f"{champion.name}/1", f"{champion.name}@champion")']
    assert settings.load(project.workspace.params).training.epochs == 5

    run = ratchet.open(project.root).run()
    accuracy = run.metrics["accuracy"]
    for name in ("evaluation.json", "predictions.parquet", "report.html"):  # of a later training that did not complete
        (project.workspace.reports / name).write_text("of another run")
    assert ratchet.open(project.root).run().metrics["accuracy"] == accuracy
    assert "Training curves" in ratchet.open(project.root).model("digits/1").run.report._repr_html_()
    assert len(run.worst(2).examples) == 2
    settings.override(project.workspace.params, {"data.test_fraction": 0.2})
    project.good("python", "-m", "tasks.ingest")
    other_data = ratchet.open(project.root).run().worst(2)
    assert (len(other_data), len(other_data.examples)) == (2, 0)
