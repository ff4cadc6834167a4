"""Attacks on the ledger and on MLflow by someone who can write to both databases: each is detected, none succeeds."""

import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import LedgerBroken, RegistryError
from ratchet.registry import audit as auditing
from ratchet.registry import recovery
from ratchet.registry.alias_sync import require_agreement
from ratchet.registry.chain import COLUMNS, FIRST, LedgerEntry
from ratchet.registry.heads import FILE
from ratchet.registry.ledger import Ledger
from ratchet.settings.model import Params, RegistrySettings
from ratchet.workspace import Workspace
from tasks.summary import model_line

pytestmark = [pytest.mark.usefixtures("mlflows_own"), pytest.mark.system]
Line = Any  # conftest.py's


@pytest.fixture
def line(line: Line) -> Line:
    """Return a model with automatic promotion."""
    registry = line.params.registry.model_copy(update={"promotion": RegistrySettings().promotion})
    line.params = line.params.model_copy(update={"registry": registry})
    return line


def edit(line: Line, *statements: str) -> None:
    """Change the ledger as an attacker who knows the triggers."""
    with closing(sqlite3.connect(line.folder / "ledger.db")) as connection, connection:
        for act in ("update", "delete"):
            connection.execute(f"DROP TRIGGER IF EXISTS ledger_no_{act}")
        for statement in statements:
            connection.execute(statement)


def rewrite(line: Line, change: Callable[[LedgerEntry], LedgerEntry], start: int = 1) -> None:
    """Change every entry from `start` on, seal it again, and update the anchor in MLflow."""
    ledger = Ledger(line.place.workspace, line.params.registry.ledger)
    entries, before = [], FIRST
    for entry in ledger.read().entries:
        if entry.number >= start:
            entry = replace(change(entry), before=before)
            entry = replace(entry, seal=entry.sealed())
        entries.append(entry)
        before = entry.seal
    edit(line, "DELETE FROM ledger")
    with closing(sqlite3.connect(line.folder / "ledger.db")) as connection, connection:
        marks = ", ".join("?" * len(COLUMNS))
        for entry in entries:
            connection.execute(f"INSERT INTO ledger VALUES ({marks})", [entry.row()[name] for name in COLUMNS])
    line.promotions.registry.set_anchor(line.name, entries[-1].seal)


def forged(entry: LedgerEntry) -> LedgerEntry:
    return replace(entry, why=f"{entry.why}!")


def acts(line: Line, version: Any) -> list[Callable[[], object]]:
    """Return every act."""
    return [
        lambda: line.promotions.register(version, why="x", over=None),
        lambda: line.promotions.withdraw(version, why="x", over=None),
        lambda: line.promotions.promote_automatically(version, over=None),
        lambda: line.promotions.approve(version, why="x"),
        lambda: line.promotions.promote(version, why="x"),
        lambda: line.promotions.rollback("1", why="x"),
        lambda: line.promotions.repair(why="x"),
        line.promotions.synchronize,
        line.repair,
        lambda: line.promotions.ledger.append("approve", model="another", version="1"),
    ]


EDITS = {
    "a forged promotion": ["UPDATE ledger SET version = '1' WHERE number = 4"],
    "only the version": ["UPDATE ledger SET version = '7' WHERE number = 4"],
    "a removed entry": ["DELETE FROM ledger WHERE number = 2"],
    "a removed end": ["DELETE FROM ledger WHERE number = 4"],
    "an emptied ledger": ["DELETE FROM ledger"],
    "an entry of another model": [
        "INSERT INTO ledger SELECT 5, at, who, 'promote', 'another', '1', why, content, seal, seal FROM ledger "
        "WHERE number = 4"
    ],
}


