"""The number of earlier comparisons with this champion on the same test samples, from the ledger's `judge` entries.

A try belongs to the samples it was made on. A test set that shares a sample with an earlier one inherits its tries, and
those that it inherited. So no order of growing, shrinking, alternating or overlapping sets restores what is used. A set
whose samples are identified in another way (other columns of a table, other code of an own kind) may have any of them.

An entry has a fingerprint of the test samples. Where no earlier entry has this fingerprint it also has a subset of
their digests: those that a power of two divides. Two sets that share samples therefore share them in these subsets too,
and an entry takes at most about 40 KiB.
"""

import base64
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.gate.significance import Tries
from ratchet.gate.verdict import Verdict
from ratchet.registry.ledger import LedgerEntry
from ratchet.registry.sample_digests import Samples

__all__ = ["TryKey", "judgement", "known_try", "tries_before"]

_KEPT = 1024  # digests in a subset, at most twice as many


@dataclass(frozen=True)
class TryKey:
    """One comparison of a candidate with the champion. A repeated one is the same try, also of another run.

    `settings` are those that decide the comparison.
    """

    run: str
    over: str | None
    answers: str  # digest of the test samples that the candidate classifies correctly
    rows: Samples  # the test samples
    settings: Mapping[str, Any]
    units: str = ""  # digests of the units of the compared samples; empty: each is its own unit

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over all that decides the result."""
        units = [self.units] if self.units else []
        return files.digest_json([self.over, self.answers, self.rows.fingerprint, dict(self.settings), *units])


def known_try(entries: Iterable[LedgerEntry], question: TryKey) -> Tries | None:
    """Return the tries before this question was first asked; None if it is new."""
    for content in _judged(entries):
        if content["question"] == question.digest:
            before = content["before"]
            return Tries(before["count"], before["spent"], before["new_rows"])
    return None


def tries_before(
    entries: Sequence[LedgerEntry],
    rows: Samples,
    compared: NDArray[np.bool_],
    *,
    model: str = "",
    aside: Sequence[LedgerEntry] = (),
) -> Tries:
    """Return the tries that were used up before these test samples are compared.

    A promotion of a version that won its comparison restores all tries. A rollback reverts that, and the tries since
    then stay used. A test set without any sample of an earlier one starts at the first try.

    Args:
        entries: the valid entries of `model` and each recovery, in order.
        compared: bool (samples,), which of them are compared.
        model: its name, because a recovery concerns all models.
        aside: the model's entries that a recovery set aside. Their tries were made, so they stay used, on all samples.
    """
    judged = _judged([*aside, *entries])
    earlier = _KnownRows(judged, rows, compared)
    now = Tries()
    untrusted = {entry.number for entry in aside}
    for entry in _since_promotion([*entries, *aside], untrusted, model):
        if entry.number in untrusted:
            now = replace(now, count=now.count + 1, spent=now.spent + 1)
        elif earlier.include(entry.content["rows"]):
            before = entry.content["before"]  # with what that set inherited
            count, spent = max(now.count, before["count"]), max(now.spent, before["spent"])
            now = replace(now, count=count + 1, spent=spent + 1)
    unreadable = any(entry.what == "judge" for entry in aside) and not judged
    return replace(now, new_rows=0.0 if unreadable else earlier.share_new)


def judgement(entries: Iterable[LedgerEntry], question: TryKey, before: Tries, verdict: Verdict) -> dict[str, Any]:
    """Return the content of a `judge` entry; p and level are None without a champion to compare with."""
    comparison = verdict.comparison
    fingerprint = question.rows.fingerprint
    is_known = any(content["rows"] == fingerprint for content in _judged(entries))
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
        **({} if is_known else {"sample": _sample(question.rows)}),
    }


def _judged(entries: Iterable[LedgerEntry]) -> list[Mapping[str, Any]]:
    """Return the contents of the readable `judge` entries. The chain reports the others."""
    return [entry.content for entry in entries if entry.what == "judge" and "question" in entry.content]


def _since_promotion(entries: Sequence[LedgerEntry], untrusted: Container[int], model: str) -> list[LedgerEntry]:
    """Return the comparisons since the last promotion that restored the tries and that no rollback reverted."""
    now: list[LedgerEntry] = []
    won: set[str] = set()  # runs that won their comparison and were not promoted yet
    champions: list[tuple[str | None, list[LedgerEntry]]] = []  # and the comparisons that their promotion closed
    for entry in sorted(entries, key=lambda entry: entry.number):
        run, to = str(entry.content.get("run")), entry.version
        if entry.what == "judge" and (entry.number in untrusted or entry.content.get("p") is not None):
            now.append(entry)
            if entry.content.get("won") is True:
                won.add(run)
        elif entry.what == "promote":
            champions.append((entry.version, now if run in won else []))
            if run in won:
                won.discard(run)
                now = []
        elif entry.what in ("rollback", "recover"):
            if entry.what == "recover":
                to = entry.state_of(model).get("champion")
            while champions and champions[-1][0] != to:
                now = [*champions.pop()[1], *now]
    return now


class _KnownRows:
    """Which of the compared samples earlier candidates were judged on, by content or by pixels."""

    def __init__(self, judged: Sequence[Mapping[str, Any]], rows: Samples, compared: NDArray[np.bool_]) -> None:
        names = ("content", "pixels", "groups") if rows.have_groups else ("content", "pixels")
        self._digests = {name: getattr(rows, name)[compared] for name in names}
        samples = {content["rows"]: content["sample"] for content in judged if "sample" in content}
        self._overlaps = {
            fingerprint: self._is_other(sample, rows) or self._share_in([sample]) > 0.0
            for fingerprint, sample in samples.items()
        }
        is_known = any(content["rows"] == rows.fingerprint for content in judged)
        is_known = is_known or any(self._is_other(sample, rows) for sample in samples.values())
        self.share_new = 0.0 if is_known else 1.0 - self._share_in(list(samples.values())) if judged else 1.0

    @staticmethod
    def _is_other(sample: Mapping[str, Any], rows: Samples) -> bool:
        """Return whether its samples were identified in another way, so that an equal one would not be found."""
        by_group = rows.have_groups and "groups" in sample
        return not by_group and sample.get("identity", "") != rows.identity

    def include(self, fingerprint: str) -> bool:
        """Return whether any compared sample is in an earlier test set. A set without a record may have all of them."""
        return self._overlaps.get(fingerprint, True)

    def _share_in(self, samples: Sequence[Mapping[str, Any]]) -> float:
        """Return the share of the samples, by content or by pixels: the larger. 1 where the subsets are empty."""
        shares, one_in = [1.0] if not samples else [], max((sample["one_in"] for sample in samples), default=1)
        for name, digests in self._digests.items() if samples else ():
            subset = digests[digests % np.uint64(one_in) == 0]
            earlier = np.concatenate([_unpacked(sample.get(name, "")) for sample in samples])
            shares.append(float(np.mean(np.isin(subset, earlier))) if len(subset) else 1.0)
        return max(shares)


def _sample(rows: Samples) -> dict[str, Any]:
    one_in = 1
    while len(rows) > 2 * _KEPT * one_in:
        one_in *= 2
    subsets = {
        name: base64.b64encode(np.unique(values[values % np.uint64(one_in) == 0]).astype("<u8").tobytes()).decode()
        for name, values in (("content", rows.content), ("pixels", rows.pixels), ("groups", rows.groups))
        if name != "groups" or rows.have_groups
    }
    return {"count": len(rows), "one_in": one_in, "identity": rows.identity, **subsets}


def _unpacked(text: str) -> NDArray[np.uint64]:
    return np.frombuffer(base64.b64decode(text), "<u8").astype(np.uint64)
