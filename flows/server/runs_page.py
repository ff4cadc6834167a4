"""The address of MLflow's table of runs, with result and verdict as first columns."""

from urllib.parse import quote

from ratchet.registry.mlflow_store import VIEW, VIEW_TAG
from ratchet.servers.addresses import mlflow_credentials
from ratchet.servers.http import read_json
from ratchet.servers.supervisor import Service

__all__ = ["TRAINING", "runs_page"]

TRAINING = "?workflowType=machine_learning"
"""Without it MLflow opens its pages for traces of language models."""


def runs_page(mlflow: Service, experiment: str) -> str:
    """Return the page of an experiment; before its first run, that of all experiments."""
    url = f"{mlflow.address}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(experiment)}"
    answer = read_json(url, credentials=mlflow_credentials())
    if not answer:
        return f"{mlflow.shown}/#/experiments{TRAINING}"
    number, tags = answer["experiment"]["experiment_id"], answer["experiment"].get("tags", [])
    has_view = any(tag["key"] == VIEW_TAG for tag in tags)  # an earlier Ratchet stored none until the next run
    return f"{mlflow.shown}/#/experiments/{number}/runs{TRAINING}{f'&viewStateShareKey={VIEW}' * has_view}"
