"""Does the stored model really answer?"""

from ratchet.gate.verdict import RuleResult

__all__ = ["answers_rule"]


def answers_rule(*, rows: int, largest_difference: float, tolerance: float) -> RuleResult:
    """Does the registered model, once loaded, answer `rows` rows as evaluation did, to within `tolerance`?

    Both in the unit the model answers in: probabilities, or logits.
    """
    passed = rows > 0 and largest_difference <= tolerance  # NaN does not pass
    found = f"largest difference {largest_difference:.1e} on {rows:,} rows"
    if passed and largest_difference == 0.0:
        words = f"The stored model loads and answers {rows:,} rows exactly as it did in evaluation."
    elif passed:
        words = f"The stored model loads and answers {rows:,} rows as it did in evaluation ({found})."
    else:
        words = (
            f"The stored model loads, but does not answer as it did in evaluation: {found}, allowed is "
            f"{tolerance:.1e}. What was saved is not what was measured: train again."
        )
    return RuleResult("answers", passed, found, f"at most {tolerance:.1e}", words)
