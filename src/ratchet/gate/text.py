"""Text of a verdict: the table at the end of a run, one line for messages, and the details of each rule."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.wording import (
    SAMPLES,
    baseline_sentence,
    baseline_text,
    ci_text,
    constant_sentence,
    constant_text,
    gain_text,
    number,
    range_text,
    value_text,
)
from ratchet.gate.verdict import (
    BaselineRule,
    CalibrationResult,
    ChampionResult,
    Comparison,
    ConstantRule,
    CostResult,
    ExportResult,
    MetricResult,
    Obstacle,
    ReloadResult,
    RuleOutcome,
    RuleResult,
    ScoresResult,
    SlicesResult,
    Verdict,
    outcome,
)

__all__ = ["RuleText", "message", "rule_text", "verdict_table"]

Noun = tuple[str, str]  # of one sample and of several: "image", "images"

_WIDTH = 100  # columns of the table
_MARKS: Mapping[RuleOutcome, str] = MappingProxyType({"passed": "ok", "doubt": "--", "failed": "FAILED"})
_OTHER_TASK = "set registry.model to another name, because it is another task"
_NO_PROGRAM = "`registry.export: none` stores a model without a program"


@dataclass(frozen=True)
class RuleText:
    """One rule's result as text.

    Attributes:
        measured: values.
        limit: that they were compared with.
        details: every value, in sentences.
        fix: ways to pass, with the setting that decides; empty if the rule passed.
        short: `measured` and `limit` in one line.
    """

    measured: str
    limit: str
    details: str
    fix: str = ""
    short: str = ""


def verdict_table(verdict: Verdict, *, columns: int = _WIDTH) -> str:
    """Return the verdict as a table of so many columns: a heading, then each rule with its measured values."""
    result, _, counts = verdict.summary.partition(", ")
    heading = f"{result.upper()} ({counts})"
    mark_width = len("ok") if verdict.passed else len("FAILED")
    name_width = max((len(rule.name) for rule in verdict.rules), default=0)
    lines = [f"gate  {heading}"]
    for rule in verdict.rules:
        text, mark = rule_text(rule, verdict.kind), _MARKS[outcome(rule)]
        first = f"  {mark:<{mark_width}}  {rule.name:<{name_width}}  "
        lines += _wrapped(text.short, first, columns)
        if text.fix:
            lines += _wrapped(f"Fix: {text.fix}", " " * len(first), columns)
    return "\n".join(lines)


def message(verdict: Verdict) -> str:
    """Return the one-line summary, and the reason of each rule that failed or passed with a doubt."""
    reasons = []
    for rule in verdict.failed or verdict.doubts:
        text = rule_text(rule, verdict.kind)
        reasons.append(f"{rule.name}: {text.short}." + (f" Fix: {text.fix}." if text.fix else ""))
    return " ".join([f"{verdict.summary}.", *reasons]) if reasons else verdict.summary


def rule_text(rule: RuleResult, kind: str = "image") -> RuleText:
    """Return the result of one rule as text; `kind` is that of the samples (`Verdict.kind`)."""
    noun = SAMPLES.get(kind, ("sample", "samples"))
    match rule:
        case MetricResult():
            text = _metric(rule, noun)
        case BaselineRule():
            text = _baseline(rule, kind)
        case ScoresResult():
            text = _scores(rule, noun)
        case ConstantRule():
            text = _constant(rule, kind)
        case ChampionResult():
            text = _champion(rule, noun)
        case SlicesResult():
            text = _slices(rule)
        case CalibrationResult():
            text = _calibration(rule)
        case CostResult():
            text = _cost(rule, noun)
        case ExportResult():
            text = _export(rule, noun)
        case ReloadResult():
            text = _reload(rule, noun)
    return text


def _points(share: float) -> str:
    """Return a difference of accuracies in percentage points, with its sign."""
    return f"{share * 100:+.2f}".replace("-", "\N{MINUS SIGN}") if share else "0.00"


def _text(measured: str, limit: str, details: str, *, passed: bool, fix: str, short: str = "") -> RuleText:
    full = details if passed else f"{details} Fix: {fix}."
    return RuleText(measured, limit, full, fix="" if passed else fix, short=short or f"{measured}, {limit}")


def _metric(rule: MetricResult, noun: Noun) -> RuleText:
    metric = rule.metric
    if metric is None:
        details = f"The metric {rule.key} is not defined on the {rule.rows:,} test {noun[1]}."
        return _text(f"{rule.key} not defined", f"gate.minimum {rule.minimum:g}", details, passed=False,
                     fix="name another metric in gate.minimum_metric")  # fmt: skip
    shown = _percent(rule.minimum) if metric.share else f"{rule.minimum:g}"
    limit = f"{'minimum' if metric.larger_is_better else 'maximum'} {shown}"
    details = f"Test {metric.name} {ci_text(metric, rule.confidence, digits=2)} on {rule.rows:,} {noun[1]}, {limit}."
    digits = 1 if rule.passed else 2  # a value just below the minimum must not look like it
    measured = f"{metric.name} {ci_text(metric, rule.confidence, digits=digits)}"
    if rule.name == metric.name:  # the table has it in the column before
        measured = f"{value_text(metric, digits=digits)} ({range_text(metric, digits=digits)})"
    fix = f"train a better model, or {'lower' if metric.larger_is_better else 'raise'} gate.minimum"
    return _text(measured, limit, details, passed=rule.passed, fix=fix)


def _scores(rule: ScoresResult, noun: Noun) -> RuleText:
    counts = " and ".join(f"{name} on {count:,} of {rule.rows:,} test {noun[1]}" for name, count in rule.counts)
    fix = "train again with a lower training.learning_rate; of a champion, `ratchet rollback` to another version"
    return _text(f"not finite numbers: {counts}", "finite numbers", f"The outputs are not finite numbers: {counts}.",
                 passed=rule.passed, fix=fix, short=f"not finite numbers: {counts}")  # fmt: skip


def _constant(rule: ConstantRule, kind: str) -> RuleText:
    result = rule.result
    measured = constant_text(result, rule.confidence, rule.rows, kind)
    limit = "significantly better (gate.constant)" if rule.required else "more than one answer"
    fix = "add training samples, of rare answers above all, or train longer; see `ratchet preflight`"
    if not result.one_answer:
        fix = "train a better model, add test samples, or set gate.constant to report"
    details = constant_sentence(result, rule.confidence, rule.rows, kind)
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=measured)


def _baseline(rule: BaselineRule, kind: str) -> RuleText:
    result = rule.result
    details = baseline_sentence(result, rule.confidence, kind)
    measured = baseline_text(result, rule.confidence, kind)
    limit = "significantly better (gate.baseline)" if rule.required else "reported only (gate.baseline)"
    fix = "train a better model, use the baseline with model.name, or set gate.baseline to report"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=measured)


def _champion(rule: ChampionResult, noun: Noun) -> RuleText:
    if rule.champion is None:
        details = "There is no champion yet, so there is nothing to compare with."
        return RuleText("none yet", "no comparison", details, short="none yet")
    if rule.obstacle is not None:
        reason, fix = _obstacle(rule, rule.obstacle, noun)
        if rule.obstacle.kind == "same weights":
            measured = f"nothing new: the weights of {rule.champion}"
            return RuleText(measured, "other weights", f"{reason}. Fix: {fix}.", fix=fix, short=measured)
        details = f"The champion ({rule.champion}) cannot be compared: {reason}. Fix: {fix}."
        measured = f"not comparable with {rule.champion}: {reason}"
        return RuleText(measured, "a champion of the same task", details, fix=fix, short=measured)
    comparison = rule.comparison
    assert comparison is not None, "without an obstacle there is a comparison"
    ci = f"{_percent(rule.confidence)} CI "
    same, gain, sentence = _paired(rule, comparison, noun, ci)
    measured = same or f"{gain}, p = {_probability(comparison.p)}"
    limit = f"limit {_probability(comparison.level)} (try {comparison.number:,})"
    parts = [
        sentence,
        _compared(rule, comparison, noun),
        _significance(rule, comparison, same=bool(same)),
        _level(rule, comparison, noun),
    ]
    details = " ".join(part for part in parts if part)
    if rule.goal == "better":
        fix = f"add test {noun[1]}, which reveal smaller differences, or set gate.champion to not-worse"
    else:
        fix = "raise gate.tolerance to allow more"
    return _text(measured, f"p at most {limit.removeprefix('limit ')}", details, passed=rule.passed, fix=fix,
                 short=measured if same and rule.passed else f"{measured}, {limit}")  # fmt: skip


def _obstacle(rule: ChampionResult, obstacle: Obstacle, noun: Noun) -> tuple[str, str]:
    """Return the reason and the fix."""
    match obstacle.kind:
        case "input":
            return obstacle.mismatch, _OTHER_TASK
        case "scores":
            return f"scores of {obstacle.mismatch} are not finite numbers", "see the rule `scores`"
        case "problem":
            return f"it was trained for {obstacle.mismatch}", _OTHER_TASK
        case "targets":
            ours, theirs = (_listed(names) or "nothing more" for names in (obstacle.new_classes, obstacle.lost_classes))
            return f"it predicts other targets ({theirs}; the new model: {ours})", _OTHER_TASK
        case "no shared class":
            return f"it knows none of the new model's classes, only {_listed(obstacle.lost_classes)}", _OTHER_TASK
        case "classes":
            return _other_classes(obstacle, noun)
        case "same weights":
            return (
                f"This training has given exactly the weights of the champion ({rule.champion}): nothing new, so "
                "nothing was compared and no try was used",
                "train with other data or settings",
            )
        case "no record":
            return (
                f"no record says which samples it was trained on, so test {noun[1]} may be among them",
                "`ratchet rollback` to a version with a record, or set registry.model to another name",
            )
        case "too few images":
            why = f" ({_left_out(rule)})" if _left_out(rule) else ""
            return (
                f"only {obstacle.compared:,} of {rule.test_images:,} test {noun[1]} can be compared{why}, and "
                f"gate.minimum_rows asks for {obstacle.minimum:,}",
                f"add test {noun[1]} that neither model saw, restore the splits that the champion was trained with "
                "(data.test_fraction, or the split column), or lower gate.minimum_rows",
            )


def _other_classes(obstacle: Obstacle, noun: Noun) -> tuple[str, str]:
    """Return the reason and the fix if the classes changed more than gate.classes allows."""
    parts = [f"it does not know {_listed(obstacle.new_classes)}"] if obstacle.new_classes else []
    if obstacle.lost_classes:
        parts.append(f"it knows {_listed(obstacle.lost_classes)}, which the data no longer has")
    value = "may-change" if obstacle.lost_classes else "may-grow"
    return (
        f"{' and '.join(parts)}, and gate.classes is {obstacle.allowed}",
        f"`ratchet set gate.classes={value}` compares them on the {noun[1]} of the classes that both know; or "
        "set registry.model to another name if it is another task",
    )


def _paired(rule: ChampionResult, comparison: Comparison, noun: Noun, ci: str) -> tuple[str, str, str]:
    """Return a text if all scores are the same, the difference, and a sentence with both models' values."""
    scores, rows = rule.scores, f"{comparison.rows:,} {noun[1]}"
    assert scores is not None, "a comparison has scores"
    unit, equal = scores.unit, scores.better + scores.worse == 0
    if scores.exact:
        gain = _difference(scores.difference, ci)
        if equal:
            same = f"right on the same {rows} as {rule.champion}"
            return same, gain, f"On all {rows} this model is right exactly where the champion ({rule.champion}) is."
        ours, theirs = (round(model.interval.value * comparison.rows) for model in (scores.candidate, scores.champion))
        errors = "1 error" if scores.better == 1 else f"{scores.better:,} errors"
        return "", gain, (
            f"On the same {rows} this model is right on {ours:,} and the champion ({rule.champion}) on {theirs:,}: "
            f"{errors} fixed, {scores.worse:,} new, {gain}."
        )  # fmt: skip
    gain = f"{unit.name} {gain_text(scores.difference, factor=abs(unit.factor), share=unit.share, ci=ci)}"
    if equal:
        same = f"same {unit.name} on each of {rows} as {rule.champion}"
        return same, gain, f"On all {rows} this model scores exactly as {rule.champion}."
    return "", gain, (
        f"On the same {rows} this model has {unit.name} {value_text(scores.candidate)} and the champion "
        f"({rule.champion}) {value_text(scores.champion)}: better on {scores.better:,}, worse on {scores.worse:,}, "
        f"{gain}."
    )  # fmt: skip


