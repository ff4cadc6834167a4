"""The gate's answer, as a value: the gate makes it, the report and the registry show it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Comparison", "RuleResult", "Unused", "Verdict"]


@dataclass(frozen=True)
class RuleResult:
    """One rule: what it found, what it needed, and a sentence that says both."""

    name: str
    passed: bool
    found: str
    needed: str
    words: str


@dataclass(frozen=True)
class Comparison:
    """The test against the champion: which try it is, what it found, and what it may spend."""

    number: int  # of the try, since the last promotion through the gate
    rows: int  # compared
    test_rows: int  # there are
    p: float
    level: float  # p may be so large
    left: float  # of the error, for later tries
    won: bool  # p is at most the level


@dataclass(frozen=True)
class Unused:
    """The test rows that took no part in any comparison, and how many of them the model answers rightly."""

    rows: int
    right: int


@dataclass(frozen=True)
class Verdict:
    """The gate's answer. `words` is a paragraph for a person; `comparison` is None where nothing was compared."""

    passed: bool
    rules: tuple[RuleResult, ...]
    words: str
    comparison: Comparison | None = None
    unused: Unused | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Verdict":
        """The verdict that `to_json` wrote."""
        rules = tuple(RuleResult(**rule) for rule in content["rules"])
        comparison, unused = content.get("comparison"), content.get("unused")
        return cls(
            passed=content["passed"],
            rules=rules,
            words=content["words"],
            comparison=Comparison(**comparison) if comparison else None,
            unused=Unused(**unused) if unused else None,
        )
