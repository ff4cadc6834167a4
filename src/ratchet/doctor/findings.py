"""The doctor's rules, a table in rules.toml, and its findings."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal, NamedTuple

__all__ = ["RULES", "Finding", "Message", "Rule", "describe_finding"]

Severity = Literal["error", "warning"]
_MOST_NAMES = 4


class Rule(NamedTuple):
    """One row of rules.toml, which says what the columns are."""

    measures: str
    problem: str
    fix: str
    source: str
    limit: float = 0.0
    severity: Severity = "error"


RULES = {
    name: Rule(**row) for name, row in tomllib.loads(files(__package__).joinpath("rules.toml").read_text()).items()
}


@dataclass(frozen=True)
class Finding:
    """A certain or probable mistake in a training that is about to begin."""

    rule: str  # key of RULES
    subject: tuple[str, ...]  # names of the layers, tensors, settings, samples or splits concerned
    values: Mapping[str, object]  # measurements for the text
    severity: Severity  # a warning may be intended; preflight passes with it

    @classmethod
    def of(cls, rule: str, /, *subject: str, **values: object) -> "Finding":
        """Return a finding of `rule`, with its severity."""
        return cls(rule, subject, values, RULES[rule].severity)

    def __str__(self) -> str:
        return "{}. Fix: {}".format(*describe_finding(self))

    def warning_if(self, condition: bool) -> "Finding":
        return replace(self, severity="warning") if condition else self


class Message(NamedTuple):
    """Text of one finding."""

    problem: str
    fix: str


def describe_finding(finding: Finding) -> Message:
    """Return the text of a finding, with the first few names of its subject."""
    rule, more = RULES[finding.rule], len(finding.subject) - _MOST_NAMES
    subject = ", ".join(finding.subject[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    values = {"limit": rule.limit, **finding.values, "subject": subject}
    return Message(*(re.sub(r"(\d)%", r"\1 %", text.format_map(values)) for text in (rule.problem, rule.fix)))