def _compared(rule: ChampionResult, comparison: Comparison, noun: Noun) -> str:
    """Return how many of the test samples were compared, and at which input size."""
    sentences = []
    if comparison.rows < rule.test_images:
        sentences.append(f"These are {comparison.rows:,} of {rule.test_images:,} test {noun[1]}: {_left_out(rule)}.")
    if rule.input_shapes is not None:
        ours, theirs = (" x ".join(map(str, shape)) for shape in rule.input_shapes)
        sentences.append(f"The champion was measured at its own input size: {ours} {noun[1]} resized to {theirs}.")
    return " ".join(sentences)


def _left_out(rule: ChampionResult) -> str:
    reasons = (
        (rule.left_out.seen, "were used to train or select one of the two models"),
        (rule.left_out.unknown, "are of classes that the champion does not know"),
        (rule.left_out.reserved, "are reserved (gate.reserved_fraction)"),
    )
    return ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)


def _significance(rule: ChampionResult, comparison: Comparison, *, same: bool) -> str:
    if same and rule.passed:
        return "It is not worse."
    test = f"p = {_probability(comparison.p)}, limit {_probability(comparison.level)}."
    if rule.goal == "better":
        return f"{'Significantly' if rule.passed else 'Not significantly'} better: {test}"
    limit = _tolerance(rule.tolerance, rule.scores.unit if rule.scores else None)
    if rule.passed:
        return f"Not worse{limit}: {test}"
    return f"It may be worse{limit}: {test}" if limit else f"Not shown to be as good (gate.tolerance is 0): {test}"


