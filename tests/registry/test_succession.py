"""Aliases move by the ledger and nothing else: who may, what voids an approval, what a kill leaves, what is found."""

import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import ChampionMoved, LedgerBroken, NotAllowed, RegistryError
from ratchet.registry import audit as auditing
from ratchet.registry.access import user
from ratchet.registry.ledger import Ledger
from ratchet.registry.models import ModelRegistry
from ratchet.registry.promotion import Promotions
from ratchet.registry.versions import Version
from ratchet.settings.model import AccessSettings, Params, RegistrySettings

pytestmark = pytest.mark.usefixtures("mlflows_own")
OTHERS = AccessSettings(runners=("ann",), approvers=("bob",), admins=("cem",))
Line = Any  # conftest.py's


@pytest.fixture
def line(database: Any, new_line: Callable[[Any], Line]) -> Line:
    return new_line(database)


def acts(line: Line) -> list[tuple[str, str | None]]:
    return [(entry.what, entry.version) for entry in line.succession.entries()]


def test_every_step_is_in_the_ledger_before_the_alias_moves(line: Line) -> None:
    first = line.champion()
    second = line.challenger()
    assert line.aliases() == {"champion": "1", "challenger": "2"}
    line.succession.approve(second, why="looked at")
    line.succession.promote(second, why="better")
    assert line.aliases() == {"champion": "2"}
    assert acts(line) == [
        ("register", "1"), ("promote", "1"), ("register", "2"), ("approve", "2"), ("promote", "2"),
    ]  # fmt: skip
    assert {entry.who for entry in line.succession.entries()} == {user()}
    assert [entry.why for entry in line.succession.entries()][-2:] == ["looked at", "better"]
    noted = line.succession.recorded_evidence(first)
    assert noted
    assert noted["data"] == "0" * 32 + ".dir"
    assert {"report/report.html", "provenance/provenance.json", "verdict", "model/MLmodel"} <= set(noted)
    assert line.amiss() == []


def test_without_an_approval_a_person_cannot_promote(line: Line) -> None:
    version = line.challenger()
    with pytest.raises(RegistryError, match=r"version 1 is not approved: registry\.promotion is manual"):
        line.succession.promote(version, why="I want it")
    assert line.aliases() == {"challenger": "1"}


@pytest.mark.parametrize("changed", ["report.html", "model.safetensors", "provenance.json"])
def test_an_approval_is_void_as_soon_as_anything_changes(line: Line, changed: str) -> None:
    version = line.challenger()
    line.succession.approve(version, why="looked at")
    artifact = line.artifact(version, changed)
    kept = artifact.read_bytes()
    artifact.write_bytes(kept + b" ")
    with pytest.raises(RegistryError, match=rf"not what was registered: .*{changed} was replaced"):
        line.succession.promote(version, why="better")
    assert line.aliases() == {"challenger": "1"}
    artifact.write_bytes(kept)
    assert line.succession.promote(version, why="better").champion == "1"


def test_an_approval_is_void_when_the_run_is_judged_anew(line: Line) -> None:
    version = line.challenger()
    line.succession.approve(version, why="looked at")
    line.place.client.set_model_version_tag(line.name, "1", "ratchet.verdict", '{"other": 1}')
    line.succession.register(version, why="judged again", over=None)
    with pytest.raises(RegistryError, match="not approved any more: it changed"):
        line.succession.promote(version, why="better")
    assert acts(line)[-1] == ("renew", "1")


def test_registering_again_says_nothing_twice(line: Line) -> None:
    version = line.champion()
    before = acts(line)
    for over in (None, "1"):  # as it was compared, and as it would be now that it is champion itself
        line.succession.register(version, why="good", over=over)
        line.succession.promote_automatically(version, over="1")
    assert acts(line) == before
    assert line.aliases() == {"champion": "1"}


