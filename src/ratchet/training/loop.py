"""The heart: one generator that trains and reports; nothing here knows who listens."""

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from ratchet.errors import CheckpointError, NotFinite, TrainingError
from ratchet.training import selection
from ratchet.training.augment import epoch_order
from ratchet.training.batches import Batch, Rows, Split, run_steps, step_rows
from ratchet.training.checkpoint import CheckpointStore
from ratchet.training.determinism import require_deterministic
from ratchet.training.device import choose_device, describe, keep_freed_memory, ran_out_of_memory, reproducible
from ratchet.training.duplicate import duplicate
from ratchet.training.events import Checkpointed, Epoch, Event, Finished, Notice, Started, Stopped, Trouble
from ratchet.training.interrupt import Interrupted, never
from ratchet.training.losses import Objective, class_weights
from ratchet.training.memory import checkpointed
from ratchet.training.model_init import fresh_model
from ratchet.training.models import ModelSpec
from ratchet.training.optim import build_optimizer
from ratchet.training.plan import Plan
from ratchet.training.precision import choose_precision
from ratchet.training.profiler import StepProfiler
from ratchet.training.schedule import learning_rate, plateau_falls
from ratchet.training.state import Sums, TrainingState
from ratchet.training.step import Stepper, compiled, micro_batches, needs_two_samples
from ratchet.training.step_metrics import Meter, require_finite
from ratchet.training.throughput import waiting
from ratchet.training.transfer import learn, without_pretrained
from ratchet.training.validation import validate

__all__ = ["fit"]

_LONG = 1000  # steps from which on a few seconds of the doctor's are well spent


