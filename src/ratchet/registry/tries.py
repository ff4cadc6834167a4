"""The number of earlier comparisons with this champion on the same test samples, from the ledger's `judge` entries.

An entry has a fingerprint of the test samples. Where no earlier entry has this fingerprint it also has a subset of
their digests: those that a power of two divides. Two sets that share samples therefore share them in these subsets too,
and an entry takes at most about 40 KiB.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.gate.significance import Tries
from ratchet.gate.verdict import Verdict
from ratchet.registry.ledger import Entry
from ratchet.registry.samples import Samples

__all__ = ["Question", "judgement", "known_try", "tries_before"]

_KEPT = 1024  # digests in a subset, at most twice as many


@dataclass(frozen=True)
class Question:
    """One comparison of a candidate with the champion. A repeated one is the same try.

    `settings` are those that decide the comparison.
    """

    run: str
    over: str | None
    answers: str  # digest of the test samples that the candidate classifies correctly
    rows: Samples  # the test samples
    settings: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over all fields."""
        return files.digest_json([self.run, self.over, self.answers, self.rows.fingerprint, dict(self.settings)])


def known_try(entries: Iterable[Entry], question: Question) -> Tries | None:
    """Return the tries before this question was first asked; None if it is new."""
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
    """Return the tries that were used up before these test samples are compared.

    A promotion of a version that won its comparison restores all tries. A rollback reverts that, and the tries since
    then stay used. Samples that no earlier candidate was judged on restore their share.

    Args:
        entries: the valid entries of `model` and each recovery, in order.
        rows: the test samples.
        compared: bool (samples,), which of them are compared.
        model: its name, because a recovery concerns all models.
        aside: the model's entries that a recovery set aside. Their tries were made, so they stay used.
    """
    now, reserved = _used(entries, aside, model), 1.0
    judged = _judged([*aside, *entries])
    for content in judged:
        if content["p"] is not None:
            reserved = min(reserved, content["reserved"])
    unknown = (
        any(entry.what == "judge" for entry in aside) and not judged
    )  # tries on samples that cannot be read any more
    new = 0.0 if unknown else _share_new(judged, rows, compared)
    count = now.count if new < 1.0 else 0
    return replace(now, count=count, spent=now.spent * (1.0 - new), new_rows=new, reserved=reserved)


def judgement(
    entries: Iterable[Entry], question: Question, before: Tries, verdict: Verdict, *, reserved: float
) -> dict[str, Any]:
    """Return the content of a `judge` entry; p and level are None without a champion to compare with."""
    comparison = verdict.comparison
    fingerprint = question.rows.fingerprint
    known = any(content["rows"] == fingerprint for content in _judged(entries))
    return {
        "question": question.digest,
        "run": question.run,
        "over": question.over,
        "rows": fingerprint,
        "before": vars(before),
        "try": comparison.number if comparison else None,
        "compared": comparison.rows if comparison else 0,
        "p": comparison.p if comparison else None,
        "level": comparison.level if comparison else None,
        "won": comparison.won if comparison else False,
        "passed": verdict.passed,
        "reserved": reserved if comparison else 1.0,
        **({} if known else {"sample": _sample(question.rows)}),
    }


def _judged(entries: Iterable[Entry]) -> list[Mapping[str, Any]]:
    """Return the contents of the readable `judge` entries. The chain reports the others."""
    return [entry.content for entry in entries if entry.what == "judge" and "question" in entry.content]


def _used(entries: Iterable[Entry], aside: Sequence[Entry], model: str) -> Tries:
    now = Tries(new_rows=0.0)
    won: set[str] = set()  # runs that won their comparison and were not promoted yet
    champions: list[tuple[str | None, Tries | None]] = []  # and the tries that their promotion restored
    untrusted = {entry.number for entry in aside}
    for entry in sorted((*entries, *aside), key=lambda entry: entry.number):
        run, to = str(entry.content.get("run")), entry.version
        if entry.what == "judge" and entry.number in untrusted:
            now = Tries(count=now.count + 1, spent=now.spent + 1)  # its content is not trusted
            if entry.content.get("won") is True:
                won.add(run)
        elif entry.what == "judge" and entry.content.get("p") is not None:
            before = entry.content["before"]
            now = Tries(count=before["count"] + 1, spent=before["spent"] + 1)
            if entry.content["won"]:
                won.add(run)
        elif entry.what == "promote":
            champions.append((entry.version, now if run in won else None))
            if run in won:
                won.discard(run)
                now = Tries()
        elif entry.what in ("rollback", "recover"):
            if entry.what == "recover":
                to = entry.state_of(model).get("champion")
            while champions and champions[-1][0] != to:
                undone = champions.pop()[1] or Tries()
                now = Tries(count=now.count + undone.count, spent=now.spent + undone.spent)
    return now


def _share_new(judged: Sequence[Mapping[str, Any]], rows: Samples, compared: NDArray[np.bool_]) -> float:
    """Return the share of compared samples that no earlier candidate was judged on, by content or by pixels.

    The smaller of the two counts.
    """
    if not judged:
        return 1.0
    fingerprint = rows.fingerprint
    if any(content["rows"] == fingerprint for content in judged):
        return 0.0
    samples = [content["sample"] for content in judged if "sample" in content]
    shares = []
    for name in ("content", "pixels"):
        digests, one_in = getattr(rows, name)[compared], max(sample["one_in"] for sample in samples)
        subset = digests[digests % np.uint64(one_in) == 0]
        known = np.concatenate([_unpacked(sample[name]) for sample in samples])
        shares.append(float(np.mean(~np.isin(subset, known))) if len(subset) else 0.0)
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