@pytest.mark.parametrize(
    ("act", "role", "name"),
    [
        (lambda line, version: line.register(version, why="x", over=None), "runners", "ann"),
        (lambda line, version: line.promote_automatically(version, over=None), "runners", "ann"),
        (lambda line, version: line.approve(version, why="x"), "approvers", "bob"),
        (lambda line, version: line.promote(version, why="x"), "admins", "cem"),
        (lambda line, version: line.rollback(None, why="x"), "admins", "cem"),
        (lambda line, version: line.repair(why="x"), "admins", "cem"),
    ],
)
def test_whoever_has_not_the_role_moves_nothing(
    line: Line, act: Callable[[Promotions, Version], object], role: str, name: str
) -> None:
    version = line.challenger()
    before = acts(line)
    with pytest.raises(NotAllowed, match=rf"^{user()} may not .*: params\.yaml: access\.{role} allows {name}"):
        act(line.under(access=OTHERS), version)
    assert (acts(line), line.aliases()) == (before, {"challenger": "1"})


def test_four_eyes_are_two_people(line: Line) -> None:
    version = line.challenger()
    eyes = line.under(access=AccessSettings(four_eyes=True))
    with pytest.raises(NotAllowed, match=rf"{user()} ran it and cannot approve it"):
        eyes.approve(version, why="mine")
    eyes.approve(version, why="looked at", who="bob")
    assert eyes.promote(version, why="better", who="bob").champion == "1"


def test_whoever_approves_may_promote_that_and_nothing_else(line: Line) -> None:
    first, second = line.challenger(), line.challenger()
    some = line.under(access=AccessSettings(approvers=("bob",), admins=("cem",)))
    some.approve(first, why="looked at", who="bob")
    with pytest.raises(NotAllowed, match="bob may not promote"):
        some.promote(second, why="better", who="bob")
    assert some.promote(first, why="better", who="bob").champion == "1"


def test_rollback_goes_to_the_last_good_one_and_on_from_there(line: Line) -> None:
    for _ in range(3):
        line.champion()
    assert line.aliases() == {"champion": "3"}
    assert line.succession.rollback(None, why="3 is bad").champion == "2"
    assert line.succession.rollback(None, why="2 is bad, too").champion == "1"
    with pytest.raises(RegistryError, match="no champion before version 1"):
        line.succession.rollback(None, why="so is 1")
    fourth = line.champion()
    assert line.succession.rollback(None, why="4 is bad").champion == "1"  # 2 and 3 were taken off
    assert line.succession.rollback(fourth.number, why="it was not").champion == "4"
    assert line.aliases() == {"champion": "4"}
    assert line.amiss() == []


def test_rollback_without_any_champion_says_so(line: Line) -> None:
    """The ledger can know a model by a refused candidate alone."""
    line.succession.ledger.append("judge", model=line.name, version=None, why="refused")
    with pytest.raises(RegistryError, match="the ledger names no champion: nothing to go back to"):
        line.succession.rollback(None, why="x")
    with pytest.raises(RegistryError, match="never was champion; allowed: none"):
        line.succession.rollback("1", why="x")


def test_rollback_goes_to_a_time(line: Line) -> None:
    line.champion()
    at = line.succession.entries()[-1].at
    line.champion()
    line.champion()
    assert line.succession.rollback(at, why="as it was").champion == "1"
    with pytest.raises(RegistryError, match="had no champion at 2020-01-0"):
        line.succession.rollback("2020-01-02", why="as it was")
    with pytest.raises(RegistryError, match="monday: neither a version nor a time"):
        line.succession.rollback("monday", why="as it was")


def test_a_rolled_back_version_comes_back_by_a_person_alone(line: Line) -> None:
    line.champion()
    second = line.champion()
    line.succession.rollback(None, why="2 is bad")
    line.succession.register(second, why="good", over="1")
    assert line.succession.promote_automatically(second, over="1").champion == "1"
    assert line.aliases() == {"champion": "1"}


