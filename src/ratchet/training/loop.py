"""The training loop: one generator that trains and yields events. It knows nothing of who reads them."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ratchet.errors import CheckpointError, NotFinite, TrainingError
from ratchet.training.augment import epoch_rows
from ratchet.training.batches import Batch, Rows, run_steps, step_rows
from ratchet.training.checkpoint import CheckpointStore, Snapshot, checkpoint_step, delete_checkpoint
from ratchet.training.checkpoint_shards import StoredWeights
from ratchet.training.custom_errors import UnsavedBuffers, own_code_errors
from ratchet.training.determinism import refuse_nondeterministic, require_deterministic
from ratchet.training.device import (
    arithmetic,
    choose_device,
    describe,
    keep_freed_memory,
    ran_out_of_memory,
    reproducible,
)
from ratchet.training.duplicate import duplicate
from ratchet.training.events import Checkpointed, Epoch, Event, Finished, Notice, Started, Stopped, Trouble
from ratchet.training.inputs import TrainingInputs, initial_model
from ratchet.training.losses import Objective, SampleCounts, class_weights
from ratchet.training.memory import checkpointed
from ratchet.training.model_shards import choose_shards
from ratchet.training.optim import build_optimizer
from ratchet.training.own_loss import own_loss
from ratchet.training.plan import Plan
from ratchet.training.precision import choose_precision
from ratchet.training.profiler import StepProfiler
from ratchet.training.ranks import AgreedMemoryError, LostRank, Ranks, lost_ranks
from ratchet.training.sample_timeout import Interrupted, never
from ratchet.training.schedule import learning_rate, plateau_falls
from ratchet.training.state import EpochSums, TrainingState
from ratchet.training.step import Stepper, compiled, cut, needs_two_samples
from ratchet.training.step_metrics import MetricBuffer, require_finite, timed
from ratchet.training.teacher import Teacher
from ratchet.training.transfer import freeze, without_pretrained
from ratchet.training.validation import epoch_score, larger_is_better, overfitting_notice, update_best, validate

__all__ = ["fit"]

_LONG_RUN = 1000  # steps from which `training.doctor: auto` spends a few seconds on the doctor


def fit(
    inputs: TrainingInputs,
    *,
    store: CheckpointStore,
    profile_to: Path | None = None,
    stop: Callable[[], bool] = never,
    before_step: Callable[[], object] = never,
    examine: Callable[..., Iterable[object]] | None = None,
    ranks: Ranks | None = None,
) -> Generator[Event]:
    """Train, or continue at the newest checkpoint in `store`.

    Args:
        profile_to: folder for a trace of `plan.profile` steps.
        stop: called before every step, and from another thread while a user's class reads a sample. When it
            returns True, a checkpoint is written and training stops. It may be called at other times, too.
        before_step: called before every step.
        examine: called before the first step if `plan.doctor` asks for it, as `ratchet.doctor.examine`; each of its
            findings becomes a notice.
        ranks: the processes of this training; each calls `fit` with equal inputs and sees equal events.

    Yields:
        Events; the last is Finished or Stopped. All metrics of a step are yielded before a checkpoint of it is taken,
        so a run that resumes from the checkpoint has lost none.

    Raises:
        TrainingError: the device is absent, the model does not fit the data, memory is too small for one sample, or the
            user's own code raises an error.
        NotFinite: the loss is still not finite after `plan.max_rollbacks` returns to a checkpoint.
        CheckpointError: the checkpoint in `store` belongs to another run.
        LostRank: another process of this training has ended.
    """
    ranks = ranks or Ranks()
    with own_code_errors(inputs.spec), _surroundings(inputs, store, ranks, stop):
        try:
            training = _Training(inputs, store, profile_to, stop, examine, ranks, before_step)
            with training.precision.in_force(), closing(training.profiler):
                yield from training.run()
        except Interrupted:  # between steps, where there is nothing new to keep
            yield Stopped(store.newest_step())


@contextmanager
def _surroundings(
    inputs: TrainingInputs, store: CheckpointStore, ranks: Ranks, stop: Callable[[], bool]
) -> Iterator[None]:
    """Set what the process needs for the training, and put it back at the end."""
    plan = inputs.plan
    with (
        _threads(plan),
        reproducible(plan.seed, deterministic=plan.deterministic),
        store,
        lost_ranks(ranks),
        closing(inputs.train),
        closing(inputs.validation),
    ):
        inputs.interrupt_on(partial(ranks.is_asked_to_stop, stop))  # the reading of a sample, too
        try:
            yield
        finally:
            inputs.interrupt_on(never)


@contextmanager
def _threads(plan: Plan) -> Iterator[None]:
    """Use the threads that a piece has by the plan, and as many as before at the end."""
    before = torch.get_num_threads()
    threads = max(1, before // plan.pieces) if plan.threads == "auto" else int(plan.threads)
    if threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


class _Training:
    """One training in progress."""

    def __init__(
        self,
        inputs: TrainingInputs,
        store: CheckpointStore,
        profile_to: Path | None,
        stop: Callable[[], bool],
        examine: Callable[..., Iterable[object]] | None,
        ranks: Ranks,
        before_step: Callable[[], object],
    ) -> None:
        inputs.check()
        self.inputs, self.plan, self.train = inputs, inputs.plan, inputs.train
        self.store, self.stop, self.examine, self.ranks, self.before_step = store, stop, examine, ranks, before_step
        self.train.prepare(self.plan)

        # Where and how it runs
        self.device = choose_device(self.plan.device, rank=self.ranks.local, ranks=self.ranks.count)
        keep_freed_memory(self.device, keep=self.plan.shard == "none" or self.ranks.count == 1)
        self.precision = choose_precision(self.plan.precision, self.device, channels_last=self.plan.channels_last)
        target = inputs.spec.target
        weights = class_weights(self.plan, self.train.targets, target)
        own = own_loss(self.plan, inputs.spec)
        self.objective = Objective(self.plan, target, self.device, weights=weights, own=own)
        self.counts = SampleCounts(self.objective, self.train)
        self.teacher = None
        if inputs.teacher is not None:
            self.teacher = Teacher(inputs.teacher, inputs.spec, self.plan, self.objective, self.precision)
        self.profiler = StepProfiler(profile_to, self.plan.profile, self.device)
        self.began_with: dict[str, Any] = {}  # `arithmetic` of the checkpoint that it continues

        # How long
        self.steps = step_rows(len(self.train), self.plan.batch_size)
        self.total_steps, _ = run_steps(len(self.train), self.plan)
        self.smallest = 1  # samples of the smallest micro-batch
        self.pairs_noticed = False

        # What learns
        self.notices: list[str]
        self.begin()
        self.metrics = MetricBuffer(self.plan, self.device)

    def begin(self) -> None:
        """Set the state before the first step. The seed decides it."""
        plan = self.plan
        model, self.notices = initial_model(self.inputs)
        if warning := without_pretrained(plan, self.inputs.pretrained):
            self.notices.append(warning)
        self.unsaved = UnsavedBuffers(model.network if self.inputs.spec.factory != "none" else nn.Identity())
        averaged = duplicate(model) if plan.ema_decay else None
        self.held = held = choose_shards(plan, model, self.ranks, self.device)
        keep_freed_memory(self.device, keep=not (held.is_sharded and held.together))
        parameters = held.place(model, channels_last=self.precision.channels_last)
        if averaged is not None:
            held.place(averaged, channels_last=self.precision.channels_last)
        if plan.gradient_checkpointing:
            checkpointed(model)
        optimizer = build_optimizer(model, plan, self.device, parameters, may_fuse=not held.is_sharded)
        scaler = self.precision.scaler(self.device)
        self.state = TrainingState(
            model, optimizer, scaler, averaged, parameters, held.shapes, accumulation=plan.accumulation
        )
        network, notice = compiled(model, plan, self.device)
        self.notices += [notice] if notice else []
        self.stepper = Stepper(
            self.state,
            plan,
            counts=self.counts,
            objective=self.objective,
            precision=self.precision,
            network=held.network(network),
            held=held,
            teacher=self.teacher,
        )

    def run(self) -> Iterator[Event]:
        if self.held.together:  # a rank that left a step would leave the others in it
            self.inputs.interrupt_on(never)
        resumed = self._resume()
        yield from self._problems()
        yield from self._other_arithmetic()
        notices = [self.precision.why, *(self.notices if resumed is None else [])]
        yield from (Notice(notice) for notice in notices if notice)
        if resumed is None and not (self.held.is_sharded and self.held.together):  # they need the whole model
            require_deterministic(self.state.model, self.train, self.plan, self.device)
            yield from self._examine()
        yield self._started(resumed)
        self.metrics = MetricBuffer(self.plan, self.device)  # its clocks start here
        while not self.state.finished:
            try:
                yield from self._epoch()
            except Interrupted:  # no step is half made
                yield from self._leave()
                return
            except NotFinite as error:
                fault = error
            else:
                continue
            yield from self._roll_back(fault)
        self.store.wait()
        yield from self._problems()
        assert self.state.best_value is not None
        yield Finished(
            step=self.state.step,
            best_epoch=self.state.best_epoch,
            best_value=self.state.best_value,
            weights=self._weights(),
            history=self.state.history,
        )

    def _weights(self) -> Mapping[str, torch.Tensor]:
        """Return the best weights; of a sharded model those in its last checkpoint, which are read one by one."""
        if not self.held.is_sharded:
            return self.state.best_weights
        if not self.ranks.is_first:  # which has written the index
            return {}
        newest = self.store.paths()[-1:]
        if [checkpoint_step(path) for path in newest] != [self.state.step]:
            raise CheckpointError(
                f"the checkpoint of the last step is not in {self.store.folder}, which the model needs"
            )
        return StoredWeights(newest[0], "best/")

    def _started(self, resumed: Path | None) -> Started:
        return Started(
            device=str(self.device),
            processes=self.ranks.count,
            device_name=describe(self.device),
            precision=self.precision.name,
            parameters=sum(parameter.numel() for parameter in self.state.model.parameters()),
            step=self.state.step,
            total_steps=self.total_steps,
            steps_per_epoch=len(self.steps),
            resumed_from=resumed,
            history=list(self.state.history),
        )

    def _resume(self) -> Path | None:
        """Restore the newest checkpoint and return its path, or None if there is no checkpoint."""
        newest = self._newest()
        if newest is None:
            return None
        path, snapshot = newest
        if snapshot.state["identity"] != self.inputs.identity:
            raise CheckpointError(f"checkpoint {path} is of other data, settings or code. Fix: move it away")
        self.state.restore(snapshot)
        self.began_with = snapshot.state.get("arithmetic", {})  # not in older checkpoints
        return path

    def _newest(self, *, unless: int | None = None) -> tuple[Path, Snapshot] | None:
        """Return the newest undamaged checkpoint, the same on every rank. One of step `unless` is deleted first."""
        newest = self.store.newest(self.ranks) if self.ranks.is_first else None
        if newest is not None and newest[1].step == unless:
            delete_checkpoint(newest[0])
            newest = self.store.newest(self.ranks)
        step = -1 if newest is None else newest[1].step
        step = int(self.ranks.from_first([step], self.device)[0])
        if not self.ranks.is_first and step >= 0:
            newest = self.store.at(step, self.ranks)
        return newest

    def _other_arithmetic(self) -> Iterator[Event]:
        """Keep the number of threads of the training's begin, and report what cannot be kept.

        Sums are rounded otherwise with another number of threads, processor, device or library.
        """
        if not self.plan.deterministic:
            return
        threads, now = self.began_with.get("threads"), torch.get_num_threads()
        if threads not in (None, now) and self.device.type == "cpu":
            torch.set_num_threads(threads)
            yield Notice(
                f"continues with {threads} thread{'s' * (threads != 1)}, as it began, where this process has {now}: "
                "another number would end with other bits"
            )
        current = arithmetic(self.device)
        changed = [
            f"{name} was {before}, is now {current.get(name)}"
            for name, before in self.began_with.items()
            if name != "threads" and before != current.get(name)
        ]
        if changed:
            yield Trouble(
                self.state.step,
                "other arithmetic",
                f"{'; '.join(changed)}: the weights will not be bit for bit those of an uninterrupted run. To avoid "
                "it: stop, and continue where the training began",
            )

    def _examine(self) -> Iterator[Event]:
        """Yield the findings before the first step, if `training.doctor` wants them."""
        wanted = self.plan.doctor == "always" or (self.plan.doctor == "auto" and self.total_steps >= _LONG_RUN)
        if self.examine is None or not wanted:
            return
        findings = self.examine(
            self.train,
            self.inputs.validation,
            self.inputs.spec,
            self.plan,
            model=self.state.model,
            device=self.device,
            precision=self.precision.name,
            pretrained=self.inputs.pretrained,
            checkpoints=self.store.folder,
        )
        for finding in findings:
            yield Notice(f"doctor: {finding}")

    def _leave(self) -> Iterator[Event]:
        yield from self._checkpoint()
        self.store.wait()
        yield from self._problems()
        step, saved_step = self.state.step, self.store.newest_step()
        yield Stopped(step, saved_step=None if saved_step == step else saved_step)

    def _epoch(self) -> Iterator[Event]:
        state, plan = self.state, self.plan
        self.smallest = self.held.smallest(state.model)
        order = epoch_rows(plan, len(self.train), self.train.targets, epoch=state.epoch)
        state.model.train()
        freeze(state.model, plan, state.epoch)
        feed = self._feed(order)
        try:
            while state.batch < len(self.steps) and state.step < self.total_steps:
                if self._must_stop():
                    raise Interrupted
                self.before_step()
                start, end = self.steps[state.batch]
                retry = self._step(order[start:end], feed)
                if retry is not None:
                    feed.close()
                    yield from retry
                    feed = self._feed(order)
                    continue

                # once in a while:
                self.profiler.step()
                if self.metrics.is_due if self.ranks.count == 1 else state.step % plan.log_every == 0:
                    yield from self._fetch()
                if plan.checkpoint_steps and state.step % plan.checkpoint_steps == 0:
                    yield from self._checkpoint()
        finally:
            feed.close()
        yield from self._fetch()
        yield from self._end_epoch(order)

    def _feed(self, order: Rows) -> Generator[Batch]:
        """Yield the micro-batches of the epoch's remaining steps, and measure the time spent on each."""
        own: list[Rows] = []
        for start, end in self.steps[self.state.batch :][: self.total_steps - self.state.step]:
            rows = order[start:end]
            pieces = cut(
                rows, self.plan.pieces, self.state.accumulation, smallest=self.smallest, is_even=self.held.is_sharded
            )
            idle = [rows[: self.smallest]] * len(pieces[0]) if self.held.together else []
            for piece in self.held.pieces(self.plan.pieces):
                own += pieces[piece] or idle
        batches = self.train.feed(own, self.device, plan=self.plan, epoch=self.state.epoch)
        return timed(batches, self.metrics.step_clock, self.metrics.epoch_clock)

    def _must_stop(self) -> bool:
        """Return whether to stop before the next step. Several ranks learn of it with the step before."""
        self.ranks.stop = self.ranks.is_first and self.ranks.is_asked_to_stop(self.stop)
        return self.ranks.stop if self.ranks.count == 1 else self.ranks.is_stopping

    def _step(self, rows: Rows, feed: Iterator[Batch]) -> "list[Event] | None":
        """Make one step and return None.

        A step that must be made again in other micro-batches is undone; then the events to report are returned.
        """
        rate = self._learning_rate(self.state.step)
        try:
            self.metrics.add(self.stepper.step(rows, feed, rate=rate, smallest=self.smallest), samples=len(rows))
        except Interrupted:
            self.stepper.undo()
            raise
        except Exception as error:  # any other error is raised again
            self._require_agreement(error)
            if needs_two_samples(error):
                return self._require_pairs(rows, error)
            if not ran_out_of_memory(error):
                refuse_nondeterministic(error, self.state.model, self.train, self.device)
                raise
            if self.state.accumulation >= max(1, self._piece(rows) // self.smallest):
                count = "one sample" if self.smallest == 1 else "two samples, the fewest that its batch norm takes,"
                raise TrainingError(
                    f"not enough memory for {count} at step {self.state.step + 1} ({error}). Fix: set "
                    "training.gradient_checkpointing: true or a smaller data.image_size, or use a smaller model"
                ) from error
            return [self._halve(self._piece(rows), len(rows))]
        return None

    def _require_agreement(self, error: Exception) -> None:
        """Leave the other ranks if memory ran out on this one alone: they wait for it in another place."""
        if self.ranks.count > 1 and ran_out_of_memory(error) and not isinstance(error, AgreedMemoryError):
            raise LostRank("its memory ran out where the others do not see it") from error

    def _piece(self, rows: Rows) -> int:
        """Return the number of rows of the largest piece of a step."""
        return -(-len(rows) // self.plan.pieces)

    def _require_pairs(self, rows: Rows, error: Exception) -> list[Event]:
        """Let no micro-batch of this epoch have only one sample.

        Every step with such a micro-batch fails and is made again, so the weights do not depend on the step at which a
        resumed epoch begins.
        """
        if len(rows) > 1 and self.held.together:  # the others wait for this one in another place
            raise TrainingError(
                f"a process of the training got one sample, from which a batch norm cannot learn ({error}). Fix: make "
                "it a module of torch.nn, such as BatchNorm1d, which gets two or more"
            ) from error
        if len(rows) < 2 or self.smallest > 1:
            raise TrainingError(
                f"a batch norm of the model cannot learn from one sample ({error}). Fix: set training.batch_size to 2 "
                f"or more (it is {self.plan.batch_size}, of {len(self.train):,} training samples)"
            ) from error
        self.stepper.undo()
        self.smallest = 2
        if self.pairs_noticed:
            return []
        self.pairs_noticed = True
        return [Notice("a batch norm of the model cannot learn from only one sample: micro-batches have two or more")]

    def _halve(self, rows: int, samples: int) -> Trouble:
        """Halve the micro-batch of a piece of `rows` samples. The step keeps its samples, in more micro-batches."""
        self.stepper.undo()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        before = math.ceil(rows / self.state.accumulation)
        self.state.accumulation = min(2 * self.state.accumulation, max(1, rows // self.smallest))
        after = math.ceil(rows / self.state.accumulation)
        return Trouble(
            self.state.step,
            "out of memory",
            f"not enough memory for a micro-batch of {before} at step {self.state.step + 1}: continuing with "
            f"{after}, in a step of the same {samples} samples. To begin with that: "
            f"`ratchet set training.accumulation={self.state.accumulation}`",
        )

    def _learning_rate(self, step: int) -> float:
        falls = 0
        if self.plan.schedule == "plateau":
            values = [larger_is_better(self.plan, epoch[self.plan.best]) for epoch in self.state.history]
            falls = plateau_falls(values, patience=self.plan.plateau_patience, min_delta=self.plan.min_delta)
        rate = learning_rate(
            self.plan, step=step, total_steps=self.total_steps, steps_per_epoch=len(self.steps), falls=falls
        )
        return rate * self.plan.rollback_factor**self.state.rollbacks

    def _fetch(self) -> Iterator[Event]:
        return self.metrics.fetch(self.state.sums, epoch=self.state.epoch + 1, attempt=self.state.rollbacks)

    def _roll_back(self, fault: NotFinite) -> Iterator[Event]:
        """Return to a checkpoint from before the fault, with a lower rate; stop after `plan.max_rollbacks` returns.

        A checkpoint that has led to a fault before is deleted, and the one before it is used.
        """
        state, plan = self.state, self.plan
        at, done, before = state.step, state.rollbacks, state.rolled_to
        if done >= plan.max_rollbacks:
            tried = f", after {done} returns to a checkpoint with a lower rate" if done else ""
            raise NotFinite(
                f"{fault}{tried}. Fix: lower training.learning_rate, raise training.warmup_epochs, set "
                "training.clip_norm, or look at the samples of that batch",
                step=fault.step,
                rows=self._rows_of(fault.step),
            )
        self.metrics.clear()
        self.store.wait()
        newest = self._newest(unless=before)
        yield from self._problems()
        if newest is None:
            self.begin()
        else:
            state.restore(newest[1])
        self.state.rollbacks, self.state.rolled_to = done + 1, self.state.step
        yield Trouble(
            at,
            "not finite",
            f"{fault}: back to step {self.state.step}, with {plan.rollback_factor:g} times the learning rate "
            f"(return {done + 1} of {plan.max_rollbacks} that training.max_rollbacks allows)",
        )

    def _rows_of(self, step: int) -> tuple[int, ...]:
        """Return the rows of the train split that optimizer step `step` (counted from 1) used."""
        epoch, batch = divmod(step - 1, len(self.steps))
        start, end = self.steps[batch]
        order = epoch_rows(self.plan, len(self.train), self.train.targets, epoch=epoch)
        return tuple(map(int, order[start:end]))

    def _end_epoch(self, order: Rows) -> Iterator[Event]:
        """Validate, keep the weights if they are the best, report, and take a checkpoint."""
        state, plan = self.state, self.plan
        speed, waited = self.metrics.epoch_clock.lap()
        rates = {"train/samples_per_second": speed, "train/data_wait": waited}
        metrics = self._epoch_metrics(order)
        require_finite(metrics, step=state.step, epoch=state.epoch + 1, rate=metrics["train/learning_rate"])
        update_best(state, plan, metrics)
        epoch = state.epoch + 1
        state.history.append({"epoch": epoch, "step": state.step, **metrics})
        yield Epoch(epoch, state.step, metrics, rates, best=state.best_epoch == epoch, attempt=state.rollbacks)
        self.metrics.epoch_clock.lap()
        for warning in (overfitting_notice(state, plan, metrics), self.unsaved.notice(state.model.network)):
            if warning:
                yield Notice(warning)

        state.epoch, state.batch, state.sums = epoch, 0, EpochSums()
        patience_over = bool(plan.patience) and state.stale_epochs >= plan.patience
        if patience_over:
            yield Notice(f"stopped after epoch {epoch}: no better {plan.best} for {plan.patience} epochs")
        state.finished = patience_over or epoch >= plan.epochs or state.step >= self.total_steps
        yield from self._checkpoint()

    def _epoch_metrics(self, order: Rows) -> dict[str, float]:
        state = self.state
        weight, scored = 0.0, 0
        for start, end in self.steps[: state.batch]:  # at once, those of a long token stream take much memory
            rows = order[start:end]
            weight, scored = weight + self.counts.weight(rows), scored + self.counts.num_scored(rows)
        metrics = {"train/loss": state.sums.loss / (weight or 1.0)}
        if self.objective.target.has_accuracy:
            metrics["train/accuracy"] = state.sums.correct / (scored or 1)
        metrics |= {
            "train/gradient_norm": state.sums.norm / state.batch,
            "train/learning_rate": self._learning_rate(
                state.step - 1
            ),  # of the last step; a resumed optimizer has no rate yet
            **self._validate(),
        }
        if state.scaler.is_enabled():  # gradients overflow now and then, which loss scaling handles
            del metrics["train/gradient_norm"]
        return metrics

    def _validate(self) -> dict[str, float]:
        """Validate in batches twice as large, because no activations are kept; smaller where memory is too small."""
        batch_size = max(1, 2 * self.plan.batch_size // self.state.accumulation)
        while True:
            try:
                return validate(
                    self.state.validated,
                    self.inputs.validation,
                    objective=Objective.measuring(
                        self.plan, self.inputs.spec.target, self.device, own=self.objective.own
                    ),
                    precision=self.precision,
                    device=self.device,
                    batch_size=batch_size,
                    ranks=self.ranks,
                    together=self.held.is_sharded and self.held.together,
                )
            except Exception as error:  # any other error is raised again
                self._require_agreement(error)
                if not ran_out_of_memory(error) or batch_size == 1:
                    raise
            batch_size //= 2
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _checkpoint(self) -> Iterator[Event]:
        yield from self._fetch()  # metrics are reported before the checkpoint that follows them
        state = self.state
        at_epochs_end = state.batch == 0 and state.history
        score = epoch_score(self.plan, state.history[-1], state.epoch) if at_epochs_end else None
        snapshot = partial(state.snapshot, self.inputs.identity, score=score, rounding=arithmetic(self.device))
        if self.held.is_sharded:
            self.store.put_shards(snapshot(), self.ranks, self.device)
        elif self.ranks.is_first:
            self.store.put(snapshot())
        yield Checkpointed(state.step)
        yield from self._problems()

    def _problems(self) -> Iterator[Event]:
        while self.store.problems:
            yield Notice(self.store.problems.pop(0))