def _level(rule: ChampionResult, comparison: Comparison, noun: Noun) -> str:
    new = f", {rule.new_share:.0%} of which are new" if 0.0 < rule.new_share < 1.0 else ""
    return (
        f"Try {comparison.number:,} on these test {noun[1]}{new} since the last promotion. It may use "
        f"{_probability(comparison.level)} of the {_probability(1 - rule.confidence)} that gate.confidence allows for "
        f"all tries; {_probability(comparison.remaining)} is left. A promotion restores it, and a test set without "
        f"any of these {noun[1]}."
    )


def _slices(rule: SlicesResult) -> RuleText:
    unit, tolerance = rule.unit, _tolerance(rule.tolerance, rule.unit)
    change = _difference(rule.difference)
    if unit is not None and not unit.share:
        change = f"{unit.name} {gain_text(rule.difference, factor=abs(unit.factor), share=unit.share)}"
    worst = f"{rule.worst} {change}"
    if rule.passed:
        measured = f"none of {rule.count} significantly worse{tolerance}"
        details = (
            f"On none of {rule.count} slices is it significantly worse than the champion{tolerance}. Lowest: {worst}."
        )
    else:
        measured = f"{len(rule.worse)} of {rule.count} significantly worse{tolerance}: {worst}"
        details = (
            f"On {len(rule.worse)} of {rule.count} slices it is significantly worse than the champion{tolerance}: "
            f"{_listed(rule.worse)}. Lowest: {worst}."
        )
    limit = f"no slice whose interval ends below {_points(-rule.tolerance)} points"
    if unit is not None and not unit.share:
        limit = f"no slice whose interval ends below {number(-rule.tolerance * abs(unit.factor))}"
    fix = "raise gate.slice_tolerance to allow more"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=measured)