def test_no_act_obeys_an_edited_ledger(line: Line) -> None:
    """Each edit of the table is refused by every act, moves no alias, and is named by the audit."""
    line.champion()
    version = line.champion()
    with closing(sqlite3.connect(line.folder / "ledger.db")) as ledger, closing(sqlite3.connect(":memory:")) as intact:
        ledger.backup(intact)
        for kind, statements in EDITS.items():
            edit(line, *statements)
            before = list(ledger.execute("SELECT * FROM ledger"))
            for place, act in enumerate(acts(line, version)):
                if kind == "an emptied ledger" and place == 9:
                    continue  # another model begins one
                with pytest.raises(RegistryError) as refusal:
                    act()
                assert "ratchet recover" in str(refusal.value), (kind, place)
                assert len(str(refusal.value).splitlines()) == 1
            assert line.aliases() == {"champion": "2"}
            assert list(ledger.execute("SELECT * FROM ledger")) == before, kind
            assert any("ratchet recover" in text for text in line.faults()), kind
            intact.backup(ledger)
    assert line.faults() == []


@pytest.mark.parametrize("start", [1, 3])
def test_a_resealed_ledger_is_found_by_this_machine_s_log(line: Line, start: int) -> None:
    line.champion()
    version = line.champion()
    rewrite(line, forged, start=start)
    assert Ledger(line.place.workspace, line.params.registry.ledger).read().faults == []  # valid in itself
    with pytest.raises(LedgerBroken, match=r"was replaced|was rewritten"):
        line.promotions.approve(version, why="x")
    assert any("was replaced" in text or "was rewritten" in text for text in line.faults())


# Recovery


def confirmed(line: Line, champion: str | None) -> Mapping[str, Mapping[str, str | None]]:
    return {line.name: {"champion": champion}}


@pytest.fixture
def alone(line: Line, monkeypatch: pytest.MonkeyPatch) -> Line:
    """Hide the models of other tests: they have other ledgers, but a project has one."""
    from ratchet.registry.models import ModelRegistry

    monkeypatch.setattr(ModelRegistry, "anchored", lambda self: {line.name})
    return line


@pytest.mark.parametrize("kind", ["a forged promotion", "a removed end", "an emptied ledger"])
def test_recovery_keeps_the_evidence_and_ends_clean(alone: Line, kind: str) -> None:
    """After any edit one command leads to a clean audit. The edited rows stay unchanged and no longer count."""
    line = alone
    line.champion()
    line.champion()
    edit(line, *EDITS[kind])
    with closing(sqlite3.connect(line.folder / "ledger.db")) as connection:
        before = list(connection.execute("SELECT * FROM ledger ORDER BY number"))
    damage = recovery.examine(line.place.workspace, line.params)
    assert damage.faults
    entry = recovery.recover(line.place.workspace, line.params, confirmed(line, "2"), why="the disk was edited")
    with closing(sqlite3.connect(line.folder / "ledger.db")) as connection:
        after = list(connection.execute("SELECT * FROM ledger ORDER BY number"))
    assert after[:-1] == before
    assert line.aliases() == {"champion": "2"}
    assert line.faults() == []
    (note,) = [text for text in auditing.notes(line.place.workspace, line.params) if "recovered" in text]
    assert "the disk was edited" in note
    assert entry.content["intact"] + entry.content["aside"] <= entry.number - 1
    third = line.champion()  # acts are possible again
    assert line.promotions.rollback(None, why="3 is bad").champion == "2"
    assert third.number == "3"
    assert line.faults() == []


def test_former_champions_survive_a_recovery(alone: Line) -> None:
    """Those of trusted entries stay in order; those that only edited entries name need their name."""
    line = alone
    for _ in range(4):
        line.champion()
    edit(line, "UPDATE ledger SET who = 'eve' WHERE number = 6")  # the promotion of version 3
    recovery.recover(line.place.workspace, line.params, confirmed(line, "4"), why="edited")
    assert line.promotions.state().champions == ("1", "2", "4")
    assert line.promotions.rollback(None, why="4 is bad").champion == "2"
    assert line.promotions.rollback("3", why="3 was good").champion == "3"
    assert line.faults() == []


