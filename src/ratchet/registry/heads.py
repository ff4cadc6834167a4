"""Heads of the ledger outside the databases: in files of the project, and in Git's history.

A head is the number and the seal of the last entry at some time. A ledger that was rewritten as a whole has a valid
chain, but it does not contain the heads that were stored before.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ratchet import git
from ratchet.errors import RegistryError
from ratchet.registry.chain import Fault, LedgerEntry
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace

__all__ = ["FILE", "Head", "HeadFiles", "head_faults", "lost_heads"]

FILE = "data/ledger.heads"
_REGISTRATION = "data/registration.json"
_LINE = re.compile(r"^([0-9a-f]{64}) ([0-9]{1,18}) ([0-9a-f]{64})( .*)?$")
_CUT = re.compile(r"^[0-9a-f]{1,64}( [0-9]{0,18}( [0-9a-f]{0,63})?)?$")  # a line that a full disk or a kill cut off
_ABOUT = """\
# Heads of the ledger: LEDGER NUMBER SEAL, then when, who and what. `ratchet audit` compares them with the ledger.
# Every act of a user adds a line. Commit this file together with dvc.lock.
"""


@dataclass(frozen=True)
class Head:
    """The last entry of a ledger at some time.

    `ledger` is the seal of the ledger's first entry, `where` names the place that holds the head.
    """

    ledger: str
    number: int
    seal: str
    where: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the head as data/registration.json has it."""
        return {name: value for name, value in to_plain(self).items() if name != "where"}


class HeadFiles:
    """The heads of one ledger that a project keeps.

    `log` has a line for each entry that was written on this machine. `file` is for Git and has a line for each act of a
    user. The last act of the register stage is in data/registration.json.
    """

    def __init__(self, workspace: Workspace, address: str) -> None:
        """Open the heads of the ledger at `address`, as params.yaml has it, without a password."""
        project = workspace.project
        self.root = project.root
        self.log = project.state / f"ledger-{hashlib.sha256(address.encode()).hexdigest()[:12]}.heads"
        self.file = project.root / FILE
        self.registration = project.registration

    def write(self, ledger: str, entry: LedgerEntry) -> None:
        """Log an entry that was written."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        _append(self.log, f"{ledger} {entry.number} {entry.seal}\n")

    def publish(self, ledger: str, entry: LedgerEntry) -> None:
        """Add an entry to the file for Git, unless it has it."""
        if any((head.number, head.seal) == (entry.number, entry.seal) for head in _read(self.file, FILE)):
            return
        version = f"/{entry.version}" if entry.version else ""
        about = " ".join(f"{entry.at[:19]}Z {entry.who} {entry.what} {entry.model}{version}".split())
        self.file.parent.mkdir(parents=True, exist_ok=True)
        begin = "" if self.file.exists() else _ABOUT
        _append(self.file, f"{begin}{ledger} {entry.number} {entry.seal} {about}\n")

    def logged(self) -> list[Head]:
        """Return the heads that were written on this machine, in order."""
        return _read(self.log, f".ratchet/{self.log.name}")

    def here(self) -> list[Head]:
        """Return the heads in the working tree's files."""
        content = self.registration.read_bytes() if self.registration.exists() else b""
        return [*_read(self.file, FILE), *_heads(content, _REGISTRATION)]

    def known(self) -> tuple[list[Head], list[Head]]:
        """Return the heads that were written on this machine, and those in files that clones share."""
        return self.logged(), [*self.here(), *self.committed]

    @cached_property
    def committed(self) -> list[Head]:
        """The heads in Git's history, which is read once."""
        return list(_committed_lines(self.root))


def head_faults(entries: Sequence[LedgerEntry], logged: Sequence[Head], others: Iterable[Head]) -> list[Fault]:
    """Compare a ledger with heads that were stored before. An empty ledger has no faults: it may be about to begin.

    `logged` were written on this machine, so the last of them identifies the ledger. `others` are from files that
    clones share, so they can be of another clone's ledger.
    """
    if not entries:
        return []
    ledger, others = entries[0].seal, list(others)
    decisive = logged[-1:] or others
    if decisive and all(head.ledger != ledger for head in decisive):
        last = decisive[-1]
        return [
            Fault(
                1,
                f"the ledger was replaced: its first entry has the seal {ledger[:12]}, and {last.where} has "
                f"{last.ledger[:12]}",
            )
        ]
    lost = lost_heads(entries)
    by_number = {entry.number: entry.seal for entry in entries}
    faults: dict[tuple[int, str], Fault] = {}
    for head in (*logged, *others):
        seal, key = by_number.get(head.number), (head.number, head.seal)
        if head.ledger != ledger or seal == head.seal or key in lost or key in faults:
            continue
        if seal is None:
            text = f"ledger entry {head.number} is gone, which {head.where} has: the end was cut off"
        else:
            text = f"ledger entry {head.number} has the seal {seal[:12]}, and {head.where} has {head.seal[:12]}"
            text += ": the ledger was rewritten"
        faults[key] = Fault(head.number, text)
    return sorted(faults.values(), key=lambda fault: fault.number)


def lost_heads(entries: Iterable[LedgerEntry]) -> set[tuple[int, str]]:
    """Return (number, seal) of the heads that recoveries recorded as lost."""
    return {
        (int(number), str(seal))
        for entry in entries
        if entry.what == "recover"
        for number, seal in entry.content.get("lost", ())
    }


def _append(path: Path, text: str) -> None:
    """Append text; begin a new line if the last one has no end (a full disk, an editor)."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            text = text if file.read(1) == b"\n" else f"\n{text}"
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, name: str) -> list[Head]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    heads = []
    for place, line in enumerate(text.split("\n"), start=1):
        head = _head(line, f"{name} line {place}")
        if head:
            heads.append(head)
        elif line.strip() and not line.startswith("#") and not _CUT.match(line):
            raise RegistryError(
                f"{name} line {place}: found {line[:60]!r}; allowed: LEDGER NUMBER SEAL, or a comment. Fix: keep the "
                "lines of both sides of a merge, or restore the file with `git checkout`"
            )
    return heads


def _head(line: str, where: str) -> Head | None:
    match = _LINE.match(line)
    return Head(match[1], int(match[2]), match[3], where) if match else None


def _heads(content: bytes, where: str) -> list[Head]:
    """Return the head in a data/registration.json; none where it is damaged or has none."""
    try:
        head = json.loads(content).get("ledger")
        return [Head(str(head["ledger"]), int(head["number"]), str(head["seal"]), where)] if head else []
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _committed_lines(root: Path) -> Iterator[Head]:
    # Neither git attributes (--text, --no-textconv) nor the user's settings may hide a line.
    shown = ("--patch", "--unified=0", "--text", "--no-textconv", "--no-ext-diff", "--no-color")
    try:
        if git.commit(root) is None:
            return
        log = git.run(root, "-c", "log.showRoot=true", "log", *shown, "--format=commit %H", "--", FILE)
    except git.GitError as error:
        raise RegistryError(
            f"the ledger cannot be compared with {FILE} in Git's history: {error}. Fix: repair what git names; a "
            "partial clone needs its origin"
        ) from error
    commit = ""
    for line in log.decode(errors="replace").splitlines():
        if line.startswith("commit "):
            commit = line.removeprefix("commit ")
        elif line.startswith("+") and (head := _head(line[1:], f"{FILE} of commit {commit[:12]}")):
            yield head