def _tolerance(tolerance: float, unit: ScoreUnit | None) -> str:
    if not tolerance:
        return ""
    if unit is None or unit.share:
        return f" by more than {tolerance * 100:.2f} points"
    return f" by more than {number(tolerance * abs(unit.factor))}"


def _calibration(rule: CalibrationResult) -> RuleText:
    limit, ci = f"limit {_percent(rule.limit)}", f"{_percent(rule.confidence)} CI "
    measured = f"ECE {_around(rule.ece, 1 if rule.passed else 2, ci=ci)}"
    value = (
        f"ECE {_percent(rule.ece.value, 1)}" if rule.ece.value <= rule.limit else measured
    )  # chance explains the rest
    details = f"Calibration error (ECE) {_around(rule.ece, 2, ci=ci)}, {limit}; the lower end of the interval decides."
    fix = "set evaluation.temperature_scaling, or raise gate.calibration_error"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=f"{value}, {limit}")


def _cost(rule: CostResult, noun: Noun) -> RuleText:
    ours, theirs = rule.costs.candidate, rule.costs.champion
    if rule.name == "latency":
        sentence, times = (
            f"Measured side by side it takes {ours.single * 1e3:.3g} ms for one {noun[0]} (champion "
            f"{theirs.single * 1e3:.3g} ms), {ours.batch * 1e3:.3g} ms for {rule.costs.rows} {noun[1]} (champion "
            f"{theirs.batch * 1e3:.3g} ms)",
            "as long",
        )
    else:
        sentence, times = f"The weights take {_bytes(ours.weights)}, the champion's {_bytes(theirs.weights)}", "as much"
    measured, limit = f"{rule.factor:.2f} times the champion's", f"limit {rule.limit:g} times"
    details = f"{sentence}: {rule.factor:.2f} times {times}, {limit}."
    return _text(measured, limit, details, passed=rule.passed, fix=f"raise gate.{rule.name}_factor to allow more")