def test_a_rejection_survives_a_recovery(alone: Line) -> None:
    """Also one whose entry is set aside: the version is not champion again before it is approved."""
    line = alone
    for _ in range(3):
        line.champion()
    line.promotions.reject(line.promotions.registry.find(f"{line.name}/2"), why="confuses 1 and 7")
    edit(line, "UPDATE ledger SET who = 'eve' WHERE number = 6")  # the promotion of version 3
    with pytest.raises(RegistryError, match=rf"version 2 was rejected\. Fix: .*or {line.name}/none"):
        recovery.recover(line.place.workspace, line.params, confirmed(line, "2"), why="edited")
    recovery.recover(line.place.workspace, line.params, confirmed(line, "3"), why="edited")
    second = line.promotions.registry.find(f"{line.name}/2")
    for act in (line.promotions.promote, lambda version, why: line.promotions.rollback(version.number, why=why)):
        with pytest.raises(RegistryError, match=r"version 2 was rejected by .*: confuses 1 and 7\. Fix: first"):
            act(second, why="x")
    assert "; rejected by " in model_line(line.params, line.place.workspace, line.name, "2")
    line.promotions.approve(second, why="fine")
    assert line.promotions.rollback("2", why="3 is bad").champion == "2"
    assert line.faults() == []


def test_a_recovery_without_trusted_entries_names_former_champions(alone: Line) -> None:
    line = alone
    for _ in range(2):
        line.champion()
    edit(line, "UPDATE ledger SET who = 'eve' WHERE number = 1")
    recovery.recover(line.place.workspace, line.params, confirmed(line, "2"), why="edited")
    with pytest.raises(
        RegistryError, match=rf"Others that were champion: 1\. Fix: .*rollback {line.name} --to 1 --why"
    ):
        line.promotions.rollback(None, why="2 is bad")
    assert line.promotions.rollback("1", why="2 is bad").champion == "1"


def test_dropped_triggers_are_named_and_created_again(alone: Line) -> None:
    line = alone
    line.champion()
    edit(line)
    fresh = line.under()  # opening the ledger must not hide it
    assert fresh.ledger.read().faults == []
    assert [fault for fault in line.faults() if "lacks the trigger ledger_no_update" in fault]
    assert "the ledger's database: trigger ledger_no_delete created" in line.repair()
    assert line.faults() == []


def test_a_rewritten_ledger_is_recovered_too(alone: Line) -> None:
    line = alone
    line.champion()
    line.champion()
    rewrite(line, forged, start=3)
    damage = recovery.examine(line.place.workspace, line.params)
    assert (damage.intact, damage.entries) == (2, 4)
    recovery.recover(line.place.workspace, line.params, confirmed(line, "1"), why="rewritten")
    assert line.aliases() == {"champion": "1"}
    assert line.faults() == []


def test_changed_evidence_of_a_recovery_is_found(alone: Line) -> None:
    line = alone
    version = line.champion()
    edit(line, "UPDATE ledger SET why = 'x' WHERE number = 2")
    recovery.recover(line.place.workspace, line.params, confirmed(line, "1"), why="edited")
    edit(line, "UPDATE ledger SET why = 'y' WHERE number = 2")
    assert any("ledger entry 2" in text for text in line.faults())
    with pytest.raises(LedgerBroken):
        line.promotions.approve(version, why="x")


def test_recovery_asks_for_each_champion(alone: Line) -> None:
    line = alone
    line.champion()
    with pytest.raises(RegistryError, match="nothing to recover"):
        recovery.recover(line.place.workspace, line.params, confirmed(line, "1"), why="x")
    edit(line, "UPDATE ledger SET why = 'x' WHERE number = 2")
    with pytest.raises(RegistryError, match=rf"found none; allowed: one for each of {line.name}"):
        recovery.recover(line.place.workspace, line.params, {}, why="x")
    with pytest.raises(RegistryError, match="no such version"):
        recovery.recover(line.place.workspace, line.params, confirmed(line, "9"), why="x")
    line.artifact(line.promotions.registry.versions(line.name)[0], "model.safetensors").write_bytes(b"others")
    with pytest.raises(RegistryError, match=r"is not what was registered: .*model\.safetensors was replaced"):
        recovery.recover(line.place.workspace, line.params, confirmed(line, "1"), why="x")


