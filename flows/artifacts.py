"""A finished run's figures and report, as Prefect artifacts."""

import base64
from typing import Any
from urllib.parse import urlsplit

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from ratchet import platform, settings, urls
from ratchet.errors import TrackingUnavailable
from ratchet.evaluation.figures import Figures, read_figures
from ratchet.gate.text import verdict_table
from ratchet.platform.addresses import mlflow_credentials
from ratchet.platform.servers import read_json
from ratchet.registry.mlflow_store import VIEW
from ratchet.reports.markdown import escaped
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.register import Registration
from tasks.summary import summary

__all__ = ["publish", "publish_stop"]

_DECIDE = {"seed", "data", "model", "training", "evaluation", "gate", "registry"}  # the rest says only where things are
_TRAINING = "?workflowType=machine_learning"  # else MLflow opens its pages for language-model traces


def publish(params: Params, workspace: Workspace) -> None:
    """The verdict and what was made; the figures, as tables and a picture; where the whole report is."""
    registration, figures = Registration.load(workspace), read_figures(workspace.reports)
    page = _mlflow_page(params, workspace, registration.run_id)
    create_markdown_artifact(
        _report(params, workspace, registration, figures, page),
        key="report",
        description="The gate's verdict, the figures, and where everything is",
    )
    create_table_artifact(_classes(figures), key="classes", description="The figures of each class on the test rows")
    picture = base64.b64encode((workspace.reports / "confusion.png").read_bytes()).decode()
    create_image_artifact(  # the picture itself, so that it is shown wherever the page is opened, MLflow up or not
        f"data:image/png;base64,{picture}",
        key="confusion",
        description="Confusion matrix on the test rows: which class was taken for which",
    )
    if page:
        create_link_artifact(
            f"{page}/artifacts/report/report.html{_TRAINING}",
            key="report-page",
            link_text="Open the whole report",
            description="The whole report, among the MLflow run's artifacts",
        )


def publish_stop(message: str) -> None:
    """Keep why and where a cancelled run stopped: Prefect's worker replaces the message of its state."""
    how = f"retry this run (`prefect flow-run retry {flow_run.get_id()}`), or start one with the same parameters"
    get_run_logger().warning("%s. To continue: %s", message, how)
    create_markdown_artifact(
        f"# Stopped\n\n{escaped(message)}.\n\nTo continue: {how}.\n",
        key="stopped",
        description="Where the run stopped, and how to continue it",
    )


def _report(
    params: Params, workspace: Workspace, registration: Registration, figures: Figures, page: str | None
) -> str:
    lines = ["# Passed" if registration.passed else "# Refused by the gate", "", escaped(registration.summary), ""]
    lines += ["```text", verdict_table(registration.verdict).replace("```", "'''"), "```", ""]
    lines += ["## Test figures", "", f"| figure | value | {figures.confidence:.0%} interval |", "|---|---|---|"]
    intervals = {"accuracy": figures.accuracy, "macro F1": figures.macro_f1, "log-loss": figures.log_loss}
    lines += [f"| {name} | {one.value:.4f} | {one.low:.4f} to {one.high:.4f} |" for name, one in intervals.items()]
    lines += ["", "## What was made, and where it is", "", "| what | which |", "|---|---|"]
    made = {caption: escaped(text) for caption, text in summary(params, workspace).items()}
    if page:
        made["MLflow run"] = f"[{registration.run_id}]({page}{_TRAINING})"
        runs = f"{page.rpartition('/')[0]}{_TRAINING}&viewStateShareKey={VIEW}"
        made["All runs"] = f"[MLflow's table, accuracy first]({runs})"
    lines += [f"| {caption} | {text} |" for caption, text in made.items()]
    changed = settings.changed(params, _DECIDE)
    lines += ["", "## Settings that are not the default", ""]
    if changed:
        lines += ["| setting | this run | default |", "|---|---|---|"]
        lines += [f"| `{key}` | {escaped(str(now))} | {escaped(str(usual))} |" for key, (now, usual) in changed.items()]
    else:
        lines += ["None."]
    return "\n".join(lines)


def _classes(figures: Figures) -> list[dict[str, Any]]:
    return [
        {
            "class": one.name,
            "precision": _rounded(one.precision),
            "recall": _rounded(one.recall),
            "F1": _rounded(one.f1),
            "test rows": one.support,
        }
        for one in figures.per_class
    ]


def _mlflow_page(params: Params, workspace: Workspace, run_id: str) -> str | None:
    """Where a browser shows the run; None while no MLflow server answers."""
    split = urlsplit(params.tracking.uri)
    if split.scheme in ("http", "https"):
        server = urls.bare(params.tracking.uri).rstrip("/")
        experiment = _asked(params, workspace, run_id)
    else:
        mlflow = next(one for one in platform.status(workspace.project) if one.name == "mlflow")
        server = str(mlflow.shown)
        # Not by MLflow's client: to import it takes longer than all else that a run with nothing to do does.
        asked = f"{mlflow.address}/api/2.0/mlflow/runs/get?run_id={run_id}"
        found = read_json(asked, credentials=mlflow_credentials()) if mlflow.state == "up" else None
        experiment = found and found["run"]["info"]["experiment_id"]
    return f"{server}/#/experiments/{experiment}/runs/{run_id}" if experiment else None


def _asked(params: Params, workspace: Workspace, run_id: str) -> str | None:
    """The run's experiment, as a server says that may want to know who asks."""
    from ratchet.registry.mlflow_store import connect, reachable

    try:
        with reachable(params.tracking.uri):
            return str(connect(workspace, params.tracking).get_run(run_id).info.experiment_id)
    except TrackingUnavailable:  # the run is recorded; a link that leads nowhere is worth nothing
        return None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
