"""Text of a verdict: the table at the end of a run, and the message."""

import re

import pytest

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.latency import Cost, Costs
from ratchet.gate.case import ChampionTest, LeftOut, Obstacle
from ratchet.gate.rules import (
    CalibrationResult,
    ChampionResult,
    CostResult,
    ExportResult,
    MetricResult,
    PairedTest,
    ReloadResult,
    RuleResult,
    SlicesResult,
)
from ratchet.gate.verdict import Verdict
from ratchet.gate.verdict_text import message, rule_text, verdict_table
from ratchet.settings.model import GateSettings

RIGHT = ScoreUnit("accuracy", share=True)


def accuracy(passed: bool, interval: Interval, rows: int) -> MetricResult:
    return MetricResult(passed, RIGHT.metric("accuracy", interval), "accuracy", 0.95, 0.5, rows, "accuracy")


def paired(ours: int, theirs: int, better: int, worse: int, difference: Interval, rows: int = 1000) -> PairedTest:
    models = (RIGHT.metric("score", Interval(0.0, right / rows, 1.0)) for right in (ours, theirs))
    return PairedTest(*models, difference, RIGHT, better, worse, exact=True)


ACCURACY = accuracy(True, Interval(0.975, 0.9930, 0.9981), 287)
CALIBRATION = CalibrationResult(True, Interval(0.048, 0.0903, 0.133), confidence=0.95, limit=0.25)
EXPORT = ExportResult(True, 1e-4, largest_difference=3e-8, images=256)
RELOAD = ReloadResult(True, 1e-5, largest_difference=0.0, images=256)
FIRST = Verdict(True, (ACCURACY, ChampionResult(True), CALIBRATION, EXPORT, RELOAD))
COSTS = Costs(Cost(45_056, 0.005, 0.09), Cost(4096, 0.001, 0.02), rows=64)

LOW = accuracy(False, Interval(0.21, 0.25, 0.2946), 400)
COMPARED = ChampionResult(
    True,
    champion="digits version 3",
    comparison=ChampionTest(1, rows=1000, p=0.0025, level=0.0086, remaining=0.041, won=True),
    scores=paired(921, 897, 46, 22, Interval(0.008, 0.024, 0.04)),
    test_images=1400,
    left_out=LeftOut(seen=316, unknown=50),
    input_shapes=((32, 32, 3), (16, 16, 3)),
)
LOST = ChampionResult(
    False,
    champion="digits version 3",
    comparison=ChampionTest(2, rows=1000, p=0.31, level=0.0036, remaining=0.038, won=False),
    scores=paired(900, 897, 25, 22, Interval(-0.01, 0.003, 0.016)),
    test_images=1000,
)


def other_task(obstacle: Obstacle, **changes: object) -> ChampionResult:
    return ChampionResult(False, champion="pets version 3", obstacle=obstacle, test_images=400, **changes)


FAILED: tuple[RuleResult, ...] = (
    LOW,
    LOST,
    SlicesResult(False, 4, ("ward: south",), "ward: south", Interval(-0.3, -0.2, -0.1), tolerance=0.0),
    CalibrationResult(False, Interval(0.26, 0.35, 0.44), confidence=0.95, limit=0.25),
    CostResult(False, 5.0, 4.0, COSTS, "latency"),
    CostResult(False, 11.0, 10.0, COSTS, "size"),
    ExportResult(False, 1e-4, largest_difference=0.02, images=256, other_class=3),
)


def test_table_of_a_first_model_that_passed() -> None:
    assert verdict_table(FIRST).splitlines() == [
        "gate  PASSED (5 of 5 rules)",
        "  ok  accuracy     99.3 % (97.5-99.8 %), minimum 50 %",
        "  ok  champion     none yet",
        "  ok  calibration  ECE 9.0 %, limit 25 %",
        "  ok  ONNX export  max difference 3e-08 on 256 images",
        "  ok  reload       identical predictions on 256 images",
    ]


def test_table_marks_failed_rules_with_their_fix() -> None:
    table = verdict_table(Verdict(False, (LOW, ChampionResult(True), RELOAD)))
    assert table.splitlines() == [
        "gate  REFUSED (1 of 3 rules failed)",
        "  FAILED  accuracy  25.00 % (21.00-29.46 %), minimum 50 %",
        "                    Fix: train a better model, or lower gate.minimum",
        "  ok      champion  none yet",
        "  ok      reload    identical predictions on 256 images",
    ]


def test_table_fits_one_hundred_columns() -> None:
    obstacle = Obstacle("classes", new_classes=tuple(f"class {n}" for n in range(9)), allowed="same")
    table = verdict_table(Verdict(False, (*FAILED, COMPARED, other_task(obstacle))))
    assert max(map(len, table.splitlines())) <= 100


def test_message_has_the_reason_of_each_failed_rule() -> None:
    assert message(FIRST) == FIRST.summary == "Passed, 5 of 5 rules"
    refused = Verdict(False, (LOW, ChampionResult(True), RELOAD))
    assert refused.summary == "Refused, 1 of 3 rules failed"
    assert message(refused) == (
        "Refused, 1 of 3 rules failed. accuracy: 25.00 % (21.00-29.46 %), minimum 50 %. "
        "Fix: train a better model, or lower gate.minimum."
    )


@pytest.mark.parametrize(
    ("result", "reason", "fix"),
    [
        (
            other_task(Obstacle("input", mismatch="it takes float32 pixels, and these are uint8")),
            "it takes float32 pixels, and these are uint8",
            "set registry.model to another name",
        ),
        (
            other_task(Obstacle("no shared class", lost_classes=("frog", "bird"))),
            "it knows none of the new model's classes, only 'frog', 'bird'",
            "set registry.model to another name",
        ),
        (
            other_task(Obstacle("classes", new_classes=("dog",), lost_classes=("owl",), allowed="same")),
            "it does not know 'dog' and it knows 'owl', which the data no longer has, and gate.classes is same",
            "`ratchet set gate.classes=may-change`",
        ),
        (
            other_task(Obstacle("classes", new_classes=("dog",), allowed="same")),
            "it does not know 'dog', and gate.classes is same",
            "`ratchet set gate.classes=may-grow`",
        ),
        (
            other_task(Obstacle("no record")),
            "no record says which samples it was trained on",
            "`ratchet rollback`",
        ),
        (
            other_task(Obstacle("no record", mismatch="it was trained with other code of data.kind")),
            "it was trained with other code of data.kind, so test images may be among its training images and not be "
            "recognised",
            "Once data.group_column names a column that identifies images",
        ),
        (
            other_task(Obstacle("too few images", compared=400, minimum=473, setting=100)),
            "can be compared, and 473 are needed: so many real scores show failures of 1 in 100 (gate.minimum_rows)",
            "lower gate.minimum_rows",
        ),
        (
            other_task(Obstacle("too few images", compared=50, minimum=100), left_out=LeftOut(seen=350)),
            "only 50 of 400 test images can be compared (350 were used to train or select",
            "lower gate.minimum_rows",
        ),
    ],
)
def test_obstacles_have_a_reason_and_a_fix(result: ChampionResult, reason: str, fix: str) -> None:
    text = rule_text(result)
    assert reason in text.measured
    assert fix in text.fix


@pytest.mark.parametrize("result", FAILED, ids=lambda result: result.name)
def test_every_refusal_names_the_setting_that_allows_it(result: RuleResult) -> None:
    text = rule_text(result)
    named = re.findall(r"gate\.(\w+)", text.fix)
    assert named
    assert set(named) <= set(GateSettings.model_fields)
