"""How often this champion's test rows were used before: the ledger's `judge` entries in, the gate's `Tries` out.

An entry holds a fingerprint of the test rows and, where no earlier entry has it, a sample of their digests: those that
a power of two divides. So the samples of two sets contain the same rows where the sets do, and an entry takes at most
some 40 KiB.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.gate.level import Tries
from ratchet.gate.verdict import Verdict
from ratchet.registry.ledger import Entry
from ratchet.registry.samples import Samples

__all__ = ["Question", "judgement", "known_try", "tries_before"]

_KEPT = 1024  # digests in a sample, about, and at most twice as many


@dataclass(frozen=True)
class Question:
    """What the gate is asked: asked again it is the same try. `settings` are those of the comparison."""

    run: str
    over: str | None
    answers: str  # digest of the rows that the candidate answers rightly
    rows: Samples  # the test rows
    settings: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all of it."""
        return files.digest_json([self.run, self.over, self.answers, self.rows.fingerprint, dict(self.settings)])


def known_try(entries: Iterable[Entry], question: Question) -> Tries | None:
    """Return the tries before the same question was first asked; None if it was not."""
    for content in _judged(entries):
        if content["question"] == question.digest:
            return Tries(**content["before"])
    return None


def tries_before(
    entries: Sequence[Entry],
    rows: Samples,
    compared: NDArray[np.bool_],
    *,
    model: str = "",
    aside: Sequence[Entry] = (),
) -> Tries:
    """Return what the entries of one model, in their order, have spent before these test rows are compared.

    A promotion of a version that won its comparison restores all. A rollback takes that back, and what the tries since
    then spent remains spent. Rows that no earlier candidate was judged on restore their share.

    Args:
        entries: that count; all of `model`, and each recovery.
        rows: the test rows.
        compared: which of them are compared.
        model: its name, because a recovery concerns all models.
        aside: the model's entries that a recovery set aside. Their tries were made, so they remain spent.
    """
    now, reserved = _spent(entries, aside, model), 1.0
    judged = _judged([*aside, *entries])
    for content in judged:
        if content["p"] is not None:
            reserved = min(reserved, content["reserved"])
    unknown = any(entry.what == "judge" for entry in aside) and not judged  # tries on rows that cannot be read any more
    new = 0.0 if unknown else _share_new(judged, rows, compared)
    count = now.count if new < 1.0 else 0
    return replace(now, count=count, spent=now.spent * (1.0 - new), new_rows=new, reserved=reserved)


def judgement(
    entries: Iterable[Entry], question: Question, before: Tries, verdict: Verdict, *, reserved: float
) -> dict[str, Any]:
    """Return the content of a `judge` entry; p and level are None where there was nothing to compare with."""
    found = verdict.comparison
    fingerprint = question.rows.fingerprint
    known = any(content["rows"] == fingerprint for content in _judged(entries))
    return {
        "question": question.digest,
        "run": question.run,
        "over": question.over,
        "rows": fingerprint,
        "before": vars(before),
        "try": found.number if found else None,
        "compared": found.rows if found else 0,
        "p": found.p if found else None,
        "level": found.level if found else None,
        "won": found.won if found else False,
        "passed": verdict.passed,
        "reserved": reserved if found else 1.0,
        **({} if known else {"sample": _sample(question.rows)}),
    }


def _judged(entries: Iterable[Entry]) -> list[Mapping[str, Any]]:
    """The contents of the `judge` entries that can be read; the chain reports the others."""
    return [entry.content for entry in entries if entry.what == "judge" and "question" in entry.content]


def _spent(entries: Iterable[Entry], aside: Sequence[Entry], model: str) -> Tries:
    now = Tries(new_rows=0.0)
    won: set[str] = set()  # runs whose comparison was won and not yet used by a promotion
    line: list[tuple[str | None, Tries | None]] = []  # champions, and the tries that their promotion restored
    untrusted = {entry.number for entry in aside}
    for entry in sorted((*entries, *aside), key=lambda entry: entry.number):
        run, to = str(entry.content.get("run")), entry.version
        if entry.what == "judge" and entry.number in untrusted:
            now = Tries(count=now.count + 1, spent=now.spent + 1)  # whatever it says was spent before it
            if entry.content.get("won") is True:
                won.add(run)
        elif entry.what == "judge" and entry.content.get("p") is not None:
            before = entry.content["before"]
            now = Tries(count=before["count"] + 1, spent=before["spent"] + 1)
            if entry.content["won"]:
                won.add(run)
        elif entry.what == "promote":
            line.append((entry.version, now if run in won else None))
            if run in won:
                won.discard(run)
                now = Tries()
        elif entry.what in ("rollback", "recover"):
            if entry.what == "recover":
                to = entry.content.get("models", {}).get(model, {}).get("champion")
            while line and line[-1][0] != to:
                undone = line.pop()[1] or Tries()
                now = Tries(count=now.count + undone.count, spent=now.spent + undone.spent)
    return now


def _share_new(judged: Sequence[Mapping[str, Any]], rows: Samples, compared: NDArray[np.bool_]) -> float:
    """The share of the compared rows that no earlier candidate was judged on, by content and by pixels: the smaller."""
    if not judged:
        return 1.0
    fingerprint = rows.fingerprint
    if any(content["rows"] == fingerprint for content in judged):
        return 0.0
    samples = [content["sample"] for content in judged if "sample" in content]
    shares = []
    for name in ("content", "pixels"):
        mine, one_in = getattr(rows, name)[compared], max(sample["one_in"] for sample in samples)
        asked = mine[mine % np.uint64(one_in) == 0]
        known = np.concatenate([_unpacked(sample[name]) for sample in samples])
        shares.append(float(np.mean(~np.isin(asked, known))) if len(asked) else 0.0)
    return min(shares)


def _sample(rows: Samples) -> dict[str, Any]:
    one_in = 1
    while len(rows) > 2 * _KEPT * one_in:
        one_in *= 2
    kept = {
        name: base64.b64encode(np.sort(values[values % np.uint64(one_in) == 0]).astype("<u8").tobytes()).decode()
        for name, values in (("content", rows.content), ("pixels", rows.pixels))
    }
    return {"count": len(rows), "one_in": one_in, **kept}


def _unpacked(text: str) -> NDArray[np.uint64]:
    return np.frombuffer(base64.b64decode(text), "<u8").astype(np.uint64)
