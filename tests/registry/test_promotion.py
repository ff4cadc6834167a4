"""Aliases follow the ledger: roles, approvals, kills, and changes that were made in MLflow."""

import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import fork_server
import pytest
from mlflow.cli import cli as mlflow_cli
from typer.testing import CliRunner
from waiting import until

from commands.cli import app
from commands.reproduce import require_evidence
from flows.approve import approve_flow
from ratchet import settings
from ratchet.errors import ChampionMoved, NotAllowed, RegistryError, TrackingUnavailable
from ratchet.registry import audit as auditing
from ratchet.registry.access import user
from ratchet.registry.alias_sync import AliasSync, require_agreement
from ratchet.registry.mlflow_store import active
from ratchet.registry.models import ModelRegistry
from ratchet.registry.promotion import Promotions
from ratchet.registry.versions import Version
from ratchet.settings.model import AccessSettings, GateSettings, RegistrySettings
from ratchet.workspace import Workspace

pytestmark = pytest.mark.usefixtures("mlflows_own")
OTHERS = AccessSettings(runners=("ann",), approvers=("bob",), admins=("cem",))
Line = Any  # conftest.py's


def acts(line: Line) -> list[tuple[str, str | None]]:
    return [(entry.what, entry.version) for entry in line.promotions.entries()]


def test_every_step_is_in_the_ledger_before_the_alias_moves(line: Line) -> None:
    first = line.champion()
    second = line.challenger()
    assert line.aliases() == {"champion": "1", "challenger": "2"}
    line.promotions.approve(second, why="looked at")
    line.promotions.promote(second, why="better")
    assert line.aliases() == {"champion": "2"}
    assert acts(line) == [
        ("register", "1"), ("promote", "1"), ("register", "2"), ("approve", "2"), ("promote", "2"),
    ]  # fmt: skip
    assert {entry.who for entry in line.promotions.entries()} == {user()}
    assert [entry.why for entry in line.promotions.entries()][-2:] == ["looked at", "better"]
    recorded = line.promotions.recorded_evidence(first)
    assert recorded
    assert recorded["data"] == "0" * 32 + ".dir"
    assert {"report/report.html", "provenance/provenance.json", "verdict", "model/MLmodel"} <= set(recorded)
    assert line.faults() == []


def test_a_rejected_version_cannot_become_champion(line: Line) -> None:
    line.champion()
    second = line.challenger()
    line.promotions.approve(second, why="looked at")
    line.promotions.reject(second, why="confuses 1 and 7")
    assert line.aliases() == {"champion": "1"}
    with pytest.raises(
        RegistryError, match=r"version 2 was rejected by .*: confuses 1 and 7\. Fix: first `ratchet app"
    ):
        line.promotions.promote(second, why="better")
    assert line.promotions.promote_automatically(second, over="1").champion == "1"
    line.place.client.set_model_version_tag(line.name, "2", "ratchet.verdict", '{"other": 1}')
    assert line.promotions.register(second, why="judged again", over="1").challenger is None
    assert line.faults() == []
    line.promotions.approve(second, why="1 and 7 are fine")
    assert line.promotions.promote(second, why="better").champion == "2"


def test_command_and_form_reject_a_version(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form is that of approve-flow, whose box `promote` is on by default."""
    monkeypatch.setattr(Workspace, "find", lambda: line.place.workspace)
    monkeypatch.setattr(settings, "load", lambda path: line.params)
    line.champion()
    line.challenger()
    result = CliRunner().invoke(app, ["reject", f"{line.name}/2", "--why", "too slow"])
    assert (result.exit_code, result.stdout) == (0, f"{line.name} version 2: rejected\n")
    assert line.aliases() == {"champion": "1"}
    line.challenger()
    message = f"{line.name} version 3: rejected by bob"
    assert approve_flow.fn(f"{line.name}/3", "bob", "confuses 1 and 7", reject=True).message == message
    assert line.aliases() == {"champion": "1"}
    rejections = [
        (entry.version, entry.who, entry.why) for entry in line.promotions.entries() if entry.what == "reject"
    ]
    assert rejections == [("2", user(), "too slow"), ("3", "bob", "confuses 1 and 7")]


def kill_rejection(line: Line, monkeypatch: pytest.MonkeyPatch, version: Version, *, why: str) -> None:
    """Reject a version in a process that is killed before the model card has the note."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ratchet.registry.card_note.show", killed)
        with pytest.raises(KeyboardInterrupt):
            line.promotions.reject(version, why=why)


