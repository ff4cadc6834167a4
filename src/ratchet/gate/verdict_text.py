"""Text of a verdict: the table at the end of a run, one line for messages, and the text of each rule."""

from collections.abc import Mapping
from types import MappingProxyType

from ratchet.gate.result_text import RuleText
from ratchet.gate.rules import RuleResult
from ratchet.gate.verdict import RuleOutcome, Verdict, outcome
from ratchet.kinds.registry import noun_of
from ratchet.terminal_lines import WIDEST, wrapped

__all__ = ["message", "rule_text", "verdict_table"]

_MARKS: Mapping[RuleOutcome, str] = MappingProxyType({"passed": "ok", "doubt": "--", "failed": "FAILED"})


def verdict_table(verdict: Verdict, *, columns: int = WIDEST) -> str:
    """Return the verdict as a table of so many columns: a heading, then each rule with its measured values."""
    result, _, counts = verdict.summary.partition(", ")
    heading = f"{result.upper()} ({counts})"
    mark_width = len("ok") if verdict.passed else len("FAILED")
    name_width = max((len(rule.name) for rule in verdict.rules), default=0)
    lines = [f"gate  {heading}"]
    for rule in verdict.rules:
        text, mark = rule_text(rule, verdict.kind), _MARKS[outcome(rule)]
        first = f"  {mark:<{mark_width}}  {rule.name:<{name_width}}  "
        for line in (first + text.short, *([f"{'':{len(first)}}Fix: {text.fix}"] if text.fix else [])):
            lines.append(wrapped(line, columns, len(first)))
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
    return rule.text(noun_of(kind), kind)
