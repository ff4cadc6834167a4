"""Studies without data, and workers that report a curve instead of training: for the tests of a search."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ratchet.search.records import Study, Trial
from ratchet.search.scheduler import Progress, Scheduler, release
from ratchet.search.store import StudyStore
from ratchet.settings.model import Params

RATE = "training.learning_rate"
SPACE = {RATE: {"float": [0.001, 0.1], "log": True}, "training.batch_size": {"int": [16, 128], "step": 16}}
Value = Callable[[Mapping[str, Any], int | None, int], float | tuple[float, ...]]
"""(settings of the trial, its seed, epoch) -> first objective, or all of them, after that epoch."""


class CannotTrain(Exception):
    """Raised by a value function whose trial fails."""


def new_study(
    space: Mapping[str, Any] = SPACE, *, epochs: int = 9, objectives: tuple[str, ...] = ("validation/accuracy",),
    **search: object,
) -> tuple[Params, Study]:  # fmt: skip
    """Settings and a study of them, without trials."""
    params = Params.model_validate(
        {"search": {"space": dict(space), "seeds": 1, **search}, "training": {"epochs": epochs}}
    )
    study = Study(
        name="study", objectives=objectives, maximize=tuple(name.endswith("accuracy") for name in objectives),
        search=params.search, params=params.model_dump(mode="json", include={"seed", "data", "model", "training"}),
        parts={}, epochs=epochs,
    )  # fmt: skip
    return params, study


def key_of(values: Mapping[str, Any], seed: int | None) -> str:
    return sha256(json.dumps([dict(values), seed], sort_keys=True).encode()).hexdigest()[:16]


def quality(values: Mapping[str, Any], seed: int | None, epoch: int) -> float:
    """A learning curve that rises to a height that the settings decide."""
    height = 1.0 - abs(float(values.get(RATE, 0.01)) - 0.02) - 0.001 * float(values.get("training.batch_size", 64))
    return height * (1.0 - 0.5**epoch) + 0.001 * (seed or 0)


@dataclass
class Worker:
    """A worker that reports a curve instead of training. Each `next` of its acts is one thing that a kill follows.

    `unheard`: epochs after which the storage does not answer.
    """

    store: StudyStore
    params: Params
    owner: str
    value: Value = quality
    unheard: Collection[int] = ()

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.store, self.params, key_of, owner=self.owner)

    def acts(self) -> Iterator[str]:
        """Work until nothing is left."""
        scheduler = self.scheduler
        while True:
            trial = scheduler.next()
            if trial is None:
                return
            if trial == "wait":
                yield "wait"
                continue
            yield f"took {trial.number}"
            try:
                yield from self._train(trial)
            except CannotTrain as error:
                scheduler.fail(trial.number, Progress(), str(error))
            except Left:
                return

    def _train(self, trial: Trial) -> Iterator[str]:
        scheduler, study, number = self.scheduler, self.store.require(), trial.number
        progress = Progress(trial.curve, trial.steps, trial.cpu, spans=trial.spans)
        decision = scheduler.report(number, progress) if trial.curve else "continue"
        while decision == "continue" and progress.epochs < study.epochs:
            epoch = progress.epochs + 1
            curve = (*progress.curve, (epoch, self._values(study, trial, epoch)[0]))
            progress = Progress(curve, progress.steps + 1, progress.cpu + 36.0, spans=trial.spans)
            if epoch < study.epochs and epoch not in self.unheard:
                decision = scheduler.report(number, progress)
            yield f"epoch {epoch} of {number}"
        if decision == "continue":
            scheduler.finish(number, progress, self._values(study, trial, study.epochs))
        elif not scheduler.leave(number, progress):
            raise Left
        yield f"left {number}"

    def _values(self, study: Study, trial: Trial, epoch: int) -> tuple[float, ...]:
        value = self.value(trial.values, trial.seed, epoch)
        return value if isinstance(value, tuple) else (value, *[100.0] * (len(study.objectives) - 1))


class Left(Exception):
    """The worker has left a trial that has not ended, because the search stops."""


def finish(store: StudyStore, params: Params, value: Value = quality) -> Study:
    """Let one worker search to the end."""
    for _ in Worker(store, params, "worker", value).acts():
        pass
    return store.require()


def finish_with(store: StudyStore, params: Params, *, workers: int, kills: int, draw: Any) -> Study:
    """Let several workers take turns in a random order; a number of them are killed on the way."""
    running: dict[str, Iterator[str]] = {}
    begun = 0
    while True:
        while len(running) < workers:
            begun += 1
            owner = f"worker-{begun}"
            running[owner] = Worker(store, params, owner).acts()
        owner = draw.choice(sorted(running))
        if next(running[owner], None) is None:
            if (study := store.require()).state == "ended":
                return study
            del running[owner]
        elif kills and draw.random() < 0.2:
            kills -= 1
            del running[owner]
            release(store, owner)
