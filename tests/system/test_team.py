"""Several machines' way: PostgreSQL for Prefect, MLflow and the ledger, S3 for the files of both, by settings alone.

The databases ask for a password and the store for keys; both are known to the environment,
and to nothing that is written.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ports import reserved_port
from sqlalchemy import create_engine, text
from waiting import until

from ratchet.servers.http import read_json

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
PASSWORD, KEY = (f"{word}-{len(word):04}" for word in ("opensesame", "swordfish"))  # nowhere whole, in no source either
BUCKET = "models"


@dataclass(frozen=True)
class Team:
    """A project whose databases and files lie elsewhere."""

    project: Any
    databases: dict[str, str]  # by what they are for
    environment: dict[str, str]
    ports: tuple[int, int]
    server: Any  # PostgreSQL's

    @property
    def root(self) -> Path:
        root: Path = self.project.root
        return root

    def good(self, *command: str) -> str:
        output: str = self.project.good(*command, **self.environment)
        return output

    def ask(self, database: str, query: str) -> list[Any]:
        engine = create_engine(self.databases[database].replace("ratchet@", f"ratchet:{PASSWORD}@"))
        try:
            with engine.connect() as connection:
                return list(connection.execute(text(query)).scalars())
        finally:
            engine.dispose()

    def runs(self, state: str) -> list[Any]:
        """Flow runs in that state, as Prefect's server has them."""
        body = {"flow_runs": {"state": {"type": {"any_": [state]}}}}
        runs: list[Any] = read_json(f"http://{HOST}:{self.ports[0]}/api/flow_runs/filter", body, timeout=30.0)
        return runs

    @property
    def store(self) -> Any:
        """S3's client."""
        import boto3

        keys = {"aws_access_key_id": "team", "aws_secret_access_key": KEY, "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.environment["AWS_ENDPOINT_URL"], **keys)

    def keys(self) -> list[str]:
        """Of everything in the bucket."""
        pages = self.store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def contents(self) -> Iterator[bytes]:
        """Of everything in the bucket."""
        for key in self.keys():
            yield self.store.get_object(Bucket=BUCKET, Key=key)["Body"].read()


@pytest.fixture(scope="module")
def team(new_project: Callable[[str], Any], postgres: Any, s3_environment: dict[str, str]) -> Iterator[Team]:
    project = new_project("team")
    environment = {
        "AWS_ENDPOINT_URL": s3_environment["AWS_ENDPOINT_URL"],
        "AWS_ACCESS_KEY_ID": "team",
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "PGPASSWORD": PASSWORD,
    }
    databases = make_databases(postgres, "prefect", "mlflow", "ledger")
    make = f"import boto3; boto3.client('s3').create_bucket(Bucket={BUCKET!r})"
    project.good(sys.executable, "-c", make, **environment)
    ports = reserved_port(HOST), reserved_port(HOST)
    project.good(
        "ratchet",
        "set",
        f"platform.prefect_port={ports[0]}",
        f"platform.mlflow_port={ports[1]}",
        "serving.enabled=false",
        f"platform.prefect_database={databases['prefect']}",
        f"tracking.uri={databases['mlflow']}",
        f"tracking.artifacts=s3://{BUCKET}/mlflow",
        f"registry.ledger={databases['ledger']}",
    )
    project.good("dvc", "remote", "add", "--default", "team", f"s3://{BUCKET}/dvc")
    yield Team(project, databases, environment, ports, postgres)
    project.good("ratchet", "down")


def make_databases(server: Any, *names: str) -> dict[str, str]:
    """Databases of a user who needs a password."""
    access = server.folder / "data" / "pg_hba.conf"
    access.write_text(f"host all ratchet 127.0.0.1/32 scram-sha-256\n{access.read_text()}")
    server.control("reload")
    engine = create_engine(server.uri, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE ratchet LOGIN PASSWORD '{PASSWORD}'"))
        for name in names:
            connection.execute(text(f"CREATE DATABASE {name} OWNER ratchet"))
    engine.dispose()
    return {name: f"postgresql://ratchet@127.0.0.1:{server.port}/{name}" for name in names}


@pytest.fixture(scope="module")
def run(team: Team) -> dict[str, Any]:
    """A worker's training that ended well, although the databases stopped and started again in the middle of it."""
    assert "train-flow/local" in team.good("ratchet", "up")
    overrides = 'overrides={"training": {"epochs": 12}}'
    output = team.good("prefect", "deployment", "run", "train-flow/local", "--param", overrides)
    assert "train-flow" in output
    until(lambda: list((team.root / "mlruns" / "journal").glob("*/events.jsonl")) and team.runs("RUNNING"))
    (events,) = (team.root / "mlruns" / "journal").glob("*/events.jsonl")
    team.server.stop()
    written = events.stat().st_size
    until(lambda: events.stat().st_size > written)  # training goes on
    team.server.start()
    until(lambda: any(team.runs(state) for state in ("COMPLETED", "FAILED", "CRASHED")))
    [run] = team.runs("COMPLETED")
    return dict(run)


def test_a_workers_training_is_in_the_databases_and_the_store(team: Team, run: dict[str, Any]) -> None:
    assert team.ask("prefect", "SELECT name FROM flow_run WHERE state_type = 'COMPLETED'") == [run["name"]]
    assert team.ask("mlflow", "SELECT name FROM registered_models") == ["digits"]
    assert team.ask("ledger", "SELECT what FROM ledger ORDER BY number") == ["judge", "register", "promote"]
    keys = team.keys()
    for part in ("model.safetensors", "report/report.html", "card/card.html"):
        assert any(key.startswith("mlflow/") and key.endswith(part) for key in keys), part
    assert any(key.startswith("dvc/files/md5/") for key in keys)
    assert not (team.root / "mlruns" / "mlflow.db").exists()
    assert not (team.root / "mlruns" / "ledger.db").exists()
    assert not (team.root / ".ratchet" / "prefect" / "prefect.db").exists()


def test_a_database_that_is_restarted_in_mid_run_costs_nothing(team: Team, run: dict[str, Any]) -> None:
    assert (run["run_count"], run["parameters"]["overrides"]) == (1, {"training": {"epochs": 12}})
    query = "SELECT DISTINCT step FROM metrics WHERE key = 'validation/loss' ORDER BY step"
    assert team.ask("mlflow", query) == list(range(1, 13))


def test_an_unreachable_store_is_named_and_the_next_run_finishes(team: Team, run: dict[str, Any]) -> None:
    """The training is kept: neither the training nor the evaluation is done again."""
    lost = team.environment | {"AWS_ENDPOINT_URL": f"http://{HOST}:{reserved_port(HOST)}", "AWS_MAX_ATTEMPTS": "1"}
    output = team.project.refused("ratchet", "train", "--set", "seed=2", **lost)
    assert "train: recorded, but not stored in DVC's remote (Could not connect" in output
    assert "Nothing is lost" in output
    history = (team.root / "data" / "model" / "history.json").read_bytes()
    team.good("ratchet", "train", "--set", "seed=2")
    assert (team.root / "data" / "model" / "history.json").read_bytes() == history


def test_no_secret_is_written_anywhere(team: Team, run: dict[str, Any]) -> None:
    secrets = [secret.encode() for secret in (PASSWORD, KEY)]
    places = [team.root, team.project.home, team.server.folder]
    written = [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(written) > 1000
    leaks = [str(path) for path in written if any(secret in path.read_bytes() for secret in secrets)]
    assert leaks == []
    assert not any(secret in content for secret in secrets for content in team.contents())
