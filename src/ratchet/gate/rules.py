"""The gate's rules. A rule is a function of the case that returns its measured values, and an entry in `RULES`.

It returns None where it is switched off, or where there is nothing to measure. To add a rule, write the function here,
its result in verdict.py and its text in text.py.
"""

import math
from collections.abc import Callable
from typing import Literal

from ratchet.errors import SettingsError
from ratchet.evaluation.latency import Costs
from ratchet.evaluation.slices import rows_by_slice
from ratchet.exports.program import NotExported
from ratchet.gate.case import Candidate, Case, Champion
from ratchet.gate.significance import FIRST_TRY, Tries
from ratchet.gate.verdict import (
    BaselineRule,
    CalibrationResult,
    ChampionResult,
    ConstantRule,
    CostResult,
    ExportResult,
    LeftOut,
    MetricResult,
    PairedTest,
    ReloadResult,
    RuleResult,
    ScoresResult,
    SlicesResult,
    Verdict,
)
from ratchet.settings.model import EvaluationSettings, GateSettings

__all__ = ["RULES", "Rule", "judge", "reload_rule"]

Rule = Callable[[Case], RuleResult | None]


def finite_scores(case: Case) -> ScoresResult | None:
    """Refuse models that cannot be compared, because a score is not a finite number; None where all are finite."""
    return ScoresResult(False, case.not_finite, len(case.candidate.score)) if case.not_finite else None


def minimum(case: Case) -> MetricResult | None:
    """Check that the metric of gate.minimum_metric is at least gate.minimum, or at most for an error; none: off.

    Raises:
        SettingsError: there is no such metric.
    """
    limit, candidate, chosen = case.gate.minimum, case.candidate, case.gate.minimum_metric
    key = candidate.default_metric if chosen == "auto" else chosen
    if key == "none":
        return None
    metric = candidate.metrics.get(key)
    if metric is None and key != candidate.default_metric:
        raise SettingsError(
            f"params.yaml: gate.minimum_metric: found {key}. Allowed for these data: auto, none, "
            f"{', '.join(candidate.metrics)}"
        )
    value = math.nan if metric is None else metric.interval.value
    passed = value <= limit if metric and not metric.larger_is_better else value >= limit
    name: Literal["accuracy", "minimum"] = "accuracy" if key == "accuracy" else "minimum"
    return MetricResult(passed, metric, key, case.evaluation.confidence, limit, len(candidate.score), name)


def better_than_constant(case: Case) -> ConstantRule | None:
    """Check that a first version is significantly better than the best constant answer (gate.constant).

    A later version must be better than the champion instead. A model that gives one answer to nearly all samples fails
    whatever the champion is, unless gate.constant is off. None where this was not measured.
    """
    result, required = case.candidate.constant, case.champion is None and case.gate.constant == "required"
    if result is None:
        return None
    passed = case.gate.constant == "off" or (not result.one_answer and (result.is_better or not required))
    return ConstantRule(passed, result, case.evaluation.confidence, len(case.candidate.score), required)


def better_than_baseline(case: Case) -> BaselineRule | None:
    """Check that the model is significantly better than its baseline, if gate.baseline requires it.

    None where no baseline was measured.
    """
    result, required = case.candidate.baseline, case.gate.baseline == "required"
    if result is None:
        return None
    passed = result.network_is_better or not required
    return BaselineRule(passed, result, case.evaluation.confidence, required)


def better_than_champion(case: Case) -> ChampionResult:
    """Check that the candidate is significantly better than the champion, or not worse (gate.champion).

    A test on the same samples decides, at the level of this try (see significance.py). A model whose scores are exactly
    the champion's is not worse at any level.
    """
    champion, gate, comparison = case.champion, case.gate, case.comparison
    if champion is None:
        return ChampionResult(True)
    scores, passed = None, False
    if comparison is not None:
        ours, theirs = (case.mean(score) for score in case.scores)
        scores = PairedTest(ours, theirs, case.difference(), case.candidate.unit, *case.counts, case.is_exact)
        passed = comparison.won or (case.counts == (0, 0) and gate.champion == "not-worse")
    shapes, obstacle = (case.candidate.input_shape, champion.input_shape), case.obstacle
    return ChampionResult(
        passed,
        champion=champion.name,
        obstacle=obstacle,
        comparison=comparison,
        scores=scores,
        goal=gate.champion,
        tolerance=gate.tolerance,
        confidence=gate.confidence,
        test_images=len(case.candidate.score),
        new_share=case.tries.new_rows,
        left_out=case.left_out if obstacle is None or obstacle.kind == "too few images" else LeftOut(),
        input_shapes=shapes if shapes[0] != shapes[1] else None,
    )


