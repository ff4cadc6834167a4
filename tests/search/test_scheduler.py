"""Workers that report curves instead of training: what every search keeps, however it is disturbed."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from simulated_search import RATE, SPACE, Worker, finish, finish_with, new_study, quality

from ratchet.errors import StudyError
from ratchet.search.early_ends import rungs
from ratchet.search.finalists import finalists, winner
from ratchet.search.records import Study, Trial
from ratchet.search.scheduler import Progress, release
from ratchet.search.store import LeaseLost, StudyStore
from ratchet.settings.model import Params
from ratchet.training.checkpoint import read_checkpoint
from ratchet.workspace import Workspace
from tasks.search_trial import TrialTraining
from tasks.search_worker import _search

CHOICES = {
    RATE: {"choice": [0.01, 0.02, 0.03]},
    "training.betas": {"choice": [[0.9, 0.99], [0.9, 0.999]]},
    "training.nesterov": {"choice": [True, False]},
}
NESTED = {
    "training.optimizer": {"choice": ["adamw", "sgd"]},
    "training.momentum": {"float": [0.8, 0.99], "when": {"training.optimizer": "sgd"}},
    RATE: {"float": [0.001, 0.1], "log": True},
}
SAMPLERS = ("tpe", "random", "grid", "gp")
ENDS = ("COMPLETE", "PRUNED", "FAIL")
PRUNERS = ("none", "median", "successive-halving", "hyperband")


def content(study: Study) -> list[Any]:
    """Return the results of a search, without times and losses."""
    return [
        (trial.number, trial.key, trial.values, trial.state, trial.curve, trial.objectives, trial.marks)
        for trial in study.trials
    ]


def assert_sound(study: Study) -> None:
    """No settings twice, no gap in the numbers, every trial has ended."""
    assert [trial.number for trial in study.trials] == list(range(len(study.trials)))
    assert max(Counter(trial.key for trial in study.trials).values()) == 1
    assert {trial.state for trial in study.trials} <= {"complete", "pruned", "failed"}
    for trial in study.trials:
        assert [epoch for epoch, _ in trial.curve] == list(range(1, trial.epochs + 1))
        if trial.state == "complete":
            assert trial.epochs == study.epochs
            assert trial.objectives
        if trial.state == "pruned" and study.pruner == "successive-halving":
            assert trial.epochs in rungs(study)


@pytest.mark.parametrize("pruner", PRUNERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_three_workers_that_are_killed_end_soundly(sampler: str, pruner: str, in_memory) -> None:
    params, study = new_study(
        CHOICES if sampler == "grid" else SPACE, trials=11, sampler=sampler, pruner=pruner, max_losses=99, epochs=4
    )
    ended = finish_with(in_memory(study), params, workers=3, kills=6, draw=random.Random(f"{sampler} {pruner}"))
    assert_sound(ended)
    assert len(ended.searched) == 11
    assert ended.winner == ended.ranked()[0].number
    assert sum(trial.losses for trial in ended.trials) <= 6
    if pruner == "none":
        assert {trial.state for trial in ended.trials} == {"complete"}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_one_killed_worker_finds_the_same_trials(sampler: str, in_memory) -> None:
    params, study = new_study(
        CHOICES if sampler == "grid" else SPACE, trials=12, sampler=sampler, max_losses=99, seeds=2, epochs=4
    )
    undisturbed = finish(in_memory(study), params)
    killed = finish_with(in_memory(study), params, workers=1, kills=20, draw=random.Random(sampler))
    assert content(killed) == content(undisturbed)
    assert sum(trial.losses for trial in killed.trials) > 2
    assert killed.winner == undisturbed.winner


def test_only_the_best_third_of_a_rung_continues(in_memory) -> None:
    params, study = new_study(trials=30, sampler="random", pruner="successive-halving")
    ended = finish(in_memory(study), params)
    assert rungs(study) == [1, 3]
    for rung, epoch in enumerate(rungs(study)):
        reached = [trial for trial in ended.trials if f"completed_rung_{rung}" in trial.marks]
        for trial in reached:
            before = sorted((each.curve[epoch - 1][1] for each in reached if each.number <= trial.number), reverse=True)
            passes = trial.curve[epoch - 1][1] in before[: max(1, len(before) // 3)]
            assert (trial.epochs > epoch) == (passes or trial.number == 0 < study.search.seeds - 1)


@pytest.mark.parametrize("unheard", [{1}, {3}, {1, 3}, range(1, 9)], ids=["first", "second", "both", "all"])
@pytest.mark.parametrize("pruner", PRUNERS)
def test_trials_end_alike_if_the_storage_misses_epochs(pruner: str, unheard: Any, in_memory) -> None:
    params, study = new_study(trials=12, sampler="random", pruner=pruner)
    undisturbed = finish(in_memory(study), params)
    store = in_memory(study)
    list(Worker(store, params, "worker", unheard=unheard).acts())
    assert content(store.require()) == content(undisturbed)


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    "write",
    ["set_trial_intermediate_value", "set_trial_user_attr", "set_trial_system_attr", "set_trial_state_values"],
)
def test_worker_killed_as_it_records_an_end_changes_nothing(write: str, in_memory, monkeypatch) -> None:
    """It is killed once at each change by which it records an epoch, a verdict of the pruner, or the end of a trial."""
    params, study = new_study(trials=8, sampler="random", max_losses=99)
    undisturbed = finish(in_memory(study), params)
    store = in_memory(study)
    original, seen = getattr(store._storage, write), set()

    def killed(identity: int, what: Any, *values: Any) -> None:
        is_point = write in ("set_trial_intermediate_value", "set_trial_system_attr")
        is_end = is_point or what == "reason" or getattr(what, "name", "") in ENDS
        dies = is_end and (identity, what) not in seen
        seen.add((identity, what))
        if not (dies and write == "set_trial_state_values"):
            original(identity, what, *values)
        if dies:
            raise Killed

    monkeypatch.setattr(store._storage, write, killed)
    kills = 0
    while store.require().state != "ended":
        try:
            finish(store, params)
        except Killed:
            kills += 1
            release(store, "worker")
    assert kills > 3
    assert content(store.require()) == content(undisturbed)


def test_hyperband_begins_at_several_rungs(in_memory) -> None:
    params, study = new_study(trials=40, sampler="random", pruner="hyperband", epochs=9)
    ended = finish(in_memory(study), params)
    assert {trial.epochs for trial in ended.trials} == {1, 3, 9}
    beyond = [trial for trial in ended.trials if trial.epochs > 1 and not trial.marks.get("completed_rung_0")]
    assert beyond  # of a bracket that begins later


def test_bad_trials_cost_few_epochs(in_memory) -> None:
    total = {}
    for pruner in ("none", "median", "successive-halving"):
        params, study = new_study(trials=18, sampler="random", pruner=pruner)
        ended = finish(in_memory(study), params)
        total[pruner] = sum(trial.epochs for trial in ended.trials)
        assert ended.winner is not None
    assert total["none"] == 18 * 9
    assert total["median"] < 0.8 * total["none"]
    assert total["successive-halving"] < 0.5 * total["none"]


def test_the_present_settings_are_the_first_trial(in_memory) -> None:
    params, study = new_study(trials=1)
    (trial,) = finish(in_memory(study), params).trials
    assert trial.values == {RATE: params.training.learning_rate, "training.batch_size": params.training.batch_size}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("pruner", ["median", "successive-halving"])
def test_present_settings_outside_the_space_win_if_best(sampler: str, pruner: str, in_memory) -> None:
    space = {RATE: {"choice": [5.0, 50.0]}, "training.optimizer": {"choice": ["adam", "sgd"]}}
    params, study = new_study(space, trials=9, sampler=sampler, pruner=pruner)
    params = params.model_copy(update={"training": params.training.model_copy(update={RATE.partition(".")[2]: 0.02})})
    ended = finish(in_memory(study), params)
    assert_sound(ended)
    assert ended.trials[0].values == {RATE: 0.02, "training.optimizer": "adamw"}
    assert len(ended.searched) == 1 + 4
    assert ended.winner == 0


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_small_space_ends_when_it_is_tried(sampler: str, in_memory) -> None:
    """Also one of lists and booleans; no point comes twice."""
    params, study = new_study(CHOICES, trials=50, sampler=sampler, pruner="none", epochs=1)
    ended = finish(in_memory(study), params)
    assert_sound(ended)
    assert ended.reason == "every choice of the space has been tried"
    assert len(ended.trials) == 1 + 12  # the first one has the present settings, which the space does not contain
    assert all(isinstance(trial.values["training.betas"], list) for trial in ended.trials)
    assert all(isinstance(trial.values["training.nesterov"], bool) for trial in ended.trials)


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp"])
def test_a_conditional_setting_is_absent_elsewhere(sampler: str, in_memory) -> None:
    params, study = new_study(NESTED, trials=14, sampler=sampler, pruner="none", epochs=1)
    ended = finish(in_memory(study), params)
    assert {trial.values["training.optimizer"] for trial in ended.trials} == {"adamw", "sgd"}
    for trial in ended.trials:
        assert ("training.momentum" in trial.values) == (trial.values["training.optimizer"] == "sgd")


def test_a_grid_has_conditional_points_once(in_memory) -> None:
    space = NESTED | {RATE: {"choice": [0.002, 0.2]}}
    space["training.momentum"] = {"choice": [0.8, 0.9], "when": {"training.optimizer": "sgd"}}
    params, study = new_study(space, trials=50, sampler="grid", pruner="none", epochs=1)
    points = [str(sorted(trial.values.items())) for trial in finish(in_memory(study), params).trials]
    assert len({*points}) == len(points) == 2 * (1 + 2)


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp"])
def test_several_objectives_prune_nothing(sampler: str, in_memory) -> None:
    names = ("validation/accuracy", "parameters")
    params, study = new_study(trials=11, sampler=sampler, objective=names, objectives=names, epochs=2)
    ended = finish(in_memory(study), params)
    assert_sound(ended)
    assert {trial.state for trial in ended.trials} == {"complete"}
    assert all(len(trial.objectives) == 2 for trial in ended.trials)


def test_points_with_equal_keys_do_not_end_a_grid(in_memory) -> None:
    """As model.name auto and convnet, which are the same training."""
    space = {"model.name": {"choice": ["auto", "convnet"]}, RATE: {"choice": [place / 100 for place in range(1, 81)]}}
    params, study = new_study(space, trials=500, sampler="grid", pruner="none", epochs=1)
    store = in_memory(study)
    worker = Worker(store, params, "worker")
    worker.scheduler._key_of = lambda values, seed: f"{values[RATE]}"
    for _ in worker.acts():
        pass
    ended = store.require()
    assert_sound(ended)
    assert len(ended.trials) == 1 + 80  # the present rate is not in the space


def taken(worker: Worker) -> Trial:
    trial = worker.scheduler.next()
    assert isinstance(trial, Trial)
    return trial


def test_a_trial_whose_lease_has_ended_goes_to_another(in_memory) -> None:
    params, study = new_study(trials=1, pruner="none")
    store = in_memory(study)
    first, second = Worker(store, params, "first"), Worker(store, params, "second")
    number = taken(first).number
    progress = Progress(((1, 0.5),), steps=3, cpu=1.0, run_id="run")
    assert first.scheduler.report(number, progress) == "continue"
    assert second.scheduler.next() == "wait"
    first.scheduler.beat(number)
    second.scheduler.lease = 0.0
    assert second.scheduler.next() == "wait"  # a new sign
    continued = taken(second)
    assert (continued.number, continued.curve, continued.losses, continued.steps) == (number, ((1, 0.5),), 1, 3)
    assert continued.run_id == "run"
    assert second.scheduler.report(number, Progress(((1, 0.5),))) == "continue"
    assert store.trial(number).run_id == "run"  # what an attempt does not know of its trial stays
    assert not first.scheduler.beat(number)
    assert second.scheduler.beat(number)
    before = store.require()
    for act in (
        lambda: first.scheduler.report(number, progress),
        lambda: first.scheduler.finish(number, progress, (1.0,)),
        lambda: first.scheduler.fail(number, progress, "x"), lambda: first.scheduler.leave(number, progress),
    ):  # fmt: skip
        with pytest.raises(LeaseLost):
            act()
    assert content(store.require()) == content(before)
    release(store, "first")
    assert store.require().trials[0].owner == "second"


def test_a_trial_that_kills_its_workers_fails(in_memory) -> None:
    params, study = new_study(trials=2, pruner="none", max_losses=2)
    store = in_memory(study)
    for number in range(2):
        assert taken(Worker(store, params, f"worker-{number}")).number == 0
        release(store, f"worker-{number}")
    ended = finish(store, params)
    assert [trial.state for trial in ended.trials] == ["failed", "complete"]
    assert "its worker was lost 2 times (search.max_losses)" in ended.trials[0].reason


def test_a_failed_trial_does_not_stop_the_others(in_memory) -> None:
    params, study = new_study(trials=9)
    store = in_memory(study)
    worker = Worker(store, params, "first")
    worker.scheduler.fail(taken(worker).number, Progress(), "it does not fit")
    ended = finish(store, params)
    assert_sound(ended)
    assert (ended.trials[0].state, ended.trials[0].value) == ("failed", None)
    assert ended.winner not in (None, 0)


class Unable(TrialTraining):
    """An attempt that cannot be trained: `causes` has the cause of each, in turn."""

    causes: ClassVar[Iterator[Callable[[Path], None]]]

    def _train(self) -> tuple[float, ...] | None:
        next(self.causes)(self.folder)
        return (0.5,)


def unreadable(folder: Path) -> None:
    """Read a checkpoint that is a link to itself."""
    folder.mkdir(parents=True)
    path = folder / "1.safetensors"
    path.symlink_to(path)
    read_checkpoint(path)


def damaged(folder: Path) -> None:
    """Read a checkpoint that is none."""
    folder.mkdir(parents=True)
    path = folder / "1.safetensors"
    path.write_bytes(b"")
    read_checkpoint(path)


def search_unable(store: StudyStore, params: Params, folder: Path, causes: list[Callable[[Path], None]]) -> int:
    """Search by one worker, and return how many trials it took."""
    Unable.causes = itertools.chain(causes, itertools.repeat(lambda folder: None))
    worker = Worker(store, params, "unable")
    training = partial(Unable, params=params, workspace=Workspace(folder))
    return _search(worker.scheduler, store.require(), training, lambda: False, print)


def test_what_a_machine_cannot_read_fails_no_trial(in_memory, tmp_path: Path) -> None:
    params, study = new_study(trials=3, pruner="none")
    store = in_memory(study)
    with pytest.raises(StudyError, match=r"trial 0 is left to other workers: .*cannot be read .* symbolic links"):
        search_unable(store, params, tmp_path, [unreadable])
    assert [(trial.state, trial.losses) for trial in store.require().trials] == [("waiting", 0)]
    assert {trial.state for trial in finish(store, params).trials} == {"complete"}


def test_a_damaged_checkpoint_fails_only_its_trial(in_memory, tmp_path: Path) -> None:
    """It is damaged on every machine: each worker would end at it, and the search never."""
    params, study = new_study(trials=3, pruner="none")
    store = in_memory(study)
    assert search_unable(store, params, tmp_path, [damaged]) == 3
    assert Counter(trial.state for trial in store.require().trials) == {"failed": 1, "complete": 2}


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda scheduler, progress: scheduler.finish(0, progress, (0.1,)), "complete"),
        (lambda scheduler, progress: scheduler.fail(0, progress, "it does not fit"), "failed"),
        (lambda scheduler, progress: scheduler.leave(0, progress), "waiting"),
    ],
    ids=["finish", "fail", "leave"],
)
def test_later_trials_do_not_prune_an_epoch_that_passed(end: Any, state: str, in_memory) -> None:
    """Also if patience has ended the training before its last epoch."""
    params, study = new_study(trials=7, pruner="median")
    store = in_memory(study)
    early, others = Worker(store, params, "early"), Worker(store, params, "others")
    assert taken(early).number == 0
    curve = tuple((epoch, 0.1) for epoch in (1, 2, 3, 4))
    assert {early.scheduler.report(0, Progress(curve[:epoch])) for epoch in (1, 2, 3, 4)} == {"continue"}
    acts = others.acts()
    while next(acts) != "wait":
        pass
    end(early.scheduler, Progress(curve, steps=5))
    trial = store.trial(0)
    assert (trial.state, trial.curve, trial.steps) == (state, curve, 5)


def test_without_a_good_trial_there_is_no_winner(in_memory) -> None:
    params, study = new_study(trials=3, seeds=3)
    store = in_memory(study)
    worker = Worker(store, params, "first")
    for _ in range(3):
        worker.scheduler.fail(taken(worker).number, Progress(), "it does not fit")
    assert worker.scheduler.next() is None
    ended = store.require()
    assert (ended.state, ended.winner, ended.ranked(), winner(ended)) == ("ended", None, [], None)


def test_a_used_up_cpu_budget_ends_the_search(in_memory) -> None:
    """Each epoch costs 36 seconds of one core, which is 0.01 hours."""
    params, study = new_study(trials=100, pruner="none", cpu_hours=0.5)
    store = in_memory(study)
    ended = finish(store, params)
    assert ended.state == "running"  # the last worker has left its trial
    assert sum(trial.epochs for trial in ended.trials) == 50
    assert Worker(store, params, "next").scheduler.next() is None
    ended = store.require()
    assert ended.state == "ended"
    assert ended.reason == "search.cpu_hours: the budget of 0.5 hours of one core is used up"
    assert [trial.state for trial in ended.trials] == ["complete"] * 5 + ["waiting"]


def test_hours_count_while_a_worker_searches(in_memory) -> None:
    """Two attempts at the same time count once, and the pause between two does not count."""
    params, study = new_study(trials=100, pruner="none", hours=0.1)
    store = in_memory(study)
    workers = [Worker(store, params, name) for name in "ab"]
    numbers = [taken(worker).number for worker in workers]
    spans = [(1000.0, 1200.0), (1100.0, 1300.0)]
    for worker, number, span in zip(workers, numbers, spans, strict=True):
        assert worker.scheduler.report(number, Progress(((1, 0.5),), spans=(span,))) == "continue"
    assert store.require().active == 300.0
    later = Progress(((1, 0.5), (2, 0.5)), spans=(spans[0], (9000.0, 9061.0)))
    assert workers[0].scheduler.report(numbers[0], later) == "leave"
    assert store.require().active == 361.0


def test_hours_do_not_count_a_changed_clock(in_memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a suspended machine: its clock goes on, and the process does not."""
    params, study = new_study(trials=9, hours=4.0)
    store = in_memory(study)
    worker, real = Worker(store, params, "worker"), time.time
    for number, (before, after) in enumerate(((0.0, 9 * 3600.0), (-1.7e9, 0.0))):
        monkeypatch.setattr(time, "time", lambda before=before: real() + before)
        trial = taken(worker)
        attempt = TrialTraining(study, params, Workspace(tmp_path), worker.scheduler, trial, lambda: False, print)
        monkeypatch.setattr(time, "time", lambda after=after: real() + after)
        attempt._fail("it ends here")
        ((began, ended),) = store.trial(number).spans
        assert 0.0 <= ended - began < 3600.0
    assert store.require().active < 3600.0