def _export(rule: ExportResult, noun: Noun) -> RuleText:
    limit = f"limit {rule.limit:g}"
    if rule.missing:
        fix = f"change the model and train again, or {_NO_PROGRAM}"
        details = f"There is no ONNX program of the model ({rule.missing}). Fix: {fix}."
        return RuleText("no program", limit, details, fix=fix, short=f"no program ({rule.missing})")
    measured = f"max difference {_largest(rule.largest_difference)} on {rule.images:,} {noun[1]}"
    measured += f", {rule.other_class:,} in another class" if rule.other_class else ""
    agrees = "agrees" if rule.passed else "does not agree"
    same = "" if rule.other_class else ", none in another class"
    details = f"The ONNX program {agrees} with the model: {measured}{same}, {limit}."
    fix = f"raise gate.export_difference, or {_NO_PROGRAM}"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=measured if rule.passed else "")


def _reload(rule: ReloadResult, noun: Noun) -> RuleText:
    identical = rule.passed and rule.largest_difference == 0.0
    measured = (
        f"identical predictions on {rule.images:,} {noun[1]}"
        if identical
        else f"max difference {_largest(rule.largest_difference)} on {rule.images:,} {noun[1]}"
    )
    limit = f"limit {rule.limit:g}"
    agrees = "agrees" if rule.passed else "does not agree"
    details = f"The stored model loads and {agrees} with the evaluation: {measured}, {limit}."
    fix = "train again; the stored model is not the one that was evaluated"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=measured if rule.passed else "")


def _wrapped(text: str, first: str, columns: int) -> list[str]:
    indent = " " * len(first)
    return textwrap.wrap(text, columns, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def _percent(share: float, digits: int | None = None) -> str:
    return f"{100 * share:g} %" if digits is None else f"{100 * share:.{digits}f} %"


def _around(interval: Interval, digits: int, *, ci: str = "") -> str:
    """Return a share with its confidence interval: "99.3 % (97.5-99.8 %)"."""
    low, high = (f"{100 * bound:.{digits}f}" for bound in (interval.low, interval.high))
    return f"{_percent(interval.value, digits)} ({ci}{low}-{high} %)"


def _difference(difference: Interval, ci: str = "") -> str:
    """Return a difference in points with its confidence interval."""
    return f"{_points(difference.value)} points ({ci}{_points(difference.low)} to {_points(difference.high)})"


def _probability(value: float) -> str:
    """Return a probability with two digits: 0.05, 0.00031, 1.2e-07."""
    return f"{value:.2g}"


def _largest(difference: float | None) -> str:
    return "not a number" if difference is None else f"{difference:.2g}"


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _bytes(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"