# Anchors in Git


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    """A folder with a git repository, and a ledger in SQLite."""
    root = tmp_path / "project"
    root.mkdir()
    for command in (["init", "-q"], ["config", "user.name", "ann"], ["config", "user.email", "ann@example.org"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return Workspace(root)


def commit(workspace: Workspace, *names: str) -> str:
    git = ["git", "-C", str(workspace.root)]
    subprocess.run([*git, "add", "-f", *names], check=True)
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    subprocess.run([*git, *who, "commit", "-qm", "state"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


URI = "sqlite:///mlruns/ledger.db"


def fill(workspace: Workspace, count: int, why: str = "good") -> Ledger:
    ledger = Ledger(workspace, URI)
    for number in range(count):
        ledger.append("promote", model="pets", version=str(number), who="ann", why=why)
    return ledger


def committed_faults(workspace: Workspace) -> list[str]:
    return [fault.text for fault in Ledger(workspace, URI).faults()]


def test_a_resealed_ledger_disagrees_with_git_s_history(project: Workspace) -> None:
    """The commit is named, even if this machine's log was removed and the working tree's files were changed."""
    ledger = fill(project, 3)
    ledger.publish()
    first = commit(project, FILE)
    fill(project, 1)
    assert committed_faults(project) == []
    with closing(sqlite3.connect(project.mlruns / "ledger.db")) as connection, connection:
        connection.execute("DROP TABLE ledger")
    for path in (ledger.heads.log, project.registration, project.root / FILE):
        path.unlink(missing_ok=True)
    forged = fill(project, 4, why="forged")
    forged.heads.log.unlink()
    (message,) = committed_faults(project)
    assert "the ledger was replaced" in message
    with pytest.raises(LedgerBroken, match="the ledger was replaced"):
        fill(project, 1)
    assert f"of commit {first[:12]} has" in message


def test_a_head_that_only_git_has_is_named(project: Workspace) -> None:
    ledger = fill(project, 3)
    ledger.publish()
    first = commit(project, FILE)
    with closing(sqlite3.connect(project.mlruns / "ledger.db")) as connection, connection:
        connection.execute("DROP TRIGGER ledger_no_delete")
        connection.execute("DELETE FROM ledger WHERE number = 3")
    ledger.heads.log.unlink()
    (project.root / FILE).unlink()
    assert committed_faults(project) == [
        f"ledger entry 3 is gone, which {FILE} of commit {first[:12]} has: the end was cut off"
    ]


def test_a_clone_begins_a_ledger_of_its_own(project: Workspace, tmp_path: Path) -> None:
    ledger = fill(project, 3)
    ledger.publish()
    commit(project, FILE)
    subprocess.run(["git", "clone", "-q", str(project.root), str(tmp_path / "clone")], check=True)
    clone = Workspace(tmp_path / "clone")
    fill(clone, 2, why="mine").publish()
    commit(clone, FILE)
    assert committed_faults(clone) == []


def test_clones_accept_a_moved_ledger_after_its_head_is_committed(project: Workspace, tmp_path: Path) -> None:
    """See docs/team.md. Until then a clone knows only the heads of the old ledger."""
    fill(project, 1).publish()
    commit(project, FILE)
    subprocess.run(["git", "clone", "-q", str(project.root), str(tmp_path / "clone")], check=True)
    uri = f"sqlite:///{tmp_path}/moved.db"
    moved, seen = Ledger(project, uri), Ledger(Workspace(tmp_path / "clone"), uri)
    moved.append("promote", model="pets", version="1", who="ann", why="x")
    assert moved.faults() == []
    assert "the ledger was replaced" in seen.faults()[0].text
    moved.publish()
    commit(project, FILE)
    subprocess.run(["git", "-C", str(tmp_path / "clone"), "pull", "-q"], check=True)
    assert Ledger(Workspace(tmp_path / "clone"), uri).faults() == []


def test_a_broken_line_of_the_heads_names_its_place(project: Workspace) -> None:
    fill(project, 1).publish()
    with (project.root / FILE).open("a") as file:
        file.write("<<<<<<< HEAD\n")
    with pytest.raises(RegistryError, match=rf"{FILE} line 4: found '<<<<<<< HEAD'; allowed: LEDGER NUMBER SEAL"):
        fill(project, 1)
    (project.root / FILE).write_text((project.root / FILE).read_text().replace("<<<<<<< HEAD\n", "abc"))
    fill(project, 1)  # a line that a kill cut off is ignored


@pytest.mark.parametrize(
    ("what", "content"),
    [
        ("recover", {"models": 5}),
        ("recover", {"models": {"pets": {"held": 5}}}),
        ("recover", {"lost": [1]}),
        ("adopt", {"champion": ["1"]}),
        ("repair", {"deleted": 5}),
        ("judge", {"question": "x"}),
    ],
)
def test_a_sealed_entry_with_unreadable_content_is_a_fault(
    project: Workspace, what: str, content: dict[str, Any]
) -> None:
    """An added entry has a valid seal. Content of another type stops every act with a clear error."""
    ledger = fill(project, 2)
    last = ledger.entries()[-1]
    added = LedgerEntry(3, last.at, "eve", what, "pets", "1", "", content, last.seal, "")
    row = replace(added, seal=added.sealed()).row()
    with closing(sqlite3.connect(project.mlruns / "ledger.db")) as connection, connection:
        marks = ", ".join(f":{name}" for name in COLUMNS)
        connection.execute(f"INSERT INTO ledger ({', '.join(COLUMNS)}) VALUES ({marks})", row)
    with pytest.raises(LedgerBroken, match=r"is broken: ledger entry 3 .*`ratchet recover`"):
        Ledger(project, URI).append("approve", model="another", version="1")


@pytest.mark.parametrize("keep", [-1, -60, 100])
def test_heads_go_on_after_a_line_without_its_end(project: Workspace, keep: int) -> None:
    """An editor removed the end of the last line, or a full disk cut it off."""
    ledger = fill(project, 2)
    ledger.publish()
    for path in (ledger.heads.log, project.root / FILE):
        *whole, last, _ = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join([*whole, f"{last.decode()}\n".encode()[:keep]]))
    fill(project, 1).publish()
    fill(project, 1).publish()
    reread = Ledger(project, URI)
    assert [head.number for head in reread.heads.logged()][-2:] == [3, 4]
    assert [head.number for head in reread.heads.here()][-2:] == [3, 4]
    assert reread.faults() == []


def test_attributes_and_settings_hide_no_committed_head(project: Workspace) -> None:
    ledger = fill(project, 3)
    ledger.publish()
    commit(project, FILE)
    for name, value in (("log.showRoot", "false"), ("diff.noprefix", "true"), ("core.pager", "false")):
        subprocess.run(["git", "-C", str(project.root), "config", name, value], check=True)
    (project.root / ".gitattributes").write_text("* -diff\n")
    assert [head.number for head in Ledger(project, URI).heads.committed] == [3]


def test_git_variables_and_replacements_hide_no_head(
    project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "note.txt").touch()
    commit(project, "note.txt")
    fill(project, 3).publish()
    commit(project, FILE)
    subprocess.run(["git", "-C", str(project.root), "replace", "HEAD", "HEAD~"], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert [head.number for head in Ledger(project, URI).heads.committed] == [3]


def test_a_git_that_refuses_hides_no_head(project: Workspace) -> None:
    """As a folder of another user in a container, or an emptied branch: an audit would take it for no history."""
    fill(project, 3).publish()
    assert Ledger(project, URI).heads.committed == [], "before the first commit"
    commit(project, FILE)
    config = project.root / ".git" / "config"
    content = config.read_text()
    config.write_text("[damaged")
    with pytest.raises(RegistryError, match=r"ledger\.heads in Git's history: .*bad config.*Fix: repair"):
        list(auditing.audit(project, Params()))
    with pytest.raises(RegistryError, match="bad config"):  # before a training, which no act could follow
        require_agreement(project, Params(registry=RegistrySettings(model="pets")))
    config.write_text(content)
    assert [head.number for head in Ledger(project, URI).heads.committed] == [3]


def test_a_ledger_that_git_does_not_know_is_noted(project: Workspace) -> None:
    """A replaced ledger with a forged log looks like that of a clone, so audit reports what Git's history has."""
    ledger = fill(project, 3)
    ledger.publish()
    first = commit(project, FILE)
    (project.mlruns / "ledger.db").unlink()
    for path in (ledger.heads.log, project.root / FILE):
        path.unlink()
    fill(project, 4, why="forged")
    (note,) = [text for text in auditing.notes(project, Params()) if "none of this one" in text]
    assert f"{FILE} of commit {first[:12]} has entry 3" in note
    assert "the ledger was replaced" in note
