"""Settings that change no weight: changed in the middle of a run, or before it, it ends with the same bits."""

from dataclasses import replace
from typing import Any

import pytest

from ratchet.settings.model import NEUTRAL, TrainingSettings
from ratchet.training import Started

OTHERS: dict[str, Any] = {
    "workers": 2,
    "sample_timeout": 1.5,
    "overfit_gap": 0.001,
    "max_rollbacks": 0,
    "doctor": "always",
    "checkpoint_steps": 1,
    "keep_last": 1,
    "keep_best": 3,
    "log_every": 7,
    "profile": 2,
    "processes": 2,
    "nodes": "1:2",
    "rendezvous": "127.0.0.1:29400",
    "hooks": ("plots:draw",),
}
PLANS = {
    "adamw": {},
    "average": {"ema_decay": 0.9, "optimizer": "sgd", "learning_rate": 0.05, "accumulation": 3},
    "muon bf16": {"optimizer": "muon", "precision": "bf16", "cutout": 3},
}


def test_every_setting_that_decides_nothing_is_tried_here() -> None:
    assert OTHERS.keys() == NEUTRAL
    for name, value in OTHERS.items():
        assert TrainingSettings.model_fields[name].default != value


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("name", [*OTHERS, "all"])
def test_a_neutral_setting_may_change_during_a_run(lab, changes, name: str) -> None:
    plan = lab.plan(**changes)
    others = OTHERS if name == "all" else {name: OTHERS[name]}
    expected = lab.run(plan, name="undisturbed")
    from_the_beginning = lab.run(replace(plan, **others), name="other")
    lab.stop_at(5, plan)
    resumed = list(lab.events(replace(plan, **others)))
    assert lab.every(resumed, Started)[0].step == 5
    for finished in (from_the_beginning, resumed[-1]):
        lab.assert_same(finished.weights, expected.weights)
        assert finished.history == expected.history
        assert (finished.best_epoch, finished.best_value) == (expected.best_epoch, expected.best_value)


def test_accumulation_changes_bits_so_it_stays_in_the_identity(lab) -> None:
    """Even without batch norm: sums in another order round differently."""
    assert "accumulation" not in NEUTRAL
    lab.spec = lab.make_spec("linear64")
    item, two = (lab.run(lab.plan(accumulation=count), name=str(count)).weights for count in (1, 2))
    assert any(not item[name].equal(two[name]) for name in item)