def test_no_worker_loses_its_trial_to_a_changed_clock(in_memory, monkeypatch: pytest.MonkeyPatch) -> None:
    params, study = new_study(trials=1, pruner="none")
    store = in_memory(study)
    first, second, real = Worker(store, params, "first"), Worker(store, params, "second"), time.time
    number = taken(first).number
    for hours in (1, 2, 3):
        monkeypatch.setattr(time, "time", lambda hours=hours: real() + 3600.0 * hours)
        assert second.scheduler.next() == "wait"
        assert Worker(store, params, f"new {hours}").scheduler.next() == "wait"
        assert first.scheduler.beat(number)
    assert store.trial(number).losses == 0


def test_a_larger_budget_continues_the_search(in_memory) -> None:
    params, study = new_study(trials=9, sampler="random")
    store = in_memory(study)
    before = finish(store, params)
    store.save(search=before.search.model_copy(update={"trials": 27}), state="running", reason="")
    after = finish(store, params)
    assert_sound(after)
    assert len(after.searched) == 27
    for old, new in zip(before.trials, after.trials, strict=False):
        assert (new.key, new.values) == (old.key, old.values)
        assert new.curve[: len(old.curve)] == old.curve
    params, study = new_study(trials=27, sampler="random")
    at_once = finish(in_memory(study), params)
    assert [trial.values for trial in at_once.trials] == [trial.values for trial in after.trials]


