"""Text of a verdict: the table at the end of a run, one line for messages, and the details of each rule."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.evaluation.intervals import Interval
from ratchet.gate.verdict import (
    AccuracyResult,
    CalibrationResult,
    ChampionResult,
    Comparison,
    CostResult,
    ExportResult,
    Obstacle,
    PairedCounts,
    ReloadResult,
    RuleResult,
    SlicesResult,
    Verdict,
)

__all__ = ["RuleText", "message", "rule_text", "verdict_table"]

_WIDTH = 100  # columns of the table
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


def verdict_table(verdict: Verdict) -> str:
    """Return the verdict as a table of at most 100 columns: a heading, then each rule with its measured values."""
    failed, count = len(verdict.failed), len(verdict.rules)
    heading = f"PASSED ({count} of {count} rules)" if verdict.passed else f"REFUSED ({failed} of {count} rules failed)"
    mark_width = len("ok") if verdict.passed else len("FAILED")
    name_width = max((len(rule.name) for rule in verdict.rules), default=0)
    lines = [f"gate  {heading}"]
    for rule in verdict.rules:
        text, mark = rule_text(rule), "ok" if rule.passed else "FAILED"
        first = f"  {mark:<{mark_width}}  {rule.name:<{name_width}}  "
        lines += _wrapped(text.short, first)
        if text.fix:
            lines += _wrapped(f"Fix: {text.fix}", " " * len(first))
    return "\n".join(lines)


def message(verdict: Verdict) -> str:
    """Return the one-line summary, and the reason of each failed rule."""
    reasons = []
    for rule in verdict.failed:
        text = rule_text(rule)
        reasons.append(f"{rule.name}: {text.short}. Fix: {text.fix}.")
    return " ".join([f"{verdict.summary}.", *reasons]) if reasons else verdict.summary


def rule_text(rule: RuleResult) -> RuleText:
    """Return the result of one rule as text."""
    match rule:
        case AccuracyResult():
            text = _accuracy(rule)
        case ChampionResult():
            text = _champion(rule)
        case SlicesResult():
            text = _slices(rule)
        case CalibrationResult():
            text = _calibration(rule)
        case CostResult():
            text = _cost(rule)
        case ExportResult():
            text = _export(rule)
        case ReloadResult():
            text = _reload(rule)
    return text


def _points(share: float) -> str:
    """Return a difference of accuracies in percentage points, with its sign."""
    return f"{share * 100:+.2f}".replace("-", "\N{MINUS SIGN}") if share else "0.00"


def _text(measured: str, limit: str, details: str, *, passed: bool, fix: str, short: str = "") -> RuleText:
    full = details if passed else f"{details} Fix: {fix}."
    return RuleText(measured, limit, full, fix="" if passed else fix, short=short or f"{measured}, {limit}")


def _accuracy(rule: AccuracyResult) -> RuleText:
    digits = 1 if rule.passed else 2  # a value just below the minimum must not look like it
    limit = f"minimum {_percent(rule.minimum)}"
    exact = _around(rule.accuracy, 2, ci=f"{_percent(rule.confidence)} CI ")
    details = f"Test accuracy {exact} on {rule.images:,} images, {limit}."
    fix = "train a better model, or lower gate.minimum_accuracy"
    return _text(_around(rule.accuracy, digits), limit, details, passed=rule.passed, fix=fix)


def _champion(rule: ChampionResult) -> RuleText:
    if rule.champion is None:
        details = "There is no champion yet, so there is nothing to compare with."
        return RuleText("none yet", "no comparison", details, short="none yet")
    if rule.obstacle is not None:
        reason, fix = _obstacle(rule, rule.obstacle)
        details = f"The champion ({rule.champion}) cannot be compared: {reason}. Fix: {fix}."
        measured = f"not comparable with {rule.champion}: {reason}"
        return RuleText(measured, "a champion of the same task", details, fix=fix, short=measured)
    comparison, counts = rule.comparison, rule.counts
    assert comparison is not None, "without an obstacle there is a comparison"
    assert counts is not None, "a comparison has counts"
    same = counts.fixed + counts.broken == 0
    ci = f"{_percent(rule.confidence)} CI "
    measured = (
        f"right on the same {comparison.rows:,} images as {rule.champion}"
        if same
        else f"{_difference(counts.difference, ci)}, p = {_probability(comparison.p)}"
    )
    limit = f"limit {_probability(comparison.level)} (try {comparison.number:,})"
    parts = [
        _counted(rule.champion, comparison, counts, ci),
        _compared(rule, comparison),
        _significance(rule, comparison, same=same),
        _level(rule, comparison),
    ]
    details = " ".join(part for part in parts if part)
    if rule.goal == "better":
        fix = "add test images, which reveal smaller differences, or set gate.champion to not-worse"
    else:
        fix = "raise gate.tolerance to allow more"
    return _text(measured, f"p at most {limit.removeprefix('limit ')}", details, passed=rule.passed, fix=fix,
                 short=measured if same and rule.passed else f"{measured}, {limit}")  # fmt: skip


def _obstacle(rule: ChampionResult, obstacle: Obstacle) -> tuple[str, str]:
    """Return the reason and the fix."""
    match obstacle.kind:
        case "input":
            return obstacle.mismatch, _OTHER_TASK
        case "no shared class":
            return f"it knows none of the new model's classes, only {_listed(obstacle.lost_classes)}", _OTHER_TASK
        case "classes":
            parts = [f"it does not know {_listed(obstacle.new_classes)}"] if obstacle.new_classes else []
            if obstacle.lost_classes:
                parts.append(f"it knows {_listed(obstacle.lost_classes)}, which the data no longer has")
            value = "may-change" if obstacle.lost_classes else "may-grow"
            return (
                f"{' and '.join(parts)}, and gate.classes is {obstacle.allowed}",
                f"`ratchet set gate.classes={value}` compares them on the images of the classes that both know; or "
                "set registry.model to another name if it is another task",
            )
        case "no record":
            return (
                "no record says which samples it was trained on, so test images may be among them",
                "`ratchet rollback` to a version with a record, or set registry.model to another name",
            )
        case "too few images":
            return (
                f"only {obstacle.compared:,} of {rule.test_images:,} test images can be compared ({_left_out(rule)}), "
                f"and gate.minimum_rows is {obstacle.minimum:,}",
                "add test images that neither model saw, restore the splits that the champion was trained with "
                "(data.test_fraction, or the split column), or lower gate.minimum_rows",
            )


def _counted(champion: str, comparison: Comparison, counts: PairedCounts, ci: str) -> str:
    if counts.fixed + counts.broken == 0:
        return f"On all {comparison.rows:,} images this model is right exactly where the champion ({champion}) is."
    errors = "1 error" if counts.fixed == 1 else f"{counts.fixed:,} errors"
    return (
        f"On the same {comparison.rows:,} images this model is right on {counts.candidate_right:,} and the champion "
        f"({champion}) on {counts.champion_right:,}: {errors} fixed, {counts.broken:,} new, "
        f"{_difference(counts.difference, ci)}."
    )


def _compared(rule: ChampionResult, comparison: Comparison) -> str:
    """Return how many of the test images were compared, and at which input size."""
    sentences = []
    if comparison.rows < rule.test_images:
        sentences.append(f"These are {comparison.rows:,} of {rule.test_images:,} test images: {_left_out(rule)}.")
    if rule.input_shapes is not None:
        ours, theirs = (" x ".join(map(str, shape)) for shape in rule.input_shapes)
        sentences.append(f"The champion was measured at its own input size: {ours} images resized to {theirs}.")
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
    limit = f" by more than {rule.tolerance * 100:.2f} points" if rule.tolerance else ""
    if rule.passed:
        return f"Not worse{limit}: {test}"
    return f"It may be worse{limit}: {test}" if limit else f"Not shown to be as good (gate.tolerance is 0): {test}"


def _level(rule: ChampionResult, comparison: Comparison) -> str:
    new = f", {rule.new_share:.0%} of which are new" if 0.0 < rule.new_share < 1.0 else ""
    return (
        f"Try {comparison.number:,} on these test images{new} since the last promotion. It may use "
        f"{_probability(comparison.level)} of the {_probability(1 - rule.confidence)} that gate.confidence allows for "
        f"all tries; {_probability(comparison.remaining)} is left. A promotion or new test images restore it."
    )


def _slices(rule: SlicesResult) -> RuleText:
    tolerance = f" by more than {rule.tolerance * 100:.2f} points" if rule.tolerance else ""
    worst = f"{rule.worst} {_difference(rule.difference)}"
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
    fix = "raise gate.slice_tolerance to allow more"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=measured)


def _calibration(rule: CalibrationResult) -> RuleText:
    limit, ci = f"limit {_percent(rule.limit)}", f"{_percent(rule.confidence)} CI "
    measured = f"ECE {_around(rule.ece, 1 if rule.passed else 2, ci=ci)}"
    value = (
        f"ECE {_percent(rule.ece.value, 1)}" if rule.ece.value <= rule.limit else measured
    )  # chance explains the rest
    details = f"Calibration error (ECE) {_around(rule.ece, 2, ci=ci)}, {limit}; the lower end of the interval decides."
    fix = "set evaluation.temperature_scaling, or raise gate.calibration_error"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=f"{value}, {limit}")


def _cost(rule: CostResult) -> RuleText:
    ours, theirs = rule.costs.candidate, rule.costs.champion
    if rule.name == "latency":
        sentence, times = (
            f"Measured side by side it takes {ours.single * 1e3:.3g} ms for one image (champion "
            f"{theirs.single * 1e3:.3g} ms), {ours.batch * 1e3:.3g} ms for {rule.costs.rows} images (champion "
            f"{theirs.batch * 1e3:.3g} ms)",
            "as long",
        )
    else:
        sentence, times = f"The weights take {_bytes(ours.weights)}, the champion's {_bytes(theirs.weights)}", "as much"
    measured, limit = f"{rule.factor:.2f} times the champion's", f"limit {rule.limit:g} times"
    details = f"{sentence}: {rule.factor:.2f} times {times}, {limit}."
    return _text(measured, limit, details, passed=rule.passed, fix=f"raise gate.{rule.name}_factor to allow more")


def _export(rule: ExportResult) -> RuleText:
    limit = f"limit {rule.limit:g}"
    if rule.missing:
        fix = f"change the model and train again, or {_NO_PROGRAM}"
        details = f"There is no ONNX program of the model ({rule.missing}). Fix: {fix}."
        return RuleText("no program", limit, details, fix=fix, short=f"no program ({rule.missing})")
    measured = f"max difference {_largest(rule.largest_difference)} on {rule.images:,} images"
    measured += f", {rule.other_class:,} in another class" if rule.other_class else ""
    agrees = "agrees" if rule.passed else "does not agree"
    same = "" if rule.other_class else ", none in another class"
    details = f"The ONNX program {agrees} with the model: {measured}{same}, {limit}."
    fix = f"raise gate.export_difference, or {_NO_PROGRAM}"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=measured if rule.passed else "")


def _reload(rule: ReloadResult) -> RuleText:
    identical = rule.passed and rule.largest_difference == 0.0
    measured = (
        f"identical predictions on {rule.images:,} images"
        if identical
        else f"max difference {_largest(rule.largest_difference)} on {rule.images:,} images"
    )
    limit = f"limit {rule.limit:g}"
    agrees = "agrees" if rule.passed else "does not agree"
    details = f"The stored model loads and {agrees} with the evaluation: {measured}, {limit}."
    fix = "train again; the stored model is not the one that was evaluated"
    return _text(measured, limit, details, passed=rule.passed, fix=fix, short=measured if rule.passed else "")


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False)


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