def fit(
    train: Split,
    validation: Split,
    spec: ModelSpec,
    plan: Plan,
    *,
    store: CheckpointStore,
    identity: dict[str, str],
    pretrained: Path | None = None,
    profile_to: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train, or go on where the newest checkpoint in `store` stands.

    Args:
        train, validation: the only data that is touched.
        identity: digests of data, settings and code; a checkpoint with others is refused.
        pretrained: weights to begin with; whatever of them fits is loaded.
        profile_to: the folder for a trace of `plan.profile` steps.
        stop: asked before every step, and from another thread while a user's own Dataset keeps a step waiting; when it
            says yes, a checkpoint is written and training leaves.

    Yields:
        Events; the last is Finished, or Stopped. Every figure of a step is yielded before a checkpoint of it is taken,
        so that who resumes from the checkpoint has lost none.

    Raises:
        TrainingError: the device is absent, the model does not fit the data, or memory does not suffice for one sample.
        NotFinite: the loss is no longer finite, after `plan.max_rollbacks` returns to a checkpoint.
        CheckpointError: the store's checkpoint is of another run.
    """
    with reproducible(plan.seed, deterministic=plan.deterministic), store, closing(train), closing(validation):
        for split in (train, validation):
            split.answer(stop)
        try:
            training = _Training(train, validation, spec, plan, store, identity, pretrained, profile_to, stop)
            with training.precision.in_force(), closing(training.profiler):
                yield from training.run()
        except Interrupted:  # between steps, where there is nothing new to keep
            yield Stopped(store.newest_step())
        finally:
            for split in (train, validation):
                split.answer(never)


class _Training:
    """One training under way."""

    def __init__(
        self,
        train: Split,
        validation: Split,
        spec: ModelSpec,
        plan: Plan,
        store: CheckpointStore,
        identity: dict[str, str],
        pretrained: Path | None,
        profile_to: Path | None,
        stop: Callable[[], bool],
    ) -> None:
        for split in (train, validation):
            if not len(split):
                raise TrainingError(
                    f"split {split.name} has no rows: training needs some in train and in validation; "
                    "see data.validation_fraction and data.test_fraction"
                )

        # What it is made of
        self.train, self.validation, self.spec, self.plan = train, validation, spec, plan
        self.store, self.identity, self.pretrained, self.stop = store, identity, pretrained, stop

        # Where and how it runs
        self.device = choose_device(plan.device)
        keep_freed_memory(self.device)
        self.precision = choose_precision(plan, self.device)
        weights = class_weights(plan, train.labels, len(spec.classes))
        self.objective = Objective(plan, weights, self.device)
        self.profiler = StepProfiler(profile_to, plan.profile, self.device)

        _require_counted(plan, train, validation)

        # How long
        self.steps = step_rows(len(train), plan.batch_size)
        self.total_steps, _ = run_steps(len(train), plan)
        self.least = 1  # samples of a micro-batch
        self.said_least = False

        # What learns
        self.notices: list[str]
        self.begin()
        self.meter = Meter(plan, self.device)

    def begin(self) -> None:
        """The state before the first step: the seed decides it."""
        plan = self.plan
        model, self.notices = fresh_model(self.spec, plan, self.train, self.pretrained)
        if warning := without_pretrained(plan, self.pretrained):
            self.notices.append(warning)
        model = model.to(self.device)
        if self.precision.channels_last:
            model = model.to(memory_format=torch.channels_last)
        averaged = duplicate(model) if plan.ema_decay else None
        if plan.gradient_checkpointing:
            checkpointed(model)
        optimizer = build_optimizer(model, plan, self.device)
        self.state = TrainingState(
            model, optimizer, self.precision.scaler(self.device), averaged, accumulation=plan.accumulation
        )
        network, said = compiled(model, plan, self.device)
        self.notices += [said] if said else []
        self.stepper = Stepper(
            self.state, plan, train=self.train, objective=self.objective, precision=self.precision, network=network
        )

    def run(self) -> Iterator[Event]:
        resumed = self._resume()
        yield from self._problems()
        said = [self.precision.why, *(self.notices if resumed is None else [])]
        yield from (Notice(sentence) for sentence in said if sentence)
        if resumed is None:
            require_deterministic(self.state.model, self.train, self.plan, self.device)
            yield from self._examine()
        yield Started(
            device=str(self.device),
            described=describe(self.device),
            precision=self.precision.name,
            parameters=sum(parameter.numel() for parameter in self.state.model.parameters()),
            step=self.state.step,
            total_steps=self.total_steps,
            steps_per_epoch=len(self.steps),
            resumed_from=resumed,
        )
        self.meter = Meter(self.plan, self.device)  # its clocks start here
        while not self.state.finished:
            fault = None
            try:
                for event in self._epoch():
                    yield event
                    if isinstance(event, Stopped):
                        return
            except NotFinite as error:
                fault = error
            if fault is not None:
                yield from self._roll_back(fault)
        self.store.wait()
        yield from self._problems()
        assert self.state.best_value is not None
        yield Finished(
            step=self.state.step,
            best_epoch=self.state.best_epoch,
            best_value=self.state.best_value,
            weights=self.state.best_weights,
            history=self.state.history,
        )

    def _resume(self) -> Path | None:
        """Take the newest checkpoint, if there is one; its path."""
        newest = self.store.newest()
        if newest is None:
            return None
        path, snapshot = newest
        if snapshot.state["identity"] != self.identity:
            raise CheckpointError(f"checkpoint {path} is of other data, settings or code: move it away")
        self.state.restore(snapshot)
        return path

    def _examine(self) -> Iterator[Event]:
        """What the doctor finds, where it is asked for, before the first step."""
        if self.plan.doctor == "never" or (self.plan.doctor == "auto" and self.total_steps < _LONG):
            return
        from ratchet.training.doctor import describe_finding, examine

        findings = examine(
            self.train,
            self.validation,
            self.spec,
            self.plan,
            model=self.state.model,
            device=self.device,
            precision=self.precision.name,
            pretrained=self.pretrained,
            checkpoints=self.store.folder,
        )
        for finding in findings:
            yield Notice(f"doctor: {describe_finding(finding)}")

    def _epoch(self) -> Iterator[Event]:
        try:
            yield from self._steps()
        except Interrupted:  # a sample was waited for, and no step is half made
            yield from self._leave()

    def _leave(self) -> Iterator[Event]:
        """Checkpoint, and stop."""
        yield from self._checkpoint()
        self.store.wait()
        yield from self._problems()
        step, kept = self.state.step, self.store.newest_step()
        yield Stopped(step, kept=None if kept == step else kept)

    def _steps(self) -> Iterator[Event]:
        state, plan = self.state, self.plan
        self.least = 1
        order = epoch_order(len(self.train), seed=plan.seed, epoch=state.epoch)
        state.model.train()
        learn(state.model, plan, state.epoch)
        feed = self._feed(order)
        try:
            while state.batch < len(self.steps) and state.step < self.total_steps:
                if self.stop():
                    yield from self._leave()
                    return

                start, end = self.steps[state.batch]
                again = self._step(order[start:end], feed)
                if again is not None:
                    feed.close()
                    yield from again
                    feed = self._feed(order)
                    continue

                # once in a while:
                self.profiler.step()
                if self.meter.is_due:
                    yield from self._fetch()
                if plan.checkpoint_steps and state.step % plan.checkpoint_steps == 0:
                    yield from self._checkpoint()
        finally:
            feed.close()
        yield from self._fetch()
        yield from self._end_epoch(order)

    def _feed(self, order: Rows) -> Generator[Batch]:
        """The batches of the epoch's steps that are left, in micro-batches, and how long each was waited for."""
        left = self.steps[self.state.batch :][: self.total_steps - self.state.step]
        parts = self.state.accumulation
        pieces = [piece for start, end in left for piece in micro_batches(order[start:end], parts, least=self.least)]
        batches = self.train.feed(pieces, self.device, plan=self.plan, epoch=self.state.epoch)
        return waiting(batches, self.meter.step_clock, self.meter.epoch_clock)

    def _step(self, rows: Rows, feed: Iterator[Batch]) -> "list[Event] | None":
        """Make one step. If it has to be made again, in other micro-batches: what to say; nothing of it is left."""
        rate = self._rate(self.state.step)
        try:
            self.meter.add(self.stepper.step(rows, feed, rate=rate, least=self.least), samples=len(rows))
        except Interrupted:
            self.stepper.undo()
            raise
        except Exception as error:  # what else it may be is raised again
            if needs_two_samples(error):
                return self._pair(rows, error)
            if not ran_out_of_memory(error):
                raise
            if self.state.accumulation >= max(1, len(rows) // self.least):
                count = "one sample" if self.least == 1 else "two samples, the fewest that its batch norm takes,"
                raise TrainingError(
                    f"memory does not suffice for {count} at step {self.state.step + 1} ({error}): set "
                    "training.gradient_checkpointing: true, a smaller data.image_size, or take a smaller model"
                ) from error
            return [self._halve(len(rows))]
        return None

    def _pair(self, rows: Rows, error: Exception) -> list[Event]:
        """Let no micro-batch of this epoch have one sample alone.

        Every step with such a micro-batch is refused and made again, so the weights do not depend on where a resumed
        epoch begins.
        """
        if len(rows) < 2 or self.least > 1:
            raise TrainingError(
                f"a batch norm of the model cannot learn from one sample ({error}): set training.batch_size to 2 or "
                f"more (it is {self.plan.batch_size}, of {len(self.train):,} training rows)"
            ) from error
        self.stepper.undo()
        self.least = 2
        said, self.said_least = self.said_least, True
        notice = "a batch norm of the model cannot learn from one sample alone: micro-batches have two or more"
        return [] if said else [Notice(notice)]

    def _halve(self, rows: int) -> Trouble:
        """Half the micro-batch, so twice as many to a step, which still sees the same samples."""
        self.stepper.undo()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        before = math.ceil(rows / self.state.accumulation)
        self.state.accumulation = min(2 * self.state.accumulation, max(1, rows // self.least))
        after = math.ceil(rows / self.state.accumulation)
        return Trouble(
            self.state.step,
            "out of memory",
            f"memory did not suffice for a micro-batch of {before} at step {self.state.step + 1}: going on with "
            f"{after}, in a step of the same {rows} samples; training.accumulation={self.state.accumulation} begins so",
        )

    def _rate(self, step: int) -> float:
        falls = 0
        if self.plan.schedule == "plateau":
            seen = [selection.ordered(self.plan, epoch[self.plan.best]) for epoch in self.state.history]
            falls = plateau_falls(seen, patience=self.plan.plateau_patience, min_delta=self.plan.min_delta)
        rate = learning_rate(
            self.plan, step=step, total_steps=self.total_steps, steps_per_epoch=len(self.steps), falls=falls
        )
        return rate * self.plan.rollback_factor**self.state.rollbacks

    def _fetch(self) -> Iterator[Event]:
        return self.meter.fetch(epoch=self.state.epoch + 1, attempt=self.state.rollbacks)

    def _roll_back(self, fault: NotFinite) -> Iterator[Event]:
        """Go back to a checkpoint from before the fault, with a lower rate; or stop, when that was done often enough.

        A checkpoint that has led to a fault once already is given up, and the one before it is taken.
        """
        state, plan = self.state, self.plan
        at, done, before = state.step, state.rollbacks, state.rolled_to
        if done >= plan.max_rollbacks:
            tried = f", after {done} returns to a checkpoint with a lower rate" if done else ""
            raise NotFinite(
                f"{fault}{tried}: lower training.learning_rate, lengthen training.warmup_epochs, set "
                "training.clip_norm or look at that batch's samples",
                step=fault.step,
                rows=self._rows_of(fault.step),
            )
        self.meter.forget()
        self.store.wait()
        newest = self.store.newest()
        if newest is not None and newest[1].step == before:
            newest[0].unlink()
            newest = self.store.newest()
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
        """The rows of the train split that optimizer step `step` (counted from 1) was made on."""
        epoch, batch = divmod(step - 1, len(self.steps))
        start, end = self.steps[batch]
        return tuple(map(int, epoch_order(len(self.train), seed=self.plan.seed, epoch=epoch)[start:end]))

    def _end_epoch(self, order: Rows) -> Iterator[Event]:
        state, plan = self.state, self.plan
        speed, waited = self.meter.epoch_clock.lap()
        rates = {"train/samples_per_second": speed, "train/data_wait": waited}
        seen = self.train.labels[order[: self.steps[state.batch - 1][1]]]
        values = {
            "train/loss": state.sums.loss.item() / (self.objective.weight(seen) or 1.0),
            "train/accuracy": state.sums.correct.item() / (self.objective.counted(seen) or 1),
            "train/gradient_norm": state.sums.norm.item() / state.batch,
            "train/learning_rate": self._rate(state.step - 1),  # of the last step; a resumed optimizer has not seen it
            **self._validate(),
        }
        if state.scaler.is_enabled():
            values = {name: value for name, value in values.items() if name != "train/gradient_norm"}
        require_finite(values, step=state.step, epoch=state.epoch + 1, rate=values["train/learning_rate"])
        selection.judge(state, plan, values)
        epoch = state.epoch + 1
        state.history.append({"epoch": epoch, "step": state.step, **values})
        yield Epoch(epoch, state.step, values, rates, best=state.best_epoch == epoch, attempt=state.rollbacks)
        self.meter.epoch_clock.lap()
        if warning := selection.overfitting(state, plan, values):
            yield Notice(warning)

        state.epoch, state.batch, state.sums = epoch, 0, Sums.zero(self.device)
        patience_over = bool(plan.patience) and state.stale_epochs >= plan.patience
        if patience_over:
            yield Notice(f"stopped after epoch {epoch}: no better {plan.best} for {plan.patience} epochs")
        state.finished = patience_over or epoch >= plan.epochs or state.step >= self.total_steps
        yield from self._checkpoint()

    def _validate(self) -> dict[str, float]:
        """Twice the micro-batch at a time, for nothing is kept for a way back; less where memory does not suffice."""
        batch_size = max(1, 2 * self.plan.batch_size // self.state.accumulation)
        while True:
            try:
                return validate(
                    self.state.judged,
                    self.validation,
                    objective=Objective.measuring(self.plan),
                    classes=len(self.spec.classes),
                    precision=self.precision,
                    device=self.device,
                    batch_size=batch_size,
                )
            except Exception as error:  # what else it may be is raised again
                if not ran_out_of_memory(error) or batch_size == 1:
                    raise
            batch_size //= 2
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _checkpoint(self) -> Iterator[Event]:
        yield from self._fetch()  # what a checkpoint has behind it must have been reported
        state = self.state
        at_epochs_end = state.batch == 0 and state.history
        score = selection.score(self.plan, state.history[-1], state.epoch) if at_epochs_end else None
        self.store.put(state.snapshot(self.identity, score=score))
        yield Checkpointed(state.step)
        yield from self._problems()

    def _problems(self) -> Iterator[Event]:
        while self.store.problems:
            yield Notice(self.store.problems.pop(0))


def _require_counted(plan: Plan, *splits: Split) -> None:
    """Refuse a split of which no row counts.

    Raises:
        TrainingError: every row has the label `ignore_index`.
    """
    for split in splits:
        if bool((np.asarray(split.labels) == plan.ignore_index).all()):
            raise TrainingError(
                f"all {len(split):,} rows of split {split.name} have label {plan.ignore_index}, which "
                "training.ignore_index leaves out of loss and accuracy, so there is nothing to "
                f"{'learn from' if split.name == 'train' else 'choose the best epoch by'}: give some of them a class, "
                "or set training.ignore_index to another label"
            )