def test_a_stopped_study_gives_no_trial(in_memory) -> None:
    params, study = new_study(trials=9, pruner="none")
    store = in_memory(study)
    worker = Worker(store, params, "worker")
    number = taken(worker).number
    store.save(stop=True)
    assert worker.scheduler.report(number, Progress(((1, 0.5),))) == "leave"
    worker.scheduler.leave(number, Progress(((1, 0.5),)))
    assert worker.scheduler.next() is None
    assert store.require().state == "running"
    store.save(stop=False)
    assert taken(worker).curve == ((1, 0.5),)


def test_finalists_are_repeated_with_other_seeds(in_memory) -> None:
    params, study = new_study(trials=9, seeds=3, finalists=2)
    ended = finish(in_memory(study), params)
    assert_sound(ended)
    chosen = finalists(ended)
    complete = [trial.number for trial in ended.ranked() if trial.state == "complete"]
    assert {each.trial.number for each in chosen} == {0, *complete[:2]}
    best = winner(ended)
    assert best is not None
    fresh = [(best.trial.number, seed) for seed in (1000, 1001)]  # which decide nothing
    assert sorted((trial.seed_of, trial.seed) for trial in ended.trials if trial.seed_of is not None) == sorted(
        [(each.trial.number, seed) for each in chosen for seed in (1, 2)] + fresh
    )
    assert best.trial.number == ended.winner
    assert best.mean == max(each.mean for each in chosen)
    assert best.low is not None
    assert best.high is not None
    assert best.low < best.mean < best.high
    assert best.again == pytest.approx(sum(best.fresh) / 2)
    assert (len(best.scores), len(best.fresh)) == (3, 2)
    assert best.selected == best.scores[0]


