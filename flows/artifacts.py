"""Prefect artifacts of a finished run: verdict, metrics and links."""

from typing import Any
from urllib.parse import urlsplit

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from flows.server.runs_page import TRAINING
from flows.server.status import status
from ratchet import settings, urls
from ratchet.errors import TrackingUnavailable
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.problems import read_metrics
from ratchet.gate.verdict_text import verdict_table
from ratchet.registry.mlflow_store import VIEW
from ratchet.reports.problem_pages import pages_of
from ratchet.reports.templating import escaped
from ratchet.servers.addresses import mlflow_credentials
from ratchet.servers.http import read_json
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.register import Registration
from tasks.summary import earlier_version, summary

__all__ = ["publish"]

_DECIDE = {"seed", "data", "model", "training", "evaluation", "gate", "registry"}  # the other sections only name places


def publish(params: Params, workspace: Workspace, registration: Registration) -> None:
    """Publish the verdict and the results, the metrics as tables, and a link to the whole report."""
    metrics = read_metrics(workspace.reports)
    page = _mlflow_page(params, workspace, registration.run_id)
    create_markdown_artifact(
        _report(params, workspace, registration, metrics, page),
        key="report",
        description="The gate's verdict, the metrics, and where everything is",
    )
    create_table_artifact(_classes(metrics), key="classes", description="Metrics of each class on the test rows")
    if page:
        create_link_artifact(
            f"{page}/artifacts/report/report.html{TRAINING}",
            key="report-page",
            link_text="Open the whole report",
            description="The whole report, among the MLflow run's artifacts",
        )


def _report(
    params: Params, workspace: Workspace, registration: Registration, metrics: Metrics, page: str | None
) -> str:
    lines = ["# Passed" if registration.passed else "# Refused by the gate", ""]
    if note := earlier_version(params, workspace, registration):
        lines += [f"**{escaped(note)}**", ""]
    lines += [escaped(registration.summary), ""]
    lines += ["```text", verdict_table(registration.verdict).replace("```", "'''"), "```", ""]
    lines += ["## Test metrics", "", f"| metric | value | {100 * metrics.confidence:.0f} % CI |", "|---|---|---|"]
    lines += [
        f"| {metric.name} | {metric.interval.value:.4f} | {metric.interval.low:.4f} to {metric.interval.high:.4f} |"
        for metric in metrics.named().values()
    ]
    lines += ["", "## Results", "", "| what | which |", "|---|---|"]
    results = {caption: escaped(text) for caption, text in summary(params, workspace).items()}
    if page:
        results["MLflow run"] = f"[{registration.run_id}]({page}{TRAINING})"
        runs = f"{page.rpartition('/')[0]}{TRAINING}&viewStateShareKey={VIEW}"
        results["All runs"] = f"[MLflow's table, results first]({runs})"
    lines += [f"| {caption} | {text} |" for caption, text in results.items()]
    changed = settings.changed(params, _DECIDE)
    lines += ["", "## Settings that are not the default", ""]
    if changed:
        lines += ["| setting | this run | default |", "|---|---|---|"]
        lines += [f"| `{key}` | {escaped(str(now))} | {escaped(str(usual))} |" for key, (now, usual) in changed.items()]
    else:
        lines += ["None."]
    return "\n".join(lines)


def _classes(metrics: Metrics) -> list[dict[str, Any]]:
    """Return a line for each class, number or label."""
    table = pages_of(metrics).table
    return [dict(zip(table.header, map(str, row), strict=True)) for row in table.rows]


def _mlflow_page(params: Params, workspace: Workspace, run_id: str) -> str | None:
    """Return the address of the run's page; None while no MLflow server answers."""
    split = urlsplit(params.tracking.uri)
    if split.scheme in ("http", "https"):
        server = urls.bare(params.tracking.uri).rstrip("/")
        experiment = _experiment(params, workspace, run_id)
    else:
        mlflow = next(service for service in status(workspace.project) if service.name == "mlflow")
        server = mlflow.service.shown if mlflow.service else ""
        # Not by MLflow's client: importing it takes longer than everything else in a run with nothing to do.
        url = f"{mlflow.address}/api/2.0/mlflow/runs/get?run_id={run_id}"
        answer = read_json(url, credentials=mlflow_credentials()) if mlflow.state == "up" else None
        experiment = answer and answer["run"]["info"]["experiment_id"]
    return f"{server}/#/experiments/{experiment}/runs/{run_id}" if experiment else None


def _experiment(params: Params, workspace: Workspace, run_id: str) -> str | None:
    """Return the run's experiment from a server that may need credentials; None if it does not answer."""
    from ratchet.registry.mlflow_store import connect, reachable

    try:
        with reachable(params.tracking.uri):
            return str(connect(workspace, params.tracking).get_run(run_id).info.experiment_id)
    except TrackingUnavailable:  # the run is recorded, but a link would lead nowhere
        return None
