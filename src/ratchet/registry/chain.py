"""Entries of the ledger, and their chain: each entry contains the seal of the one before it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, cast

from pydantic import TypeAdapter

__all__ = ["COLUMNS", "FIRST", "Chain", "Fault", "LedgerEntry", "digest_rows"]

FIRST = "0" * 64  # `before` of the first entry
COLUMNS = ("number", "at", "who", "what", "model", "version", "why", "content", "before", "seal")

Row = tuple[Any, ...]
"""A row of the database, in the order of COLUMNS."""


@dataclass(frozen=True)
class LedgerEntry:
    """One act. `at` is the time in UTC (ISO 8601); `content` is plain data: digests, numbers, the state before."""

    number: int
    at: str
    who: str
    what: str
    model: str
    version: str | None
    why: str
    content: Mapping[str, Any]
    before: str  # the seal of the entry before
    seal: str

    @classmethod
    def of(cls, row: Row) -> "LedgerEntry":
        """Read a row. Damaged content is kept as text under the key `damaged`, so that the seal does not match."""
        named = dict(zip(COLUMNS, row, strict=True))
        return cls(**{**named, "content": _content(named["content"])})

    def row(self) -> dict[str, Any]:
        """Return the stored values by column."""
        return {**vars(self), "content": json.dumps(self.content, sort_keys=True, ensure_ascii=False)}

    def state_of(self, model: str) -> Mapping[str, Any]:
        """Return what the act recorded about a model: its aliases and evidence. A recovery concerns all models."""
        state: Mapping[str, Any] = self.content.get("models", {}).get(model, {})
        return state if self.what == "recover" else self.content

    def held(self, model: str) -> Mapping[str, Any]:
        """Return number -> run and evidence of the versions whose aliases an adoption or a recovery took over."""
        held: Mapping[str, Any] = self.state_of(model).get("held", {})
        return held

    def sealed(self) -> str:
        """Return the seal that this entry must have: SHA-256 (hex) over all other fields."""
        values = [value for name, value in vars(self).items() if name != "seal"]
        # `default`: after a hostile edit a column can hold a BLOB in place of text.
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=repr)
        return sha256(text.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Fault:
    """One fault of a ledger: the number of the first entry that it concerns, and a message."""

    number: int
    text: str


class Chain:
    """All rows of a ledger, verified from the first to the last.

    Attributes:
        valid: the entries that count: all except those that a recovery set aside.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: list[Row] = []
        self.entries: list[LedgerEntry] = []
        self.valid: list[LedgerEntry] = []
        self.faults: list[Fault] = []
        self._add(rows)

    def read_again(self, rows: list[Row]) -> "Chain":
        """Return the chain of these rows. Rows that did not change are not verified again."""
        count = len(self.rows)
        is_longer = rows[:count] == self.rows
        if is_longer and len(rows) == count:
            return self
        chain = Chain()
        if is_longer:
            chain.rows, chain.entries = self.rows[:], self.entries[:]
            chain.valid, chain.faults = self.valid[:], self.faults[:]
        chain._add(rows[len(chain.rows) :])
        return chain

    def of_model(self, model: str) -> list[LedgerEntry]:
        """Return the valid entries about a model, and each recovery, which concerns all models."""
        return [entry for entry in self.valid if entry.model == model or entry.what == "recover"]

    def _add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            entry = LedgerEntry.of(row)
            previous = self.entries[-1] if self.entries else None
            if not (entry.what == "recover" and entry.seal == entry.sealed() and self._set_aside(entry)):
                self._check_link(previous, entry)
            self.rows.append(row)
            self.entries.append(entry)
            self.valid.append(entry)

    def _set_aside(self, recovery: LedgerEntry) -> bool:
        """Drop what a recovery set aside, if it is unchanged since; return whether it is."""
        intact = recovery.content.get("intact")
        if not isinstance(intact, int):
            return False
        start = next((place for place, entry in enumerate(self.entries) if entry.number > intact), len(self.entries))
        if digest_rows(self.rows[start:]) != recovery.content.get("evidence"):
            return False
        self.faults = [fault for fault in self.faults if fault.number <= intact]
        self.valid = [entry for entry in self.valid if entry.number <= intact]
        return True

    def _check_link(self, previous: LedgerEntry | None, entry: LedgerEntry) -> None:
        name = f"ledger entry {entry.number}"
        last, before = (previous.number, previous.seal) if previous else (0, FIRST)
        if entry.number != last + 1:
            is_one = entry.number == last + 2
            gone = f"entry {last + 1} was" if is_one else f"entries {last + 1} to {entry.number - 1} were"
            self.faults.append(Fault(last + 1, f"ledger {gone} removed"))
        elif entry.before != before:
            text = f"{name} does not follow the one before it: one of the two was replaced"
            # It is unknown which of the two, so neither counts.
            self.faults.append(Fault(max(entry.number - 1, 1), text))
        if entry.seal != entry.sealed():
            label = f"{name} ({entry.what} {entry.model}, {entry.at})"
            self.faults.append(Fault(entry.number, f"{label} was edited after it was written"))


def digest_rows(rows: Iterable[Row]) -> str:
    """Return the SHA-256 (hex) of rows exactly as the database has them."""
    written = json.dumps([list(row) for row in rows], ensure_ascii=False, default=repr)
    return sha256(written.encode(errors="surrogatepass")).hexdigest()


def _content(text: object) -> dict[str, Any]:
    """Return an entry's content. After a hostile edit `text` can be anything."""
    try:
        content = json.loads(text)  # type: ignore[arg-type]
        check: TypeAdapter[Any] = _JUDGEMENT if "question" in content else _ACT
        check.validate_json(text, strict=True)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError):
        return {"damaged": str(text)}
    return cast(dict[str, Any], content)


@dataclass
class _Held:
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass
class _State:
    held: dict[str, _Held] = field(default_factory=dict)
    former: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    evidence: dict[str, Any] | str = ""
    champion: str | None = None
    challenger: str | None = None


@dataclass
class _Act(_State):
    """The keys that other modules read, with the types that they are written with."""

    models: dict[str, _State] = field(default_factory=dict)
    lost: str | list[tuple[int, str]] | None = None
    deleted: list[str] = field(default_factory=list)


@dataclass
class _Tries:
    count: float
    spent: float
    new_rows: float


@dataclass
class _Sample:
    one_in: int


@dataclass(kw_only=True)
class _Judgement(_Act):
    before: _Tries
    p: float | None
    won: bool
    rows: str
    sample: _Sample | None = None


_ACT, _JUDGEMENT = TypeAdapter(_Act), TypeAdapter(_Judgement)