@pytest.mark.parametrize("pruner", ["none", "successive-halving", "median"])
def test_present_settings_are_a_finalist_whatever_they_reach(in_memory, pruner: str) -> None:
    """The first trial is the worst, and it is trained to the end and with the same seeds as the best."""
    params, study = new_study(trials=12, seeds=3, finalists=2, pruner=pruner, sampler="random")

    def value(values: Any, seed: int | None, epoch: int) -> float:
        return 0.1 if values == first else quality(values, seed, epoch)

    first = finish(in_memory(study), params).trials[0].values
    ended = finish(in_memory(study), params, value)
    [present] = [each for each in finalists(ended) if each.trial.number == 0]
    assert (present.trial.state, present.trial.epochs, len(present.scores)) == ("complete", study.epochs, 3)
    assert ended.winner != 0


def test_constant_predictor_is_no_finalist_and_does_not_win(in_memory) -> None:
    params, study = new_study(trials=4, seeds=1, finalists=2, pruner="none", sampler="random")
    ended = finish(in_memory(study), params)
    best, second = ended.ranked()[:2]

    def marked(*numbers: int) -> Study:
        trials = [replace(each, constant="'ants'") if each.number in numbers else each for each in ended.trials]
        return replace(ended, trials=tuple(trials))

    assert best.number not in {each.trial.number for each in finalists(marked(best.number))}
    chosen = winner(marked(best.number))
    assert chosen is not None
    assert chosen.trial.number == second.number
    constant = marked(*(each.number for each in ended.trials))
    assert winner(constant) is None
    pruned = replace(best, number=len(ended.trials), key="pruned", state="pruned", constant="")
    assert winner(replace(constant, trials=(*constant.trials, pruned))) is None  # whether it is constant is not known
    assert winner(replace(constant, trials=(pruned,))) is not None


