"""Everything that a training logs reaches MLflow once, even if a process is killed or the server stops.

The values are read from MLflow itself: a SQLite database as shipped, and a server over HTTP.
"""

import errno
import json
import re
import resource
import shutil
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from mlflow import MlflowClient
from waiting import until

from flows.server.runs_page import TRAINING, runs_page
from ratchet.cost import TrainingCost
from ratchet.errors import RegistryError, TrackingRefused, TrackingUnavailable, TrainingError
from ratchet.registry import runs
from ratchet.registry.journal import Journal
from ratchet.registry.mlflow_store import VIEW, check_experiment, connect, experiment_id, file_errors, reachable
from ratchet.registry.runs import NAME, Run, send_all, total_cost
from ratchet.registry.trial_runs import JOURNAL, REPLACED_TAG, end_trials, trial_records
from ratchet.servers.supervisor import Service
from ratchet.settings.model import ModelSettings, Params, TrackingSettings
from ratchet.workspace import Workspace
from tasks.trained_model import run_name

pytestmark = pytest.mark.system

DEAD = "http://127.0.0.1:9"


def log_training(run: Run, *, steps: int = 4) -> None:
    """Log a short training."""
    run.settings({"training.epochs": 2, "model.name": "convnet"})
    run.dataset(name="digits", digest="0123abcd.dir", source="data/raw", profile={"rows": {"train": 10}})
    run.tags({"ratchet.device": "cpu"})
    run.status("RUNNING")
    for step in range(steps):
        run.metrics({"step/loss": 1.0 / (1 + step), "step/rate": 0.1}, step=step)
    run.metrics({"validation/accuracy": 0.5}, step=1)
    run.status("FINISHED")


def forget_sent_position(run: Run) -> None:
    """Restore the state of a process that was killed between sending and recording that."""
    state = run.journal.folder / "state.json"
    state.write_text(json.dumps({"uid": run.journal.uid}))


def closed(run: Run) -> Run:
    run.journal.close()
    return run


def test_only_one_process_runs_a_training(tmp_path: Path) -> None:
    workspace, params = Workspace(tmp_path), Params(tracking=TrackingSettings(uri=DEAD))
    with Run(workspace, params, "k") as first:
        first.tags({"a": "b"})
        with pytest.raises(TrainingError, match="training k is already running in another folder of this project"):
            Run(workspace, params, "k").__enter__()
        with Run(workspace, params, "another"):
            pass
    with Run(workspace, params, "k"):
        pass


def test_run_clears_the_drafts_of_a_killed_one(tmp_path: Path) -> None:
    workspace, params = Workspace(tmp_path), Params(tracking=TrackingSettings(uri=DEAD))
    profile = workspace.mlruns / "journal" / "k" / ".draft-profile-abcd1234"
    profile.mkdir(parents=True)
    (profile / "trace.json").touch()
    with Run(workspace, params, "k"):
        assert not profile.exists()


def test_everything_that_was_logged_is_in_mlflow(place: Any, key: str) -> None:
    run = Run(place.workspace, place.params, key)
    log_training(run)
    run_id = run.send()
    assert closed(run).journal.is_sent
    [stored] = place.runs(run.journal.uid)
    assert (stored.info.run_id, stored.info.status) == (run_id, "FINISHED")
    assert stored.data.params == {"training.epochs": "2", "model.name": "convnet"}
    assert stored.data.tags["ratchet.device"] == "cpu"
    assert stored.data.metrics == {"step/loss": 0.25, "step/rate": 0.1, "validation/accuracy": 0.5}
    assert place.points(run_id, "step/loss") == [(0, 1.0), (1, 0.5), (2, 1 / 3), (3, 0.25)]
    [data] = stored.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("digits", "0123abcd.dir")
    assert data.tags[0].value == "training"