def test_a_damaged_version_is_not_gone_back_to(line: Line) -> None:
    first = line.champion()
    line.champion()
    line.artifact(first, "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(RegistryError, match=r"version 1 is not what was registered: .*model\.safetensors was replaced"):
        line.succession.rollback(None, why="2 is bad")
    assert line.aliases() == {"champion": "2"}


def test_a_model_compared_with_another_champion_is_not_crowned(line: Line) -> None:
    line.champion()
    second, third = line.challenger(), line.challenger()
    line.succession.promote_automatically(second, over="1")
    with pytest.raises(ChampionMoved, match="version 2 became champion meanwhile"):
        line.succession.promote_automatically(third, over="1")
    assert line.aliases() == {"champion": "2", "challenger": "3"}


def test_a_refused_version_is_no_challenger(line: Line) -> None:
    line.champion()
    second = line.challenger()
    line.succession.withdraw(second, why="judged again: worse", over="1")
    assert line.aliases() == {"champion": "1"}
    line.succession.register(second, why="judged again: better", over="1")
    assert line.aliases() == {"champion": "1", "challenger": "2"}


@pytest.mark.parametrize("cut", ["set_aliases", "set_anchor"])
def test_what_a_kill_leaves_the_next_act_finishes(line: Line, monkeypatch: pytest.MonkeyPatch, cut: str) -> None:
    line.champion()
    second = line.challenger()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ModelRegistry, cut, killed)
        with pytest.raises(KeyboardInterrupt):
            line.succession.promote_automatically(second, over="1")
    assert line.amiss() == [f"{line.name}: the last act in the ledger was cut off: the aliases do not follow it yet"]
    assert line.succession.synchronize().champion == "2"
    assert line.aliases() == {"champion": "2"}
    assert line.amiss() == []


def test_an_alias_swapped_by_hand_is_found_and_put_back(line: Line) -> None:
    line.champion()
    line.champion()
    line.place.client.set_registered_model_alias(line.name, "champion", "1")
    told = f"{line.name}: the alias champion is on version 1 in MLflow, and on version 2 by the ledger"
    assert [one.partition(". Fix:")[0] for one in line.amiss()] == [told]
    with pytest.raises(RegistryError, match="ratchet audit --repair"):
        line.succession.synchronize()
    assert line.repair() == [f"{line.name}: champion is version 2, no challenger"]
    assert line.aliases() == {"champion": "2"}
    assert line.amiss() == []
    assert line.succession.entries()[-1].content["found"] == {"champion": "1"}


@pytest.mark.parametrize(("name", "told"), [("model.safetensors", "was replaced"), ("report.html", "was replaced")])
def test_a_replaced_artifact_is_found_and_named(line: Line, name: str, told: str) -> None:
    version = line.champion()
    line.artifact(version, name).write_bytes(b"something else")
    (amiss,) = line.amiss()
    assert amiss.startswith(f"{line.name} version 1: ")
    assert amiss.endswith(f"{name} {told}")


def test_files_that_are_added_or_gone_are_named(line: Line) -> None:
    version = line.champion()
    report = line.artifact(version, "report.html")
    report.rename(report.with_name("other.html"))
    assert line.amiss() == [
        f"{line.name} version 1: report/other.html was added",
        f"{line.name} version 1: report/report.html is gone",
    ]


def test_a_version_deleted_in_mlflow_is_named_and_repair_takes_note(line: Line) -> None:
    line.champion()
    line.champion()
    line.challenger()
    line.place.client.delete_model_version(line.name, "3")
    assert line.amiss() == [f"{line.name} version 3 was deleted in MLflow; the ledger knows it"]
    line.champion()  # a challenger that is gone is in nobody's way
    line.place.client.delete_model_version(line.name, "4")
    assert "champion is on no version in MLflow, and on version 4, which was deleted there, by" in line.amiss()[0]
    line.repair()
    assert line.amiss() == []
    assert line.succession.rollback(None, why="4 is gone").champion == "2"


def test_a_version_that_came_by_another_door_is_found_when_it_has_an_alias(line: Line) -> None:
    line.champion()
    version = line.version()
    assert line.amiss() == []
    with pytest.raises(RegistryError, match="the ledger does not know it"):
        line.succession.approve(version, why="x")
    line.place.client.set_registered_model_alias(line.name, "blue", "2")
    assert line.amiss() == [f"{line.name} version 2 has an alias, and the ledger does not know it"]


def test_a_ledger_whose_end_was_cut_off_is_found(line: Line) -> None:
    line.champion()
    line.champion()
    with sqlite3.connect(line.folder / "ledger.db") as connection:
        connection.execute("DROP TRIGGER ledger_no_delete")
        connection.execute("DELETE FROM ledger WHERE number > 2")
    connection.close()
    assert line.amiss()[0].startswith("ledger entry 3 is gone, which .ratchet/ledger-")
    assert any(one.startswith(f"{line.name}: the ledger lacks the entry ") for one in line.amiss())
    with pytest.raises(LedgerBroken, match=r"ledger entry 3 is gone.*`ratchet recover`"):
        line.succession.synchronize()


