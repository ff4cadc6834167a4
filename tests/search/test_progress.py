"""Progress of a trial: what an attempt does not know of it stays."""

from ratchet.search.records import Trial
from ratchet.search.scheduler import Progress


def test_a_trial_keeps_the_mlflow_run_it_had() -> None:
    trial = Progress(run_id="run").of(Trial(0, "key", {}))
    assert trial.run_id == "run"
    assert Progress().of(trial).run_id == "run"