def test_another_evaluation_replaces_its_metrics(place: Any, key: str) -> None:
    """MLflow has the last values, also after a return to the first ones. Equal values add no point."""
    for value in (0.5, 0.6, 0.6, 0.5):
        run = Run(place.workspace, place.params, key)
        run.measured({"test/accuracy": value})
        run_id = run.send()
        closed(run)
        [stored] = place.runs(run.journal.uid)
        assert stored.data.metrics == {"test/accuracy": value}
        sent = time.time()
        until(lambda sent=sent: time.time() > sent + 0.002)  # MLflow orders points of one step by their millisecond
    assert sorted(place.points(run_id, "test/accuracy")) == [(0, 0.5), (0, 0.5), (0, 0.6)]


def test_an_evaluation_after_a_clock_set_back_replaces_metrics(
    place: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two values of a step MLflow takes the later one, or the larger one of the same millisecond."""
    for value in (0.75, 0.5, 0.625):
        run = Run(place.workspace, place.params, key)
        run.measured({"test/accuracy": value})
        monkeypatch.setattr("ratchet.registry.journal.time.time_ns", lambda: 1_000_000_000_000_000_000)  # in 2001
        run.send()
        closed(run)
        [stored] = place.runs(run.journal.uid)
        assert stored.data.metrics == {"test/accuracy": value}


def test_a_run_that_fails_at_once_has_a_duration(place: Any, key: str) -> None:
    """It is sent after it ended, but with its real start time."""
    run = Run(place.workspace, place.params, key)
    run.status("RUNNING")
    run.status("FAILED")
    began, ended = (entry.time for entry in run.journal.entries(0))
    until(lambda: 1000 * time.time() > ended + 50)
    run.send()
    closed(run)
    [stored] = place.runs(run.journal.uid)
    assert (stored.info.start_time, stored.info.end_time) == (began, ended)


def test_a_clock_set_back_makes_no_negative_duration(place: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(place.workspace, place.params, key)
    run.status("RUNNING")
    monkeypatch.setattr("ratchet.registry.journal.time.time_ns", lambda: 1_000_000_000_000_000_000)  # in 2001
    run.status("FAILED")
    monkeypatch.undo()
    run.send()
    closed(run)
    [stored] = place.runs(run.journal.uid)
    assert stored.info.end_time >= stored.info.start_time > 1_000_000_000_000


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ({"name": "convnet"}, "convnet"),
        ({"name": "auto"}, "image"),
        ({"name": "efficientnet_v2_s"}, "efficientnet_v"),
        ({"factory": "my.package.nets:small_residual_net"}, "small_residual"),
    ],
)
def test_a_run_s_name_fits_its_column(model: dict[str, str], shown: str, database: Any, key: str) -> None:
    params = database.params.model_copy(update={"model": ModelSettings(**model)})
    run = Run(database.workspace, params, key)
    run.status("RUNNING")
    run.send()
    closed(run)
    [stored] = database.runs(run.journal.uid)
    assert stored.info.run_name == f"{shown}-{run.journal.uid[:6]}"
    assert len(stored.info.run_name) <= 21


def test_the_runs_page_has_a_view_with_results_first(place: Any, key: str) -> None:
    """Also in an experiment that existed before the view."""
    tag = f"mlflow.sharedViewState.{VIEW}"
    for experiment in (place.params.tracking.experiment, f"older-{key}"):
        settings = place.params.tracking.model_copy(update={"experiment": experiment})
        if experiment != place.params.tracking.experiment:
            place.client.create_experiment(experiment)
            mlflow = Service("MLflow server", place.params.tracking.uri, "", "", 1.0)
            has_address = mlflow.address.startswith("http")
            assert not has_address or runs_page(mlflow, experiment).endswith("/runs?workflowType=machine_learning")
        identity = experiment_id(place.client, place.workspace, settings)
        saved = json.loads(place.client.get_experiment(identity).tags[tag])
        assert saved["name"] == "Results"
        assert json.loads(saved["state"])["selectedColumns"][:2] == ["tags.`ratchet.result`", "tags.`ratchet.gate`"]
        if experiment != place.params.tracking.experiment and has_address:
            assert runs_page(mlflow, experiment).endswith(f"/{identity}/runs{TRAINING}&viewStateShareKey={VIEW}")


def test_a_run_gets_the_name_that_is_recorded(place: Any, key: str) -> None:
    run = Run(place.workspace, place.params, key)
    run.tags({"one": "1", NAME: run_name("bob-s sales", "my.nets:small", "98.9 % refused"), "two": "2"})
    run.send()
    closed(run)
    [stored] = place.runs(run.journal.uid)
    assert stored.info.run_name == stored.data.tags[NAME] == "bob-s sales small 98.9 % refused"
    assert (stored.data.tags["one"], stored.data.tags["two"]) == ("1", "2")


def test_sending_twice_changes_nothing(place: Any, key: str) -> None:
    run = closed(Run(place.workspace, place.params, key))
    run = Run(place.workspace, place.params, key)
    log_training(run)
    first = run.send()
    [before] = place.runs(run.journal.uid)
    forget_sent_position(closed(run))
    again = Run(place.workspace, place.params, key)
    assert again.send() == first
    closed(again)
    [after] = place.runs(run.journal.uid)
    assert after.to_dictionary() == before.to_dictionary()
    assert place.points(first, "step/rate") == [(step, 0.1) for step in range(4)]


def test_more_points_than_fit_a_request_arrive(database: Any, key: str) -> None:
    run = Run(database.workspace, database.params, key)
    for step in range(500):
        run.metrics({"a": float(step), "b": -float(step)}, step=step)
    run.settings({f"setting.{number}": number for number in range(130)})
    run_id = run.send()
    closed(run)
    assert database.points(run_id, "a") == [(step, float(step)) for step in range(500)]
    assert len(database.runs(run.journal.uid)[0].data.params) == 130


@pytest.mark.parametrize("method", ["mark_sent", "entries"])
def test_a_kill_before_the_id_is_stored_leaves_one_run(place: Any, key: str, killed_at: Any, method: str) -> None:
    killed_at(place, key, method)
    run = Run(place.workspace, place.params, key)
    assert run.journal.run_id is None
    run.metrics({"loss": 9.0}, step=9)
    run_id = run.send()
    closed(run)
    assert [stored.info.run_id for stored in place.runs(run.journal.uid)] == [run_id]
    assert place.points(run_id, "loss") == [(0, 0.0), (1, 0.125), (2, 0.25), (3, 0.375), (9, 9.0)]


def test_without_mlflow_training_continues_with_a_warning(tmp_path: Path) -> None:
    away = Params(tracking=TrackingSettings(uri=DEAD))
    with Run(Workspace(tmp_path), away, "k") as run:
        log_training(run)
    assert run.away
    assert DEAD in run.away
    assert "`ratchet sync`" in run.away
    assert not run.journal.is_sent


def test_a_deleted_experiment_is_named_with_its_fix(place: Any, key: str) -> None:
    experiment = experiment_id(place.client, place.workspace, place.params.tracking)
    place.client.delete_experiment(experiment)
    run = Run(place.workspace, place.params, key)
    run.tags({"a": "b"})
    try:
        for send in (run.send, lambda: check_experiment(place.workspace, place.params.tracking)):
            with pytest.raises(TrackingRefused, match=rf"mlflow experiments restore --experiment-id {experiment}`"):
                send()
    finally:
        place.client.restore_experiment(experiment)
    run.send()
    assert closed(run).journal.is_sent


def test_a_deleted_run_is_named_and_another_one_is_sent(place: Any, key: str) -> None:
    gone, fine = (Run(place.workspace, place.params, f"{key}{name}") for name in ("-gone", "-fine"))
    gone.tags({"a": "b"})
    run_id = gone.send()
    place.client.delete_run(run_id)
    gone.tags({"a": "c"})
    fine.tags({"a": "d"})
    with pytest.raises(TrackingRefused, match=rf"run {run_id}, .* is deleted. Fix: `.*mlflow runs restore --run-id"):
        gone.send()
    closed(gone)
    closed(fine)
    with pytest.raises(TrackingRefused, match="1 sent, 1 refused:"):
        send_all(place.workspace, place.params)
    with pytest.raises(TrackingRefused, match="is deleted"):  # before the training begins
        Run(place.workspace, place.params, f"{key}-gone").__enter__()
    assert closed(Run(place.workspace, place.params, f"{key}-fine")).journal.is_sent
    (gone.journal.folder / "state.json").unlink()
    assert [name for name, _ in send_all(place.workspace, place.params)] == [f"{key}-gone"]


def trial_run(place: Any, study: Path, name: str, **tags: str) -> Run:
    """Open the journal of a search's trial."""
    run = Run(place.workspace, trial_records(place.params), name, folder=study / name / JOURNAL)
    run.tags({"ratchet.key": "0a", **tags})
    run.status("RUNNING")
    return run


def test_a_copied_journal_has_a_run_of_its_own(place: Any, key: str) -> None:
    """Its run replaces that of the original, whose late entries are not sent."""
    study = place.workspace.project.root / place.params.search.folder / key
    hung = trial_run(place, study, "0a")
    hung.metrics({"loss": 1.0}, step=1)
    original = hung.send()
    copy = study / "0a-1" / JOURNAL
    shutil.copytree(hung.journal.folder, copy, ignore=shutil.ignore_patterns("*.lock"))
    with closing(Journal(copy)) as journal:
        journal.replace_original()
    following = trial_run(place, study, "0a-1")
    for run, value in ((hung, 3.0), (following, 2.0)):
        run.metrics({"loss": value}, step=2)
        closed(run)
    ((name, run_id),) = send_all(place.workspace, place.params)
    assert name == "0a-1"
    assert place.points(run_id, "loss") == [(1, 1.0), (2, 2.0)]
    replaced = place.client.get_run(original)
    assert replaced.info.lifecycle_stage == "deleted"
    assert "Another worker" in replaced.data.tags[REPLACED_TAG]
    assert send_all(place.workspace, place.params) == []


def test_a_second_run_of_a_trial_is_deleted(place: Any, key: str) -> None:
    """Two machines have recorded it. What the first one has not sent yet is dropped, without an error."""
    study = place.workspace.project.root / place.params.search.folder / key
    first, second = (trial_run(place, study, name, **{"mlflow.parentRunId": key}) for name in ("0a", "0b"))
    ids = [first.send(), second.send()]
    first.metrics({"loss": 1.0}, step=1)
    closed(first)
    closed(second)
    end_trials(place.workspace, place.params, key, {"0a": "FINISHED"}, {"0a": ids[1]})
    states = [place.client.get_run(run_id).info for run_id in ids]
    assert [state.lifecycle_stage for state in states] == ["deleted", "active"]
    assert states[1].status == "FINISHED"
    assert send_all(place.workspace, place.params) == [("0a", ids[0])]
    assert place.points(ids[0], "loss") == []
    assert send_all(place.workspace, place.params) == []


def test_an_answer_of_mlflow_is_not_called_an_outage(place: Any) -> None:
    uri = place.client.tracking_uri
    with pytest.raises(TrackingRefused, match=r"refuses this: .*bob's/sales"), reachable(uri):
        place.client.create_registered_model("bob's/sales")
    with pytest.raises(TrackingRefused, match="refuses this"), reachable(uri):
        place.client.get_run("0" * 32)
    with pytest.raises(TrackingUnavailable, match="does not accept requests") as silent, reachable(DEAD):
        connect(place.workspace, TrackingSettings(uri=DEAD)).search_experiments()
    assert not isinstance(silent.value, TrackingRefused)


def test_an_error_of_the_local_disk_is_no_outage(
    place: Any, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses a file above the limit of this process, and SQLite to write a database opened to be read."""
    if not place.client.tracking_uri.startswith("sqlite"):
        pytest.skip("a server writes its files itself")
    run, large = Run(place.workspace, place.params, key), tmp_path / "large"
    run_id = closed(run).send()
    large.write_bytes(bytes(1 << 20))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(TrackingUnavailable) as refused, reachable(place.client.tracking_uri):
            place.client.log_artifact(run_id, str(large))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    message = r"cannot write a file \(File too large\)\..*Fix: a file this large is not allowed"
    assert re.search(message, str(refused.value))
    path = place.client.tracking_uri.removeprefix("sqlite:///")
    monkeypatch.chdir(tmp_path)  # MLflow makes a folder "file:"
    to_read = MlflowClient(f"sqlite:///file:{path}?mode=ro&uri=true")
    with (
        pytest.raises(TrackingUnavailable, match=r"cannot write its database \(Permission.*Fix: make it"),
        reachable(path),
    ):
        to_read.set_tag(run_id, "a", "b")


def test_a_damaged_journal_stops_no_other_one(place: Any, key: str, caplog: pytest.LogCaptureFixture) -> None:
    line, state, fine = (Run(place.workspace, place.params, f"{key}-{name}") for name in ("a", "b", "c"))
    for run in (line, state, fine):
        run.metrics({"loss": 1.0}, step=1)
        run.metrics({"loss": 2.0}, step=2)
        run.metrics({"loss": 3.0}, step=3)
        closed(run)
    events, damaged = line.journal.folder / "events.jsonl", state.journal.folder / "state.json"
    content = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(content[0] + bytes(len(content[1]) - 1) + b"\n" + content[2])  # a power cut left zeros
    damaged.write_bytes(bytes(80))
    with pytest.raises(TrackingRefused) as refused:
        send_all(place.workspace, place.params)
    assert "2 sent, 1 refused:" in str(refused.value)
    assert f"{damaged}: damaged (" in str(refused.value)
    assert f"Fix: restore it, or `rm {damaged}`" in str(refused.value)
    assert f"{events}: the line that ends at byte {len(content[0] + content[1])} is damaged" in caplog.text
    damaged.unlink()
    assert [name for name, _ in send_all(place.workspace, place.params)] == [f"{key}-b"]
    for run, losses in ((line, [1.0, 3.0]), (state, [1.0, 2.0, 3.0]), (fine, [1.0, 2.0, 3.0])):
        again = closed(Run(place.workspace, place.params, run.key)).journal
        assert again.is_sent
        assert [value for _, value in place.points(again.run_id, "loss")] == losses


@pytest.mark.parametrize(
    ("status", "password", "sentence"),
    [
        (401, "", "asks for a login, and MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD are not both set"),
        (401, "wrong", "does not know ann with this password"),
        (403, "right", r"does not allow this to ann \(MLFLOW_TRACKING_USERNAME\)"),
    ],
)
def test_a_server_with_users_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, password: str, sentence: str
) -> None:
    """The answers are those of `mlflow server --app-name basic-auth`."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    uri = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.raises(TrackingUnavailable, match=f"{uri} {sentence}. Nothing is lost"), reachable(uri):
            connect(Workspace(tmp_path), TrackingSettings(uri=uri)).search_experiments()
    finally:
        server.shutdown()
        server.server_close()


def test_missing_keys_of_s3_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    client = boto3.Session(region_name="eu-west-1").client("s3", endpoint_url=DEAD)
    with pytest.raises(TrackingUnavailable, match=r"S3 \(Unable to.*Fix: export AWS_ACCESS_KEY_ID and"), reachable("x"):
        client.list_buckets()


def test_a_refused_file_is_not_called_an_outage(server: Any, tmp_path: Path, s3: Any) -> None:
    """Both stores of files answer with a status of 4xx: MLflow's own, and S3 without the bucket."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    (tmp_path / "file").touch()
    connect(Workspace(tmp_path), TrackingSettings(uri=server.uri))  # shortens MLflow's timeouts
    of_server = get_artifact_repository(f"{server.uri}/api/2.0/mlflow-artifacts/artifacts/a/..%2F..%2Fb")
    of_s3 = get_artifact_repository("s3://no-such-bucket/files")
    for store, reason in ((of_server, "400 Client Error"), (of_s3, "NoSuchBucket")):
        with pytest.raises(TrackingRefused, match=f"refuses this: .*{reason}"), reachable(server.uri):
            store.log_artifact(str(tmp_path / "file"))
    missing = get_artifact_repository("mlflow-artifacts:/none", tracking_uri=server.uri)
    for store, reason in ((missing, "404 Client Error"), (of_s3, "bucket does not exist")):
        match = rf"x: its files cannot be read \(.*{reason}.*\)\. Fix: restore"
        with pytest.raises(RegistryError, match=match), file_errors("x", DEAD):
            store.download_artifacts("file")
    for number, kind in ((errno.ENOENT, RegistryError), (errno.EMFILE, TrackingUnavailable)):
        with pytest.raises(kind), file_errors("x", DEAD):
            raise OSError(number, "of a file")
    of_none = get_artifact_repository(f"{DEAD}/api/2.0/mlflow-artifacts/artifacts/a")
    with pytest.raises(TrackingUnavailable) as silent, reachable(DEAD):
        of_none.log_artifact(str(tmp_path / "file"))
    assert not isinstance(silent.value, TrackingRefused)


def test_waiting_entries_are_sent_once_when_mlflow_returns(server: Any, served: Any) -> None:
    """A run that began before the server stopped loses and repeats nothing."""
    begun = Run(served.workspace, served.params, "begun")
    begun.metrics({"loss": 1.0}, step=1)
    first = begun.send()
    server.stop()
    try:
        begun.metrics({"loss": 0.5}, step=2)
        with pytest.raises(TrackingUnavailable):
            begun.send()
        with Run(served.workspace, served.params, "k") as run:
            log_training(run)
        assert run.away
        with pytest.raises(TrackingUnavailable, match=f"{re.escape(server.uri)} .*`ratchet sync`"):
            send_all(served.workspace, served.params)
    finally:
        server.start()
    begun.metrics({"loss": 0.25}, step=3)
    assert begun.send() == first
    closed(begun)
    assert served.points(first, "loss") == [(1, 1.0), (2, 0.5), (3, 0.25)]
    [(name, run_id)] = send_all(served.workspace, served.params)
    assert name == "k"
    assert send_all(served.workspace, served.params) == []
    [stored] = served.runs(run.journal.uid)
    assert (stored.info.run_id, stored.info.status) == (run_id, "FINISHED")
    assert served.points(run_id, "step/rate") == [(step, 0.1) for step in range(4)]


def test_points_arrive_while_training_continues(database: Any, key: str) -> None:
    with Run(database.workspace, database.params, key) as run:
        run.metrics({"loss": 1.0}, step=1)
        while not (run.journal.run_id and run.journal.is_sent):
            pass
        assert database.points(run.journal.run_id, "loss") == [(1, 1.0)]
        run.metrics({"loss": 0.5}, step=2)
    assert run.away is None
    assert database.points(run.journal.run_id, "loss") == [(1, 1.0), (2, 0.5)]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("sqlite:///file/mlflow.db", r"file/mlflow\.db .*`ratchet sync`"),
        ("nonsense://there", r"nonsense://there refuses this: .* Fix: correct the setting"),
    ],
)
def test_an_unusable_address_is_reported_as_unavailable(tmp_path: Path, uri: str, message: str) -> None:
    (tmp_path / "file").touch()
    with Run(Workspace(tmp_path), Params(tracking=TrackingSettings(uri=uri)), "k") as run:
        run.metrics({"loss": 1.0}, step=1)
        with pytest.raises(TrackingUnavailable, match=message):
            run.send()
    assert run.away


def test_journal_of_a_running_training_is_left_to_it(database: Any, key: str) -> None:
    run = Run(database.workspace, database.params, key)
    run.may_send = lambda: False
    with run:
        run.metrics({"loss": 1.0}, step=1)
        assert (key, "") in send_all(database.workspace, database.params)
        assert run.journal.run_id is None
    sent = dict(send_all(database.workspace, database.params))
    assert database.points(sent[key], "loss") == [(1, 1.0)]


def test_a_journal_that_another_process_sends_has_a_limit(
    database: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung MLflow held up the training, and the sync, without a word."""
    monkeypatch.setattr(runs, "_SENDING_WAIT", 0.0)
    run = Run(database.workspace, database.params, key)
    log_training(run)
    with FileLock(run.journal.folder / "sending.lock"):
        with pytest.raises(TrackingUnavailable, match=r"another process, or .* has been sending it.*Fix: see why"):
            run.send()
        assert (key, "") in send_all(database.workspace, database.params)
    run_id = closed(run).send()
    assert database.client.get_run(run_id).info.status == "FINISHED"


def test_a_sender_that_makes_progress_is_waited_for(database: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a training's own sender, of a backlog after an outage: its register stage gave up."""
    monkeypatch.setattr(runs, "_SENDING_WAIT", 0.0)
    sender = closed(Run(database.workspace, database.params, key)).journal
    run = Run(database.workspace, database.params, key)
    log_training(run)
    ends, refresh = [entry.end for entry in run.journal.entries(0)], run.journal.refresh
    run_id = database.client.create_run(experiment_id(database.client, run.workspace, run.params.tracking)).info.run_id
    lock = FileLock(run.journal.folder / "sending.lock")

    def go_on() -> None:
        """Send one entry more each time that the waiting one looks."""
        if ends:
            sender.mark_sent(run_id, ends.pop(0))
            if not ends:
                lock.release()
        refresh()

    monkeypatch.setattr(run.journal, "refresh", go_on)
    with lock:
        assert run.send() == run_id
    assert closed(run).journal.is_sent


def test_what_was_sent_is_recorded_after_each_request(database: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, log_batch, sizes = Run(database.workspace, database.params, key), MlflowClient.log_batch, list[int]()
    for step in range(1000):
        run.metrics({"step/loss": 1.0, "step/rate": 0.1}, step=step)

    def fail_at_third(client: MlflowClient, run_id: str, metrics: Any) -> None:
        if len(sizes) == 2:
            raise ConnectionError("refused")
        sizes.append(len(metrics))
        log_batch(client, run_id, metrics=metrics)

    with monkeypatch.context() as only:
        only.setattr(MlflowClient, "log_batch", fail_at_third)
        with pytest.raises((TrackingUnavailable, ConnectionError)):
            run.send()
    points = sum(len(entry.content["values"]) for entry in run.journal.entries(run.journal.sent))
    assert (sizes, points) == ([898, 900], 202)
    run_id = closed(run).send()
    assert [step for step, _ in database.points(run_id, "step/loss")] == [*range(1000)]


def test_another_store_gets_everything_and_the_first_no_duplicates(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    old, new = (Params(tracking=TrackingSettings(uri=f"sqlite:///{name}.db")) for name in ("old", "new"))
    first = Run(workspace, old, "k")
    log_training(first)
    there = first.send()
    closed(first)
    [(_, here)] = send_all(workspace, new)  # `ratchet sync`, after the team's server was set
    assert here != there
    assert send_all(workspace, new) == []
    assert send_all(workspace, old) == [("k", there)]
    for params, run_id in ((old, there), (new, here)):
        client = connect(workspace, params.tracking)
        run = client.get_run(run_id)
        assert (run.info.status, run.data.params["model.name"]) == ("FINISHED", "convnet")
        history = client.get_metric_history(run_id, "step/loss")
        assert sorted((point.step, point.value) for point in history) == [(0, 1.0), (1, 0.5), (2, 1 / 3), (3, 0.25)]
        experiment = client.get_experiment_by_name(params.tracking.experiment)
        assert len(client.search_runs([experiment.experiment_id])) == 1


def test_total_cost_adds_the_last_record_of_each_attempt(place: Any, key: str) -> None:
    run = Run(place.workspace, place.params, key)
    assert total_cost(run.journal) is None
    for attempt, seconds in (("first", 1.0), ("first", 5.0), ("second", 2.0), ("second", 3.0)):
        run.cost(attempt, TrainingCost(seconds, 2 * seconds, 0.0))
    run_id = run.send()
    assert total_cost(closed(run).journal) == TrainingCost(8.0, 16.0, 0.0, attempts=2)
    assert run.journal.is_sent
    assert place.client.get_run(run_id).data.metrics == {}


def test_a_later_attempt_writes_nothing_to_a_registered_run(tmp_path: Path) -> None:
    workspace, params = Workspace(tmp_path), Params(tracking=TrackingSettings(uri=DEAD))
    first = Run(workspace, params, "k")
    first.tags({"a": "b"})
    first.cost("1", TrainingCost(1.0, 1.0, 0.0))
    first.journal.seal("weights")
    before = closed(first).journal.entries(0)
    again = Run(workspace, params, "k")
    log_training(again)
    again.cost("2", TrainingCost(5.0, 5.0, 0.0))
    assert again.is_closed
    assert closed(again).journal.entries(0) == before
