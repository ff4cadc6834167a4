"""Summary at the end of a run: it fits one screen and names existing files."""

from pathlib import Path

import pytest

from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import NamedMetric
from ratchet.gate.rules import MetricResult
from ratchet.gate.verdict import Verdict
from ratchet.registry.ledger import Ledger
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks import summary
from tasks.register import Registration
from tasks.summary import card_place, earlier_version, model_line, newest_checkpoint, print_summary

RULE = MetricResult(
    True,
    NamedMetric("accuracy", "accuracy", Interval(0.97, 0.99, 1.0), share=True),
    "accuracy",
    0.95,
    0.5,
    287,
    "accuracy",
)
LINES = {
    "model": "digits version 2 (challenger); to approve: `ratchet approve digits/2 --promote --why ...`, or "
    "approve-flow/local; champion is version 1",
    "data": "digits: 10 classes, 1,251 train, 259 validation, 287 test",
    "training": "convnet: best validation/accuracy 0.9961 at epoch 20, 600 steps",
    "report": "file:///" + "folder/" * 20 + "report.html",
    "MLflow run": "8e95f8ade0db46e399a26a7d67b0da14 in sqlite:///mlruns/mlflow.db",
}


def test_summary_fits_one_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe gets each caption in one line."""
    monkeypatch.setattr(summary, "summary", lambda params, workspace: LINES)
    registration = Registration(
        passed=True, summary="", verdict=Verdict(True, (RULE,) * 8), model="digits", version="2", aliases=(),
        run_id="8e95", provenance="0011",
    )  # fmt: skip
    monkeypatch.setattr(summary.Registration, "load", lambda workspace: registration)
    monkeypatch.setattr(summary, "steps_of", lambda params, workspace, verdict: [("ratchet up", "start")] * 3)
    print_summary(Params(), Workspace(tmp_path), title="Nothing to do.")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert [line for line in lines if line in [f"  {caption:<10}  {text}" for caption, text in LINES.items()]] == lines[
        2:7
    ]
    printed = " ".join(" ".join(lines).split())
    assert "Next: ratchet up" in printed


def test_end_of_a_run_with_an_earlier_version_says_so(tmp_path: Path) -> None:
    workspace, params = Workspace(tmp_path), Params()
    ledger = Ledger.of(workspace, params)

    def act(what: str, version: str) -> None:
        ledger.append(what, model="digits", version=version, who="ann", why="confuses 1 and 7", run="1", over=None)

    def note(version: str | None, *, is_new: bool = False) -> str:
        registration = Registration(
            passed=True, summary="", verdict=Verdict(True, (RULE,)), model="digits", version=version, aliases=(),
            run_id="8e95", provenance="0011", is_new=is_new,
        )  # fmt: skip
        return earlier_version(params, workspace, registration)

    for number in ("1", "2"):
        act("register", number)
        assert note(number) == ""
        act("promote", number)
    act("register", "3")
    assert (note(None), note("2"), note("3")) == ("", "", "")
    start = "Nothing new: these are the results of digits version"
    assert note("1") == f"{start} 1, which was champion before. Champion is version 2."
    assert "version 2. To go back: `ratchet rollback digits --to 1" in model_line(params, workspace, "digits", "1")
    act("register", "4")
    assert note("3") == f"{start} 3, which was registered before. Champion is version 2."
    assert note("3", is_new=True) == ""  # another run registered 4 before the summary of this one
    act("reject", "3")
    assert note("3") == f"{start} 3, which was rejected. Champion is version 2."
    assert "; rejected by ann at 20" in model_line(params, workspace, "digits", "3")
    assert "Z: confuses 1 and 7; champion is version 2" in model_line(params, workspace, "digits", "3")


def test_model_card_on_this_machine_is_a_url(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert card_place(workspace, "8e95") == "card/card.html in the MLflow run's artifacts"
    card = tmp_path / "mlruns" / "artifacts" / "8e95" / "artifacts" / "card" / "card.html"
    card.parent.mkdir(parents=True)
    card.touch()
    assert card_place(workspace, "8e95") == card.as_uri()


def test_summary_names_only_existing_checkpoints(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert newest_checkpoint(workspace).startswith("none in data/checkpoints: none could be written")
    workspace.checkpoints.mkdir(parents=True)
    assert newest_checkpoint(workspace).startswith("none in")
    for step in (9, 12):
        (workspace.checkpoints / f"step-{step:012d}.safetensors").touch()
    assert newest_checkpoint(workspace) == "data/checkpoints/step-000000000012.safetensors"