def test_another_ledger_is_not_taken_for_the_right_one_and_repairs_nothing(line: Line, tmp_path: Path) -> None:
    line.champion()
    line.params = line.params.model_copy(
        update={"registry": RegistrySettings(ledger=f"sqlite:///{tmp_path}/other.db", export="none")}
    )
    with pytest.raises(RegistryError, match="the ledger lacks the entry"):
        line.succession.synchronize()
    assert line.repair() == []
    assert line.aliases() == {"champion": "1"}


def test_where_the_ledger_is_lost_a_person_takes_over_what_stands(line: Line) -> None:
    line.champion()
    (line.folder / "ledger.db").unlink()
    assert line.succession.adopt(why="the disk failed").champion == "1"
    (entry,) = line.succession.entries()
    assert (entry.what, entry.why, len(entry.content["lost"])) == ("adopt", "the disk failed", 64)
    assert line.amiss() == []
    line.champion()
    assert line.succession.rollback(None, why="2 is bad").champion == "1"


def test_a_model_older_than_the_ledger_is_taken_over_as_it_stands(line: Line) -> None:
    first, second = line.version(), line.version()
    line.place.client.set_registered_model_alias(line.name, "champion", first.number)
    line.place.client.set_registered_model_alias(line.name, "challenger", second.number)
    now = line.succession.synchronize()
    assert (now.champion, now.challenger) == ("1", "2")
    assert acts(line) == [("adopt", None)]
    line.champion()
    assert line.succession.rollback(None, why="3 is bad").champion == "1"
    assert line.amiss() == []


def test_two_that_were_judged_against_the_same_champion_do_not_both_get_in(line: Line) -> None:
    import multiprocessing

    line.champion()
    versions = [line.challenger(), line.challenger()]
    context = multiprocessing.get_context("spawn")
    outcomes: Any = context.Queue()
    workers = [
        context.Process(target=_crown, args=(line.place.workspace, line.params, line.name, one, outcomes))
        for one in versions
    ]
    for worker in workers:
        worker.start()
    told = sorted(outcomes.get() for _ in workers)
    for worker in workers:
        worker.join()
    assert told == ["crowned", "moved"]
    assert [what for what, _ in acts(line)].count("promote") == 2
    assert line.aliases()["champion"] == line.succession.state().champion
    assert line.amiss() == []


def _crown(workspace: Any, params: Params, name: str, version: Version, outcomes: Any) -> None:
    try:
        Promotions(workspace, params, name).promote_automatically(version, over="1")
    except ChampionMoved:
        outcomes.put("moved")
    else:
        outcomes.put("crowned")


def test_the_ledger_of_all_models_is_one_chain(line: Line) -> None:
    line.champion()
    ledger = Ledger(line.place.workspace, line.params.registry.ledger)
    ledger.append("approve", model="another", version="1")
    assert [entry.number for entry in ledger.entries()] == [1, 2, 3]


def test_a_pickle_that_anybody_puts_into_the_store_is_found(
    place: Any, new_line: Callable[[Any], Line], tmp_path: Path
) -> None:
    line = new_line(place)
    version = line.champion()

    def told() -> list[str]:
        found = auditing.pickles(place.workspace, line.params)
        return [one for one in found if version.run_id in one]

    assert told() == []
    planted = tmp_path / "notes.txt"
    planted.write_bytes(pickle.dumps({"weights": Path("x")}))
    place.client.log_artifact(version.run_id, str(planted), "report")
    (one,) = told()
    assert one.startswith(f"run {version.run_id}: report/notes.txt: ")
    assert "pickle" in one
    assert line.amiss() == [f"{line.name} version 1: report/notes.txt was added"]


def test_on_a_ledger_that_was_cut_off_nobody_acts(line: Line) -> None:
    versions = [line.champion() for _ in range(3)]
    with sqlite3.connect(line.folder / "ledger.db") as connection:
        connection.execute("DROP TRIGGER ledger_no_delete")
        connection.execute("DELETE FROM ledger WHERE number > 2")
    connection.close()
    acts: list[Callable[[], object]] = [
        lambda: line.succession.approve(versions[0], why="x"),
        lambda: line.succession.promote(versions[0], why="x"),
        lambda: line.succession.rollback("1", why="x"),
        lambda: line.succession.register(versions[0], why="x", over=None),
        lambda: line.succession.repair(why="x"),
    ]
    for act in acts:
        with pytest.raises(LedgerBroken, match=r"ledger entry 3 is gone.*`ratchet recover`"):
            act()
    assert line.aliases() == {"champion": "3"}