def test_a_lucky_seed_does_not_win(in_memory) -> None:
    """The best trial of the search is worse with other seeds, so the second wins."""
    params, study = new_study(trials=6, seeds=3, finalists=2, pruner="none", sampler="random")
    lucky = finish(in_memory(study), params).ranked()[0].values

    def value(values: Any, seed: int | None, epoch: int) -> float:
        return quality(values, None, epoch) - (0.2 if seed and values == lucky else 0.0)

    ended = finish(in_memory(study), params, value)
    ranked = ended.ranked()
    assert ranked[0].values == lucky
    assert ended.winner == ranked[1].number


def test_seeds_of_finalists_are_trained_at_the_same_time(in_memory) -> None:
    params, study = new_study(trials=3, seeds=3, finalists=2, pruner="none", epochs=1)
    store = in_memory(study)
    acts = Worker(store, params, "first").acts()
    while len([trial for trial in store.require().trials if trial.state == "complete"]) < 3:
        next(acts)
    workers = [Worker(store, params, f"worker-{number}") for number in range(5)]
    numbers = [taken(worker) for worker in workers[:4]]
    assert len({(trial.seed_of, trial.seed) for trial in numbers}) == 4
    assert workers[4].scheduler.next() == "wait"
    for worker, trial in zip(workers, numbers, strict=False):
        worker.scheduler.finish(trial.number, Progress(((1, 0.5),)), (0.5,))
    fresh = [taken(worker) for worker in workers[:2]]
    assert [trial.seed for trial in fresh] == [1000, 1001]
    assert workers[4].scheduler.next() == "wait"


def test_missing_seeds_do_not_decide(in_memory) -> None:
    """If the budget ends before all seeds, finalists with most seeds compete."""
    params, study = new_study(trials=4, seeds=2, finalists=2, pruner="none")
    ended = finish(in_memory(study), params)
    repeated = [trial for trial in ended.trials if trial.seed_of is not None]
    cut = replace(ended, trials=tuple(trial for trial in ended.trials if trial != repeated[0]))
    best = winner(cut)
    assert best is not None
    assert best.trial.number == repeated[1].seed_of