def no_slice_worse(case: Case) -> SlicesResult | None:
    """Check that on no slice the candidate is significantly worse than the champion (gate.slice_tolerance).

    None without slices, or without a champion to compare with.
    """
    if case.comparable is None:
        return None
    compared = {name: [values[row] for row in case.compared] for name, values in case.candidate.slices.items()}
    slices = rows_by_slice(compared, least=case.evaluation.slice_rows)
    if not slices:
        return None
    tolerance = case.gate.slice_tolerance
    differences = {f"{column}: {value}": case.difference(rows, looks=len(slices)) for column, value, rows in slices}
    worst = min(differences, key=lambda name: (differences[name].high, differences[name].value))
    worse = tuple(name for name, difference in differences.items() if difference.high < -tolerance)
    return SlicesResult(not worse, len(slices), worse, worst, differences[worst], tolerance, case.candidate.unit)


def calibrated(case: Case) -> CalibrationResult | None:
    """Check that the calibration error is not significantly above gate.calibration_error; 1 switches the rule off.

    The lower end of its interval decides: on few samples a well calibrated model shows some error by chance.
    None also where the outputs are not probabilities of classes.
    """
    error, limit = case.candidate.calibration_error, case.gate.calibration_error
    if error is None or limit == 1.0:
        return None
    return CalibrationResult(error.low <= limit, ece=error, confidence=case.evaluation.confidence, limit=limit)


def latency(case: Case) -> CostResult | None:
    """Check that latency is at most gate.latency_factor times the champion's, for one image and a batch; 0: off.

    None also where the two models were not measured side by side.
    """
    costs, limit = _costs(case), case.gate.latency_factor
    if costs is None or limit == 0.0:
        return None
    ours, theirs = costs.candidate, costs.champion
    factor = max(ours.single / theirs.single, ours.batch / theirs.batch)
    return CostResult(factor <= limit, factor, limit, costs, "latency")


def size(case: Case) -> CostResult | None:
    """Check that the weights take at most gate.size_factor times the champion's bytes; 0: off."""
    costs, limit = _costs(case), case.gate.size_factor
    if costs is None or limit == 0.0:
        return None
    factor = costs.candidate.weights / costs.champion.weights
    return CostResult(factor <= limit, factor, limit, costs, "size")


def _costs(case: Case) -> Costs | None:
    return case.comparable.costs if case.comparable else None


def export_parity(case: Case) -> ExportResult | None:
    """Check that the ONNX program's probabilities differ from the model's by at most gate.export_difference; 1: off.

    None also where the model was stored without a program (registry.export).
    """
    exported, limit = case.candidate.exported, case.gate.export_difference
    if exported is None or limit == 1.0:
        return None
    if isinstance(exported, NotExported):
        return ExportResult(False, limit, missing=exported.reason)
    return ExportResult(
        exported.images > 0 and exported.largest_difference <= limit,  # NaN does not pass
        limit,
        largest_difference=_finite(exported.largest_difference),
        images=exported.images,
        other_class=exported.other_class,
    )


def reload_rule(*, images: int, largest_difference: float, tolerance: float) -> ReloadResult:
    """Return the result of the last rule: the registered model, once loaded, answers as it did in the evaluation.

    Args:
        images: number of test images that the loaded model answered.
        largest_difference: of a probability.
        tolerance: largest difference that passes.
    """
    passed = images > 0 and largest_difference <= tolerance  # NaN does not pass
    return ReloadResult(passed, tolerance, largest_difference=_finite(largest_difference), images=images)


RULES: tuple[Rule, ...] = (
    finite_scores,
    minimum,
    better_than_constant,
    better_than_baseline,
    better_than_champion,
    no_slice_worse,
    calibrated,
    latency,
    size,
    export_parity,
)
"""The rules in their order. `judge` adds the result of `reload_rule`, which needs the stored model, as the last."""


def judge(
    candidate: Candidate,
    champion: Champion | None,
    settings: GateSettings,
    evaluation: EvaluationSettings,
    *,
    reloaded: ReloadResult,
    tries: Tries = FIRST_TRY,
    seed: int = 0,
) -> Verdict:
    """Apply every rule to the candidate; all must pass.

    Only the comparison with the champion uses up significance level. Every other rule can only refuse, which makes a
    wrong promotion rarer.

    Args:
        candidate: the model that is judged.
        champion: the model that it would replace; None: there is none yet.
        settings: of the gate.
        evaluation: settings of the slices and of the bootstrap.
        reloaded: result of `reload_rule` for the registered model.
        tries: comparisons before this one.
        seed: of the bootstrap's resamples.
    """
    case = Case(candidate, champion, settings, evaluation, tries=tries, seed=seed)
    rules = (*(result for rule in RULES if (result := rule(case)) is not None), reloaded)
    return Verdict(all(rule.passed for rule in rules), rules, unused=case.unused, kind=candidate.kind)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