def test_the_model_card_shows_a_rejection(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note is no part of the evidence, but another text in its place is a change of the card."""
    line.champion()
    second = line.version()
    contents = {"card.html": "<header>\n<h1>x</h1>\n<p>Good.</p>\n", "card.md": "# x\n\nGood.\n"}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
        line.promotions.registry.log_files(second.run_id, {tmp_path / name: "card"})
    line.promotions.register(second, why="good", over="1")
    line.promotions.reject(second, why="too slow")
    kill_rejection(line, monkeypatch, second, why="confuses <1> and 7")
    assert line.faults() == [f"{line.name}: the last act in the ledger was cut off: the aliases do not follow it yet"]
    line.repair()  # the later rejection replaces the note of the first
    page, text = (line.artifact(second, name) for name in contents)
    assert page.read_text().startswith(
        f'<header>\n<h1>x</h1>\n<p class="summary"><strong>Rejected</strong> by {user()}'
    )
    assert page.read_text().endswith(": confuses &lt;1&gt; and 7</p>\n<p>Good.</p>\n")
    assert text.read_text().startswith(f"# x\n\n**Rejected** by {user()} at ")
    assert "too slow" not in page.read_text() + text.read_text()
    assert line.faults() == []
    matching = require_evidence(line.promotions, second)  # as `ratchet reproduce` begins
    assert re.fullmatch(r"(\d+) of \1 digests in the ledger match the stored files", matching)
    kept = page.read_bytes()
    page.write_bytes(kept.replace(b"Rejected", b"Approved"))
    assert line.faults() == [f"{line.name} version 2: card/card.html was replaced"]
    page.write_bytes(kept)
    line.promotions.approve(second, why="fine")
    assert {name: line.artifact(second, name).read_text() for name in contents} == contents
    assert line.promotions.promote(second, why="better").champion == "2"
    assert line.faults() == []


def test_a_rejection_without_a_run_delays_no_act(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    line.champion()
    second, third = line.challenger(), line.challenger()
    line.place.client.delete_run(second.run_id)
    uri = line.promotions.registry.uri
    with active(line.place.workspace, line.params.tracking):
        mlflow_cli.main(["gc", "--backend-store-uri", uri, "--run-ids", second.run_id], standalone_mode=False)
    line.promotions.reject(second, why="slow")
    assert re.fullmatch(rf".* version 2: its model card does not say .*{second.run_id}.*", caplog.messages[-1])
    line.promotions.approve(third, why="looked at")
    assert line.promotions.promote(third, why="better").champion == "3"
    assert sum("model card" in message for message in caplog.messages) == 1
    (fault,) = line.faults()
    assert fault.startswith(f"models:/{line.name}/2: its files cannot be read")


def test_an_unwritable_card_is_named_once_and_by_audit(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    line.champion()
    second = line.version()
    (tmp_path / "card.md").write_text("# x\n\nGood.\n")
    line.promotions.registry.log_files(second.run_id, {tmp_path / "card.md": "card"})
    line.promotions.register(second, why="good", over="1")
    card = line.artifact(second, "card.md")

    def refuse(self: ModelRegistry, run_id: str, wanted: dict[Path, str]) -> None:
        raise TrackingUnavailable(str(card)) from PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(ModelRegistry, "log_files", refuse)
        line.promotions.reject(second, why="slow")
    assert "does not say that it was rejected ([Errno 13] Permission denied). Fix: " in caplog.messages[-1]
    (fault,) = line.faults()
    assert f"does not say that it was rejected. Fix: restore the card of run {second.run_id}" in fault
    line.promotions.reject(second, why="slow")
    assert "**Rejected**" in card.read_text()
    assert line.faults() == []


def test_a_repair_after_a_killed_rejection_writes_its_note(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.champion()
    second, third = line.version(), line.challenger()
    (tmp_path / "card.md").write_text("# x\n\nGood.\n")
    line.promotions.registry.log_files(second.run_id, {tmp_path / "card.md": "card"})
    line.promotions.register(second, why="good", over="1")
    kill_rejection(line, monkeypatch, second, why="slow")
    line.place.client.delete_model_version(line.name, third.number)
    line.repair()
    assert acts(line)[-1] == ("repair", None)
    assert line.artifact(second, "card.md").read_text().startswith("# x\n\n**Rejected** by ")
    assert line.faults() == []


def test_a_shadow_rule_holds_back_a_promotion(line: Line) -> None:
    line.champion()
    second = line.challenger()
    line.promotions.approve(second, why="looked at")
    name, strict = line.name, line.under(gate=GateSettings(shadow_requests=10))
    with pytest.raises(RegistryError, match=rf"{name}/2: answered 0 live requests in shadow beside {name}/1"):
        strict.promote(second, why="better")
    assert line.aliases() == {"champion": "1", "challenger": "2"}


def test_an_approval_is_void_as_soon_as_anything_changes(line: Line) -> None:
    version = line.challenger()
    line.promotions.approve(version, why="looked at")
    for changed in ("report.html", "model.safetensors", "provenance.json"):
        artifact = line.artifact(version, changed)
        kept = artifact.read_bytes()
        artifact.write_bytes(kept + b" ")
        with pytest.raises(RegistryError, match=rf"not what was registered: .*{changed} was replaced"):
            line.promotions.promote(version, why="better")
        assert line.aliases() == {"challenger": "1"}
        artifact.write_bytes(kept)
    assert line.promotions.promote(version, why="better").champion == "1"


def test_a_promotion_needs_an_approval_of_the_last_judgement(line: Line) -> None:
    version = line.challenger()
    with pytest.raises(RegistryError, match=r"version 1 is not approved\. registry\.promotion is manual"):
        line.promotions.promote(version, why="I want it")
    assert line.aliases() == {"challenger": "1"}
    line.promotions.approve(version, why="looked at")
    line.place.client.set_model_version_tag(line.name, "1", "ratchet.verdict", '{"other": 1}')
    line.promotions.register(version, why="judged again", over=None)
    with pytest.raises(RegistryError, match="not approved any more: it changed"):
        line.promotions.promote(version, why="better")
    assert acts(line)[-1] == ("renew", "1")


def test_registering_or_rejecting_a_champion_adds_no_entry(line: Line) -> None:
    version = line.champion()
    before = acts(line)
    with pytest.raises(RegistryError, match=r"version 1 is champion and cannot be rejected\. Fix: train a better"):
        line.promotions.reject(version, why="no")
    for over in (None, "1"):  # as it was compared, and now that it is champion
        line.promotions.register(version, why="good", over=over)
        line.promotions.promote_automatically(version, over="1")
    assert acts(line) == before
    assert line.aliases() == {"champion": "1"}


def proposed_command(act: Callable[[], object]) -> list[str]:
    """Return the arguments of the command that an error proposes."""
    with pytest.raises(RegistryError) as caught:
        act()
    command = re.search(r"Fix: `ratchet ([^`]+)`", str(caught.value))
    assert command, caught.value
    return command[1].replace("...", "slow").split()


def test_the_proposed_fix_of_a_refused_rejection_works(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on what the model has: a challenger, or an earlier champion that is not rejected."""
    monkeypatch.setattr(Workspace, "find", lambda: line.place.workspace)
    monkeypatch.setattr(settings, "load", lambda path: line.params)
    first, second = line.champion(), line.challenger()
    for act in (lambda: line.promotions.reject(first, why="slow"), lambda: line.promotions.rollback(None, why="slow")):
        assert proposed_command(act) == ["approve", f"{line.name}/2", "--promote", "--why", "slow"]
    assert CliRunner().invoke(app, proposed_command(act)).exit_code == 0
    assert line.aliases() == {"champion": "2"}
    fix = proposed_command(lambda: line.promotions.reject(second, why="slow"))
    assert fix == ["rollback", line.name, "--to", "1", "--why", "slow"]
    assert CliRunner().invoke(app, fix).exit_code == 0
    line.promotions.reject(second, why="slow")
    assert line.aliases() == {"champion": "1"}


ROLES: list[tuple[Callable[[Promotions, Version], object], str, str]] = [
    (lambda line, version: line.register(version, why="x", over=None), "runners", "ann"),
    (lambda line, version: line.promote_automatically(version, over=None), "runners", "ann"),
    (lambda line, version: line.approve(version, why="x"), "approvers", "bob"),
    (lambda line, version: line.reject(version, why="x"), "approvers", "bob"),
    (lambda line, version: line.promote(version, why="x"), "admins", "cem"),
    (lambda line, version: line.rollback(None, why="x"), "admins", "cem"),
    (lambda line, version: line.repair(why="x"), "admins", "cem"),
]


def test_a_user_without_the_role_changes_nothing(line: Line) -> None:
    version = line.challenger()
    before = acts(line)
    for act, role, name in ROLES:
        with pytest.raises(NotAllowed, match=rf"^{user()} may not .*: params\.yaml: access\.{role} allows {name}"):
            act(line.under(access=OTHERS), version)
        assert (acts(line), line.aliases()) == (before, {"challenger": "1"})


def test_approvers_may_promote_only_what_they_approved(line: Line) -> None:
    first, second = line.challenger(), line.challenger()
    some = line.under(access=AccessSettings(approvers=("bob",), admins=("cem",)))
    some.approve(first, why="looked at", who="bob")
    with pytest.raises(NotAllowed, match="bob may not promote"):
        some.promote(second, why="better", who="bob")
    assert some.promote(first, why="better", who="bob").champion == "1"


def test_rollback_goes_to_the_previous_champion(line: Line) -> None:
    for _ in range(3):
        line.champion()
    assert line.aliases() == {"champion": "3"}
    assert line.promotions.rollback(None, why="3 is bad").champion == "2"
    assert line.promotions.rollback(None, why="2 is bad, too").champion == "1"
    with pytest.raises(RegistryError, match="no champion before version 1"):
        line.promotions.rollback(None, why="so is 1")
    fourth = line.champion()
    assert line.promotions.rollback(None, why="4 is bad").champion == "1"  # 2 and 3 were rolled back
    assert line.promotions.rollback(fourth.number, why="it was not").champion == "4"
    assert line.aliases() == {"champion": "4"}
    assert line.faults() == []


def test_rollback_never_makes_a_rejected_version_champion(line: Line) -> None:
    for _ in range(3):
        line.champion()
    line.promotions.reject(line.promotions.registry.find(f"{line.name}/2"), why="confuses 1 and 7")
    refused = r"version 2 was rejected by .*: confuses 1 and 7\. Fix: first `ratchet approve"
    at = line.promotions.entries()[3].at  # when version 2 became champion
    for to in ("2", at):
        with pytest.raises(RegistryError, match=refused):
            line.promotions.rollback(to, why="3 is bad")
    with pytest.raises(RegistryError, match="version 9 never was champion; allowed: 1, 3"):
        line.promotions.rollback("9", why="3 is bad")
    assert line.promotions.rollback(None, why="3 is bad").champion == "1"
    assert line.promotions.rollback("3", why="it was not").champion == "3"
    line.promotions.reject(line.promotions.registry.find(f"{line.name}/1"), why="slow")
    with pytest.raises(RegistryError, match=r"before version 3 but rejected ones: 1\. Fix: `ratchet approve`"):
        line.promotions.rollback(None, why="3 is bad")
    line.promotions.approve(line.promotions.registry.find(f"{line.name}/2"), why="fine")
    assert line.promotions.rollback("2", why="3 is bad").champion == "2"


def test_rollback_names_only_stored_champions_before_this_one(line: Line) -> None:
    first = line.champion()
    second = line.champion()
    line.promotions.rollback(None, why="2 is bad")
    line.promotions.reject(second, why="confuses 1 and 7")
    with pytest.raises(RegistryError, match="no champion before version 1: nothing to go back to"):
        line.promotions.rollback(None, why="1 is bad, too")
    line.champion()
    line.promotions.reject(first, why="slow")
    with pytest.raises(RegistryError, match=r"before version 3 but rejected ones: 1\. Fix: `ratchet approve`"):
        line.promotions.rollback(None, why="3 is bad")
    line.place.client.delete_model_version(line.name, "1")
    with pytest.raises(RegistryError, match="no champion before version 3: nothing to go back to"):
        line.promotions.rollback(None, why="3 is bad")


def test_rollback_without_any_champion_is_refused(line: Line) -> None:
    """The only entry about a model can be a refused candidate."""
    line.promotions.ledger.append("judge", model=line.name, version=None, why="refused")
    with pytest.raises(RegistryError, match="the ledger names no champion: nothing to go back to"):
        line.promotions.rollback(None, why="x")
    with pytest.raises(RegistryError, match="never was champion; allowed: none"):
        line.promotions.rollback("1", why="x")


class _Clock(datetime):
    """A clock that tests set."""

    hour = 10

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime(2026, 11, 25, cls.hour, tzinfo=tz)


def test_rollback_to_a_time_names_a_changed_clock(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second champion's clock ran ahead, or the third's was set back: at 11:30 it was the first, or the third."""
    monkeypatch.setattr("ratchet.registry.ledger.datetime", _Clock)
    line.snapshots = None  # they have other times
    for hour in (10, 12, 11):
        monkeypatch.setattr(_Clock, "hour", hour)
        line.champion()
    with pytest.raises(RegistryError, match="had no champion at 2020-01-0"):
        line.promotions.rollback("2020-01-02", why="as it was")
    with pytest.raises(RegistryError, match="monday: neither a version nor a time"):
        line.promotions.rollback("monday", why="as it was")
    message = r"entry 3 has the time 2026-11-25T12:00:00Z, and the later entry 6 has the time 2026-11-25T11:00:00Z"
    with pytest.raises(
        RegistryError, match=f"{message}.*version 1 or 3 was champion. Fix: .*rollback {line.name} --to 3 --why"
    ):
        line.promotions.rollback("2026-11-25T11:30+00:00", why="as it was")
    assert line.promotions.rollback("2026-11-25T10:30+00:00", why="as it was").champion == "1"
    noted = [text for text in auditing.notes(line.place.workspace, line.params) if "a clock was changed" in text]
    assert len(noted) == 1
    assert "has the time 2026-11-25T11:00:00Z, before that of entry 4, 2026-11-25T12:00:00Z" in noted[0]
    assert line.faults() == []


def test_only_a_user_promotes_a_rolled_back_version(line: Line) -> None:
    line.champion()
    second = line.champion()
    line.promotions.rollback(None, why="2 is bad")
    line.promotions.register(second, why="good", over="1")
    assert line.promotions.promote_automatically(second, over="1").champion == "1"
    assert line.aliases() == {"champion": "1"}


def test_rollback_to_a_damaged_version_is_refused(line: Line) -> None:
    first = line.champion()
    line.champion()
    line.artifact(first, "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(RegistryError, match=r"version 1 is not what was registered: .*model\.safetensors was replaced"):
        line.promotions.rollback(None, why="2 is bad")
    assert line.aliases() == {"champion": "2"}


def test_a_candidate_compared_with_another_champion_is_not_promoted(line: Line) -> None:
    line.champion()
    second, third = line.challenger(), line.challenger()
    line.promotions.promote_automatically(second, over="1")
    with pytest.raises(ChampionMoved, match="version 2 became champion meanwhile"):
        line.promotions.promote_automatically(third, over="1")
    assert line.aliases() == {"champion": "2", "challenger": "3"}


def test_a_refused_version_is_not_challenger(line: Line) -> None:
    line.champion()
    second = line.challenger()
    line.promotions.withdraw(second, why="judged again: worse", over="1")
    assert line.aliases() == {"champion": "1"}
    line.promotions.register(second, why="judged again: better", over="1")
    assert line.aliases() == {"champion": "1", "challenger": "2"}


@pytest.mark.parametrize("cut", ["set_aliases", "set_anchor"])
def test_the_next_act_completes_a_killed_one(line: Line, monkeypatch: pytest.MonkeyPatch, cut: str) -> None:
    line.champion()
    second = line.challenger()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ModelRegistry, cut, killed)
        with pytest.raises(KeyboardInterrupt):
            line.promotions.promote_automatically(second, over="1")
    assert line.faults() == [f"{line.name}: the last act in the ledger was cut off: the aliases do not follow it yet"]
    assert line.promotions.synchronize().champion == "2"
    assert line.aliases() == {"champion": "2"}
    assert line.faults() == []


def test_an_alias_moved_by_hand_is_found_and_repaired(line: Line) -> None:
    line.champion()
    line.champion()
    line.place.client.set_registered_model_alias(line.name, "champion", "1")
    message = f"{line.name}: the alias champion is on version 1 in MLflow, and on version 2 by the ledger"
    assert [fault.partition(". Fix:")[0] for fault in line.faults()] == [message]
    with pytest.raises(RegistryError, match="ratchet audit --repair"):
        line.promotions.synchronize()
    registry = line.params.registry.model_copy(update={"model": line.name})
    params = line.params.model_copy(update={"registry": registry})
    with pytest.raises(RegistryError, match=r"the alias champion is on version 1 .*ratchet audit --repair"):
        require_agreement(line.place.workspace, params)  # before a training
    assert line.repair() == [f"{line.name}: champion is version 2, no challenger"]
    require_agreement(line.place.workspace, params)
    assert line.aliases() == {"champion": "2"}
    assert line.faults() == []
    assert line.promotions.entries()[-1].content["found"] == {"champion": "1"}


def test_an_audit_needs_no_right_to_write(line: Line) -> None:
    """The lock beside the ledger cannot be taken, as by an auditor who may only read."""
    line.champion()
    line.challenger()
    lock = line.folder / "ledger.db.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    assert line.faults() == []
    registry = line.params.registry.model_copy(update={"model": line.name})
    require_agreement(line.place.workspace, line.params.model_copy(update={"registry": registry}))
    line.place.client.set_registered_model_alias(line.name, "champion", "2")
    message = f"{line.name}: the alias champion is on version 2 in MLflow, and on version 1 by the ledger"
    assert [fault.partition(". Fix:")[0] for fault in line.faults()] == [message]
    with pytest.raises(OSError, match=r"ledger\.db\.lock"):  # an act needs it
        line.repair()


def test_an_act_during_an_audit_is_no_fault(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.champion()
    second, aliases = line.challenger(), ModelRegistry.aliases

    def promote_first(registry: ModelRegistry, name: str) -> dict[str, str]:
        monkeypatch.setattr(ModelRegistry, "aliases", aliases)
        line.promotions.promote_automatically(second, over="1")
        return aliases(registry, name)

    monkeypatch.setattr(ModelRegistry, "aliases", promote_first)
    assert line.promotions.fault() is None
    assert line.aliases() == {"champion": "2"}
    assert line.faults() == []


def test_an_audit_waits_for_an_act_that_is_under_way(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is written, and the anchor is not, when the audit looks for the first time."""
    line.champion()
    second, set_anchor, is_unfinished = line.challenger(), ModelRegistry.set_anchor, vars(AliasSync)["is_unfinished"]
    looked, audits = Event(), list[Future[list[str]]]()

    def look(sync: AliasSync) -> bool:
        value = bool(is_unfinished.fget(sync))
        looked.set()
        return value

    def finish(registry: ModelRegistry, name: str, seal: str) -> None:
        audits.append(pool.submit(line.faults))
        until(lambda: looked.is_set() or audits[0].done())
        set_anchor(registry, name, seal)

    monkeypatch.setattr(AliasSync, "is_unfinished", property(look))
    monkeypatch.setattr(ModelRegistry, "set_anchor", finish)
    with ThreadPoolExecutor(1) as pool:
        line.promotions.promote_automatically(second, over="1")
    assert [audit.result() for audit in audits] == [[]]
    assert looked.is_set()


def test_replaced_added_and_missing_files_are_named(line: Line) -> None:
    version = line.champion()
    for name in ("model.safetensors", "report.html"):
        artifact = line.artifact(version, name)
        kept = artifact.read_bytes()
        artifact.write_bytes(b"something else")
        (fault,) = line.faults()
        assert fault.startswith(f"{line.name} version 1: ")
        assert fault.endswith(f"{name} was replaced")
        artifact.write_bytes(kept)
    report = line.artifact(version, "report.html")
    report.rename(report.with_name("other.html"))
    assert line.faults() == [
        f"{line.name} version 1: report/other.html was added",
        f"{line.name} version 1: report/report.html is gone",
    ]


def test_a_deleted_version_is_named_and_can_be_repaired(line: Line) -> None:
    line.champion()
    line.champion()
    line.challenger()
    line.place.client.delete_model_version(line.name, "3")
    assert line.faults() == [f"{line.name} version 3 was deleted in MLflow; the ledger knows it"]
    line.champion()  # a missing challenger blocks no act
    line.place.client.delete_model_version(line.name, "4")
    assert "champion is on no version in MLflow, and on version 4, which was deleted there, by" in line.faults()[0]
    line.repair()
    assert line.faults() == []
    assert line.promotions.rollback(None, why="4 is gone").champion == "2"


def test_a_version_unknown_to_the_ledger_is_named(line: Line) -> None:
    line.champion()
    version = line.version()
    assert line.faults() == []
    with pytest.raises(RegistryError, match="the ledger does not know it"):
        line.promotions.approve(version, why="x")
    line.place.client.set_registered_model_alias(line.name, "blue", "2")
    assert line.faults() == [f"{line.name} version 2 has an alias, and the ledger does not know it"]


def test_another_ledger_is_recognized_and_repairs_nothing(line: Line, tmp_path: Path) -> None:
    line.champion()
    line.params = line.params.model_copy(
        update={"registry": RegistrySettings(ledger=f"sqlite:///{tmp_path}/other.db", export="none")}
    )
    with pytest.raises(RegistryError, match="the ledger lacks the entry"):
        line.promotions.synchronize()
    assert line.repair() == []
    assert line.aliases() == {"champion": "1"}


def test_a_model_older_than_the_ledger_is_adopted(line: Line) -> None:
    first, second = line.version(), line.version()
    line.place.client.set_registered_model_alias(line.name, "champion", first.number)
    line.place.client.set_registered_model_alias(line.name, "challenger", second.number)
    now = line.promotions.synchronize()
    assert (now.champion, now.challenger) == ("1", "2")
    assert acts(line) == [("adopt", None)]
    line.champion()
    assert line.promotions.rollback(None, why="3 is bad").champion == "1"
    assert line.faults() == []


PROMOTES = """
import sys
from pathlib import Path
from ratchet.errors import ChampionMoved
from ratchet.registry.promotion import Promotions
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
root, params, name, number = sys.argv[1:]
promotions = Promotions(Workspace(Path(root)), Params.model_validate_json(params), name)
try:
    promotions.promote_automatically(promotions.registry.find(f"{name}/{number}"), over="1")
except ChampionMoved:
    sys.exit(3)
"""


@pytest.mark.system
def test_of_two_concurrent_promotions_one_succeeds(line: Line) -> None:
    line.champion()
    line.challenger()
    line.challenger()
    about = (str(line.place.workspace.root), line.params.model_dump_json(), line.name)
    workers = [fork_server.start_program(PROMOTES, *about, number) for number in ("2", "3")]
    assert sorted(worker.wait() for worker in workers) == [0, 3]
    assert [what for what, _ in acts(line)].count("promote") == 2
    assert line.aliases()["champion"] == line.promotions.state().champion
    assert line.faults() == []


def test_a_version_refused_later_cannot_be_promoted(line: Line) -> None:
    line.champion()
    second = line.challenger()
    line.place.client.set_model_version_tag(line.name, "2", "ratchet.verdict", '{"passed": false}')
    line.promotions.withdraw(second, why="judged again: worse", over="1")
    assert line.faults() == []
    for act in (line.promotions.approve, line.promotions.promote):
        with pytest.raises(RegistryError, match="version 2 was refused when it was judged again"):
            act(second, why="x")
    before = acts(line)
    line.promotions.withdraw(second, why="judged again: worse", over="1")
    assert acts(line) == before


def test_rollback_to_a_champion_refused_later_is_possible(line: Line) -> None:
    first = line.champion()
    line.champion()
    line.place.client.set_model_version_tag(line.name, "1", "ratchet.verdict", '{"passed": false}')
    line.promotions.withdraw(first, why="worse than 2", over="2")
    assert line.faults() == []
    assert line.promotions.rollback(None, why="2 is bad").champion == "1"


def test_registering_again_detects_a_replaced_model(line: Line) -> None:
    version = line.champion()
    line.artifact(version, "model.safetensors").write_bytes(b"other weights")
    for act in (line.promotions.register, line.promotions.withdraw):
        with pytest.raises(
            RegistryError, match=r"version 1 is not what was registered: .*model\.safetensors was replaced"
        ):
            act(version, why="good", over=None)
    (fault,) = line.faults()
    assert fault.endswith("model.safetensors was replaced")


def test_rollback_needs_a_former_champion(line: Line) -> None:
    for _ in range(2):
        line.champion()
    line.challenger()
    with pytest.raises(RegistryError, match=r"version 3 never was champion; allowed: 1, 2\. `ratchet promote`"):
        line.promotions.rollback("3", why="a way around approval")
    assert line.aliases() == {"champion": "2", "challenger": "3"}


def test_an_approval_does_not_outlive_a_rollback_or_the_role(line: Line) -> None:
    line.champion()
    second = line.challenger()
    some = line.under(access=AccessSettings(approvers=("bob",), admins=(user(),)))
    some.approve(second, why="looked at", who="bob")
    some.promote(second, why="better", who="bob")
    some.rollback(None, why="it is not")
    with pytest.raises(NotAllowed, match="bob may not promote"):
        some.promote(second, why="again", who="bob")
    with pytest.raises(RegistryError, match="not approved any more"):
        some.promote(second, why="again")
    some.approve(second, why="looked at again", who="bob")
    with pytest.raises(NotAllowed, match="bob may not promote"):
        line.under(access=AccessSettings(approvers=("eva",), admins=("cem",))).promote(second, why="x", who="bob")
    assert some.promote(second, why="again", who="bob").champion == "2"


def test_the_gate_does_not_undo_a_rollback_that_came_between(line: Line) -> None:
    line.champion()
    second = line.challenger()
    line.promotions.approve(second, why="looked at")
    line.promotions.promote(second, why="better")
    line.promotions.rollback(None, why="it is not")
    assert line.promotions.promote_automatically(second, over="1").champion == "1"


def test_a_model_created_again_inherits_nothing(line: Line) -> None:
    line.champion()
    line.promotions.registry.set_aliases(line.name, {"champion": None})
    line.place.client.delete_registered_model(line.name)
    message = f"{line.name}: was deleted in MLflow, and its champion was version 1 by the ledger"
    assert [fault.partition(". Fix:")[0] for fault in line.faults()][:1] == [message]
    with pytest.raises(RegistryError, match="was deleted in MLflow"):
        line.promotions.synchronize()
    line.repair()
    again = line.version()  # number 1, too
    assert again.number == "1"
    assert line.promotions.synchronize().champion is None
    assert line.aliases() == {}
    with pytest.raises(RegistryError, match="the ledger does not know it"):
        line.promotions.approve(again, why="x")
    line.promotions.register(again, why="good", over=None)
    assert line.promotions.promote_automatically(again, over=None).champion == "1"
    assert line.faults() == []


def test_an_entry_with_damaged_content_is_named(line: Line) -> None:
    version = line.champion()
    line.artifact(version, "report.html").write_bytes(b"something else")
    for content in ("{}", "x", "[]"):
        with sqlite3.connect(line.folder / "ledger.db") as connection:
            connection.execute("DROP TRIGGER IF EXISTS ledger_no_update")
            connection.execute("UPDATE ledger SET content = ? WHERE number = 1", (content,))
        connection.close()
        assert any("ledger entry 1 (register" in fault and "was edited" in fault for fault in line.faults())