def test_a_version_refused_when_judged_again_is_neither_accused_nor_promoted(line: Line) -> None:
    line.champion()
    second = line.challenger()
    line.place.client.set_model_version_tag(line.name, "2", "ratchet.verdict", '{"passed": false}')
    line.succession.withdraw(second, why="judged again: worse", over="1")
    assert line.amiss() == []
    for act in (line.succession.approve, line.succession.promote):
        with pytest.raises(RegistryError, match="version 2 was refused when it was judged again"):
            act(second, why="x")
    before = acts(line)
    line.succession.withdraw(second, why="judged again: worse", over="1")
    assert acts(line) == before


def test_a_former_champion_that_was_judged_again_can_be_gone_back_to(line: Line) -> None:
    first = line.champion()
    line.champion()
    line.place.client.set_model_version_tag(line.name, "1", "ratchet.verdict", '{"passed": false}')
    line.succession.withdraw(first, why="worse than 2", over="2")
    assert line.amiss() == []
    assert line.succession.rollback(None, why="2 is bad").champion == "1"


def test_registering_again_does_not_take_a_replaced_model_for_the_right_one(line: Line) -> None:
    version = line.champion()
    line.artifact(version, "model.safetensors").write_bytes(b"other weights")
    for act in (line.succession.register, line.succession.withdraw):
        with pytest.raises(
            RegistryError, match=r"version 1 is not what was registered: .*model\.safetensors was replaced"
        ):
            act(version, why="good", over=None)
    (told,) = line.amiss()
    assert told.endswith("model.safetensors was replaced")


def test_rollback_makes_nobody_champion_who_never_was(line: Line) -> None:
    line.champion()
    line.challenger()
    with pytest.raises(RegistryError, match="version 2 never was champion; allowed: 1"):
        line.succession.rollback("2", why="a way around approval")
    assert line.aliases() == {"champion": "1", "challenger": "2"}


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
    line.succession.approve(second, why="looked at")
    line.succession.promote(second, why="better")
    line.succession.rollback(None, why="it is not")
    assert line.succession.promote_automatically(second, over="1").champion == "1"


def test_a_model_deleted_in_mlflow_is_named_and_one_made_again_inherits_nothing(line: Line) -> None:
    line.champion()
    line.succession.registry.set_aliases(line.name, {"champion": None})
    line.place.client.delete_registered_model(line.name)
    told = f"{line.name}: was deleted in MLflow, and its champion was version 1 by the ledger"
    assert [one.partition(". Fix:")[0] for one in line.amiss()][:1] == [told]
    with pytest.raises(RegistryError, match="was deleted in MLflow"):
        line.succession.synchronize()
    line.repair()
    again = line.version()  # number 1, too
    assert again.number == "1"
    assert line.succession.synchronize().champion is None
    assert line.aliases() == {}
    with pytest.raises(RegistryError, match="the ledger does not know it"):
        line.succession.approve(again, why="x")
    line.succession.register(again, why="good", over=None)
    assert line.succession.promote_automatically(again, over=None).champion == "1"
    assert line.amiss() == []


@pytest.mark.parametrize("content", ["{}", "x", "[]"])
def test_an_entry_whose_content_was_spoilt_is_named_beside_all_else(line: Line, content: str) -> None:
    version = line.champion()
    line.artifact(version, "report.html").write_bytes(b"something else")
    with sqlite3.connect(line.folder / "ledger.db") as connection:
        connection.execute("DROP TRIGGER ledger_no_update")
        connection.execute("UPDATE ledger SET content = ? WHERE number = 1", (content,))
    connection.close()
    assert any("ledger entry 1 (register" in one and "was edited" in one for one in line.amiss())


def test_four_eyes_see_whom_mlflow_has_for_the_run(line: Line) -> None:
    version = line.challenger()
    line.place.client.set_tag(version.run_id, "mlflow.user", "eva")
    eyes = line.under(access=AccessSettings(four_eyes=True))
    with pytest.raises(NotAllowed, match="eva ran it"):
        eyes.approve(version, why="mine", who="eva")
