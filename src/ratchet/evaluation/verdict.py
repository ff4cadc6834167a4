"""The gate's answer, as a value: the gate makes it, the report and the registry show it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["RuleResult", "Verdict"]


@dataclass(frozen=True)
class RuleResult:
    """One rule: what it found, what it needed, and a sentence that says both."""

    name: str
    passed: bool
    found: str
    needed: str
    words: str


@dataclass(frozen=True)
class Verdict:
    """The gate's answer. `words` is a paragraph for a person."""

    passed: bool
    rules: tuple[RuleResult, ...]
    words: str

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` reads it."""
        return {"passed": self.passed, "words": self.words, "rules": [asdict(rule) for rule in self.rules]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Verdict":
        """The verdict that `to_json` wrote."""
        rules = tuple(RuleResult(**rule) for rule in content["rules"])
        return cls(passed=content["passed"], rules=rules, words=content["words"])
