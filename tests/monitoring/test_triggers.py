"""Rules about when to train again: over periods whose losses are known, and over a log that RequestLog has written."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ratchet.errors import NoRequests
from ratchet.evaluation.intervals import Interval, difference_of
from ratchet.kinds import ModelSpec
from ratchet.kinds.inputs import ImageInput
from ratchet.monitoring import recorded
from ratchet.monitoring.recorded import Recorded
from ratchet.monitoring.rule import DriftRule
from ratchet.monitoring.sketch import Reference
from ratchet.monitoring.sketch_log import SketchLog
from ratchet.monitoring.triggers import Answered, History, Trigger, compare, merged, triggers_of
from ratchet.problems import Classes
from ratchet.reports.trigger_page import trigger_page, trigger_rows
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import Logged, target_id

BEGIN, HOUR, CHANGE, LAST = 1_760_000_400 // 86_400 * 86_400, 3600, 72, 120
RULE = DriftRule(HOUR, "none", 0.05, 10)
SPEC = ModelSpec("convnet", ImageInput(2, 2, 1, (0.0,), (1.0,)), Classes(("cat", "dog")))
CALENDARS = [Trigger("never"), Trigger("every 2 periods", every=2), Trigger("always", every=1)]


class Losses(History):
    """Losses of all models in all periods, without windows."""

    def __init__(self, losses: np.ndarray, unlabelled: int = 0) -> None:
        self.losses, self.periods, self.unlabelled = losses, losses.shape[1] - 1, unlabelled

    def answered(self, model: int, period: int) -> Answered:
        assert model < period
        return Answered(0, 0.0) if period == self.unlabelled else Answered(100, float(self.losses[model, period]))

    def reference(self, model: int) -> Reference | None:
        return None

    def champion_after(self, trigger: str, champion: int, period: int) -> int:
        return champion if period == 3 else period  # the gate refuses one model

    def cpu_seconds(self, model: int) -> float:
        return 1800.0


def test_optimum_is_the_least_of_all_choices() -> None:
    losses = np.random.default_rng(0).uniform(5, 40, (9, 9))
    comparison = compare(Losses(losses), CALENDARS, price=0.1, seed=0)
    costs = []
    for first in range(5):
        for number in range(4):
            for trained in combinations(range(5, 8), number):
                model, cost = first, comparison.price * number
                for period in range(5, 9):
                    cost += losses[model, period]
                    model = period if period in trained else model
                costs.append(cost / 400)
    assert comparison.optimum == pytest.approx(min(costs))
    assert all(replay.cost[1] >= comparison.optimum for replay in comparison.replays if replay.trigger == "never")


def test_trainings_count_with_their_use_delay_and_cost() -> None:
    """Data change after period 4: models that were trained before lose 30 more rows in each period."""
    losses = np.array([[10.0 + 30 * (model < 5 <= period) for period in range(9)] for model in range(9)])
    never, two, always = compare(Losses(losses), CALENDARS, price=1.0, seed=0).replays
    assert (never.trainings, never.useless, never.delay) == (0, 0, None)
    assert never.cost == pytest.approx([0.1, 0.4])
    assert (always.trainings, always.useless, always.delay) == (7, 6, 0.0)
    assert always.cpu_hours == 3.5
    assert (two.trainings, two.useless, two.delay) == (3, 2, 1.0)  # after 2, 4 and 6
    assert two.cost == pytest.approx([0.1 + 2 * 10 / 400, (40 + 40 + 10 + 10 + 10) / 400])
    assert [step.champion for step in always.steps[:4]] == [1, 2, 2, 4]
    *_, always = compare(Losses(losses, unlabelled=3), CALENDARS, price=1.0, seed=0).replays
    assert (always.trainings, always.useless, always.delay) == (7, 5, 0.0)


def logged(folder: Path, *, labels: bool = True, change: int = CHANGE) -> None:
    """Write five days of answers with labels, as a server does. The answers and the share of wrong ones change."""
    now = BEGIN + LAST * HOUR
    log = RequestLog(
        folder, share=1.0, inputs="none", days=1e6, mib=64.0, sketches=SketchLog(folder, window=60), clock=lambda: now
    )
    known = {}
    for hour in range(LAST):
        random, answer = np.random.default_rng(hour), f"{hour:032x}"
        cat = 1 / (1 + np.exp(-random.normal(2.0 * (hour >= change), 1.0, 200)))
        answers = np.stack([cat, 1 - cat], 1).astype(np.float32)
        wrong = random.random(200) < (0.4 if hour >= change else 0.1)
        known |= {(answer, row): [float(label)] for row, label in enumerate(answers.argmax(1) ^ wrong)}
        values = {"pixels": random.integers(0, 256, (200, 2, 2, 1), np.uint8)}
        named = (answer, BEGIN + hour * HOUR + 60, 0.01, "own", "digits", "3", "record", "anna", values, answers)
        each = Logged(*named, target_id(SPEC.target), spec=SPEC)
        log.add(answer, lambda each=each: each)
    log.close()
    if labels:
        LabelStore(folder, clock=lambda: now).add(known, problem="classification", days=1e6)


def test_drift_rule_is_best_where_a_recorded_change_came_once(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    logged(folder)
    history = Recorded.read(folder, window=HOUR, period=6 * HOUR, now=BEGIN + LAST * HOUR)
    assert history.periods == 20
    before, after = (history.answered(0, period) for period in (12, 13))
    assert (before.rows, after.rows) == (1200, 1200)
    assert before.loss / 1200 == pytest.approx(0.1, abs=0.03)
    assert after.loss / 1200 == pytest.approx(0.4, abs=0.05)
    assert history.answered(14, 15).loss / 1200 < 0.2  # assumed of a training after the change
    triggers = triggers_of(RULE, (4,))
    comparison = compare(history, triggers, price=0.05, seed=1)
    assert comparison == compare(history, triggers, price=0.05, seed=1)
    by_name = {replay.trigger: replay for replay in comparison.replays}
    drift = by_name["W3, alpha 0.05, window 60 min"]
    trained = [period for period, step in enumerate(drift.steps, start=1) if step.champion is not None]
    assert trained[0] in (13, 14)  # 12 periods are before the change
    assert drift.false_alarm is not None
    assert drift.false_alarm <= 0.15
    assert drift.cost[1] < by_name["never"].cost[1]
    assert drift.trainings < by_name["always"].trainings
    page = trigger_page(comparison, "Backtest", ["note"])
    assert all(row[0] in page for row in trigger_rows(comparison))


def test_rule_with_a_longer_window_merges_windows(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    logged(folder)
    history = Recorded.read(folder, window=HOUR, period=6 * HOUR, now=BEGIN + LAST * HOUR)
    windows = history.answered(0, 2).windows
    wider = merged(windows, 2 * HOUR)
    assert [each.start for each in wider] == [BEGIN + 6 * HOUR + 2 * HOUR * place for place in range(3)]
    assert [each.rows for each in wider] == [400, 400, 400]
    assert wider[0] == replace(windows[0] + windows[1], start=windows[0].start)
    wide = compare(history, [Trigger("wide", rule=replace(RULE, window=2 * HOUR))], price=0.0, seed=0).replays[0]
    assert wide.trainings
    assert all(step.champion is None for step in wide.steps[:12])  # before the change


@pytest.mark.parametrize(
    ("window", "season", "hours", "longest"),
    [(60, "none", 24, 120), (60, "none", 5, 60), (480, "day", 24, 480), (480, "none", 24, 480), (240, "day", 24, 480)],
)
def test_longer_windows_fit_season_and_period(window: int, season: str, hours: int, longest: int) -> None:
    rule = DriftRule(window * 60, season, 0.05, 10)
    triggers = triggers_of(rule, (4,), period=hours * HOUR)
    assert max(each.rule.window for each in triggers if each.rule) == longest * 60


def test_trainings_gain_nothing_from_noise(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    logged(folder, change=LAST)
    history = Recorded.read(folder, window=HOUR, period=6 * HOUR, now=BEGIN + LAST * HOUR)
    never, *_, always = compare(history, triggers_of(RULE, (4,)), price=0.0, seed=1).replays
    assert always.loss(0) == never.loss(0) > 0
    assert (always.trainings, always.useless) == (19, 19)
    chosen = pl.DataFrame({"answer": [f"{12:032x}"] * 150, "row": range(150)}, schema_overrides={"row": pl.Int32})
    chosen.write_parquet(tmp_path / "chosen-by-entropy.parquet")
    fair = Recorded.read(folder, window=HOUR, period=6 * HOUR, now=BEGIN + LAST * HOUR)
    assert [fair.answered(0, period).rows for period in (2, 3)] == [1200, 1050]


def test_each_training_is_judged_once_whatever_the_periods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions answer in 20 periods each; the loss of the second rises in its ninth."""
    judged: list[Interval] = []

    def noted(later: Interval, earlier: Interval) -> Interval:
        judged.append(later)
        return difference_of(later, earlier)

    monkeypatch.setattr(recorded, "difference_of", noted)
    random = np.random.default_rng(0)
    lost = [(random.random(200) < (0.6 if period >= 28 else 0.1)).astype(np.float64) for period in range(40)]
    record = [Answered(200, float(rows.sum())) for rows in lost]
    history = Recorded(tmp_path, ["x/1"] * 20 + ["x/2"] * 20, record, lost, 0.0)
    compare(history, CALENDARS, price=0.1, seed=0)
    assert 30 < len(judged) <= 40
    assert history.answered(28, 30).loss == record[29].loss, "trained before the rise"
    assert history.answered(29, 30).loss == pytest.approx(200 * np.mean(lost[20:23]))
    assert [history.answered(model, 20).loss for model in (0, 19)] == [record[19].loss] * 2


def test_missing_history_says_what_to_do(tmp_path: Path) -> None:
    now = BEGIN + LAST * HOUR
    with pytest.raises(NoRequests, match=r"sketches of 0 periods .* Fix: `ratchet serve`"):
        Recorded.read(tmp_path / "requests", window=HOUR, period=6 * HOUR, now=now)
    logged(tmp_path / "requests", labels=False)
    with pytest.raises(NoRequests, match=r"no logged answer has a label.* Fix: POST labels"):
        Recorded.read(tmp_path / "requests", window=HOUR, period=6 * HOUR, now=now)
