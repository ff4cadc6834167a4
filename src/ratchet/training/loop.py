"""The heart: one generator that trains and reports; nothing here knows who listens."""

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from ratchet.errors import CheckpointError, TrainingError
from ratchet.training.augment import epoch_order
from ratchet.training.batches import Split, step_rows
from ratchet.training.checkpoint import CheckpointStore
from ratchet.training.device import autocast, choose_device, choose_precision, describe, reproducible, seed_step
from ratchet.training.events import Checkpointed, Epoch, Event, Finished, Notice, Points, Started, Stopped
from ratchet.training.models import ModelSpec, build
from ratchet.training.optim import build_optimizer, clip_gradients
from ratchet.training.plan import Plan
from ratchet.training.schedule import learning_rate
from ratchet.training.state import Sums, TrainingState

__all__ = ["fit"]


def fit(
    train: Split,
    validation: Split,
    spec: ModelSpec,
    plan: Plan,
    *,
    store: CheckpointStore,
    identity: dict[str, str],
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train, or go on where the newest checkpoint in `store` stands.

    Args:
        train, validation: the only data that is touched.
        identity: digests of data, settings and code; a checkpoint with others is refused.
        stop: asked before every step; when it says yes, a checkpoint is written and training leaves.

    Yields:
        Events; the last is Finished, or Stopped. Every figure of a step is yielded before a checkpoint of it is taken,
        so that who resumes from the checkpoint has lost none.

    Raises:
        TrainingError: the device is absent, the model does not fit the data, or the loss is no longer finite.
        CheckpointError: the store's checkpoint is of another run.
    """
    with reproducible(plan.seed, deterministic=plan.deterministic), store:
        yield from _Training(train, validation, spec, plan, store, identity, stop).run()


_LONGEST_SILENCE = 1.0  # seconds that figures may wait on a device that runs ahead: fetching makes it stop and wait


class _Clock:
    """Samples per second since the last lap."""

    def __init__(self) -> None:
        self.samples = 0
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def lap(self) -> float:
        now = time.perf_counter()
        rate = self.samples / max(now - self._start, 1e-9)
        self.samples, self._start = 0, now
        return rate


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
        stop: Callable[[], bool],
    ) -> None:
        for split in (train, validation):
            if not len(split):
                raise TrainingError(
                    f"split {split.name} has no rows: training needs some in train and in validation; "
                    "see data.validation_fraction and data.test_fraction"
                )

        # What it is made of
        self.train, self.validation, self.plan = train, validation, plan
        self.store, self.identity, self.stop = store, identity, stop

        # Where it runs
        self.device = choose_device(plan.device)
        self.precision, self.precision_notice = choose_precision(plan.precision, self.device)

        # What learns
        model = build(spec).to(self.device)
        if plan.channels_last:
            model = model.to(memory_format=torch.channels_last)
        self.state = TrainingState(model, build_optimizer(model, plan, self.device))

        # How long
        self.steps = step_rows(len(train), plan.batch_size)
        self.total_steps = len(self.steps) * plan.epochs
        if plan.max_steps:
            self.total_steps = min(self.total_steps, plan.max_steps)

        # Figures not yet fetched from the device, and the clock they are timed by
        self.pending: list[tuple[int, float, torch.Tensor]] = []
        self.step_clock, self.epoch_clock = _Clock(), _Clock()

    def run(self) -> Iterator[Event]:
        resumed = self.store.newest()
        if resumed is not None:
            path, snapshot = resumed
            if snapshot.state["identity"] != self.identity:
                raise CheckpointError(f"checkpoint {path} is of other data, settings or code: move it away")
            self.state.restore(snapshot)
        yield from self._problems()
        if self.precision_notice:
            yield Notice(self.precision_notice)
        yield Started(
            device=describe(self.device),
            precision=self.precision,
            parameters=sum(parameter.numel() for parameter in self.state.model.parameters()),
            step=self.state.step,
            total_steps=self.total_steps,
            steps_per_epoch=len(self.steps),
            resumed_from=resumed[0] if resumed else None,
        )
        self.step_clock, self.epoch_clock = _Clock(), _Clock()
        while not self.state.finished:
            for event in self._epoch():
                yield event
                if isinstance(event, Stopped):
                    return
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

    def _epoch(self) -> Iterator[Event]:
        state, plan = self.state, self.plan
        order = epoch_order(len(self.train), seed=plan.seed, epoch=state.epoch)
        state.model.train()
        for start, end in self.steps[state.batch :]:
            if state.step >= self.total_steps:
                break
            if self.stop():
                yield from self._checkpoint()
                self.store.wait()
                yield from self._problems()
                yield Stopped(state.step)
                return

            self._step(order[start:end])

            # once in a while:
            if self.device.type == "cpu" or self.step_clock.seconds > _LONGEST_SILENCE:
                yield from self._fetch()  # a CPU does not run ahead, so there fetching costs nothing
            if plan.checkpoint_steps and state.step % plan.checkpoint_steps == 0:
                yield from self._checkpoint()
        yield from self._fetch()
        yield from self._end_epoch()

    def _step(self, rows: NDArray[np.int64]) -> None:
        """One optimizer step: forward, loss, backward, clip, step. Nothing here waits for the device."""
        state, plan = self.state, self.plan
        rate = self._rate(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = rate

        # ------------------------------------------------------------------------------------------------------------
        seed_step(plan.seed, state.step, self.device)
        state.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for micro in np.array_split(rows, min(plan.accumulation, len(rows))):
            images, labels = self.train.batch(micro, self.device, plan, epoch=state.epoch)
            with autocast(self.precision, self.device):
                logits = state.model(images)
            loss = cross_entropy(logits.float(), labels, label_smoothing=plan.label_smoothing, reduction="sum")
            torch.autograd.backward(loss / len(rows))  # each sample weighs the same, in a smaller micro-batch too
            total += loss.detach()
            state.sums.correct += (logits.detach().argmax(1) == labels).sum()
        norm = clip_gradients(state.model, plan)
        state.optimizer.step()
        # ------------------------------------------------------------------------------------------------------------

        state.sums.loss += total
        state.sums.norm += norm
        state.step, state.batch = state.step + 1, state.batch + 1
        self.step_clock.samples += len(rows)
        self.epoch_clock.samples += len(rows)
        self.pending.append((state.step, rate, torch.stack([total / len(rows), norm])))

    def _rate(self, step: int) -> float:
        return learning_rate(self.plan, step=step, total_steps=self.total_steps, steps_per_epoch=len(self.steps))

    def _fetch(self) -> Iterator[Event]:
        """Bring the waiting figures of all steps from the device at once; refuse to go on when one is not finite."""
        if not self.pending:
            return
        fetched = torch.stack([figures for _, _, figures in self.pending]).tolist()
        steps = [(step, rate, *figures) for (step, rate, _), figures in zip(self.pending, fetched, strict=True)]
        self.pending.clear()
        for step, rate, loss, norm in steps:
            self._refuse_if_not_finite({"loss": loss, "gradient norm": norm}, step=step, rate=rate)
        logged = [figures for figures in steps if figures[0] % self.plan.log_every == 0]
        if not logged:
            return
        rates = {"step/samples_per_second": self.step_clock.lap()}
        for step, rate, loss, norm in logged:
            values = {"step/loss": loss, "step/gradient_norm": norm, "step/learning_rate": rate}
            yield Points(step, self.state.epoch + 1, values, rates if step == logged[-1][0] else {})

    def _refuse_if_not_finite(self, figures: dict[str, float], *, step: int, rate: float) -> None:
        for name, value in figures.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"the {name} is {value} at step {step} (epoch {self.state.epoch + 1}, learning rate {rate:.3g}): "
                    "lower training.learning_rate, lengthen training.warmup_epochs or set training.clip_norm"
                )

    def _end_epoch(self) -> Iterator[Event]:
        state, plan = self.state, self.plan
        rates = {"train/samples_per_second": self.epoch_clock.lap()}
        seen = sum(end - start for start, end in self.steps[: state.batch])
        values = {
            "train/loss": state.sums.loss.item() / seen,
            "train/accuracy": state.sums.correct.item() / seen,
            "train/gradient_norm": state.sums.norm.item() / state.batch,
            "train/learning_rate": self._rate(state.step - 1),  # of the last step; a resumed optimizer has not seen it
            **self._validate(),
        }
        self._refuse_if_not_finite(values, step=state.step, rate=values["train/learning_rate"])
        self._judge(values)
        is_best = state.best_epoch == state.epoch + 1
        epoch = state.epoch + 1
        state.history.append({"epoch": epoch, "step": state.step, **values})
        yield Epoch(epoch, state.step, values, rates, best=is_best)
        self.epoch_clock.lap()
        yield from self._overfit(values, epoch)

        state.epoch, state.batch, state.sums = epoch, 0, Sums.zero(self.device)
        patience_over = bool(plan.patience) and state.stale_epochs >= plan.patience
        if patience_over:
            yield Notice(f"stopped after epoch {epoch}: no better {plan.best} for {plan.patience} epochs")
        state.finished = patience_over or epoch >= plan.epochs or state.step >= self.total_steps
        yield from self._checkpoint()

    def _judge(self, values: dict[str, float]) -> None:
        """Keep the weights if this epoch is the best so far, and count how long patience has waited."""
        state, plan = self.state, self.plan
        value = values[plan.best]
        gain = math.inf if state.patience_value is None else self._sign * (value - state.patience_value)
        # Measured from the last value that counted: many small gains count once they add up to more than min_delta.
        if gain > plan.min_delta:
            state.patience_value, state.stale_epochs = value, 0
        else:
            state.stale_epochs += 1
        epoch = state.epoch + 1
        if not state.best_epoch or self._score(values, epoch) > self._score(
            state.history[state.best_epoch - 1], state.best_epoch
        ):
            state.keep_best(value)

    @property
    def _sign(self) -> float:
        return -1.0 if self.plan.best.endswith("loss") else 1.0

    def _score(self, values: dict[str, float], epoch: int) -> tuple[float, ...]:
        """What epochs are compared by; larger is better. Small validation sets tie often: then the loss decides."""
        return self._sign * values[self.plan.best], -values["validation/loss"], -float(epoch)

    def _overfit(self, values: dict[str, float], epoch: int) -> Iterator[Event]:
        gap = values["train/accuracy"] - values["validation/accuracy"]
        if gap > self.plan.overfit_gap and not self.state.overfit_said:
            self.state.overfit_said = True
            yield Notice(
                f"over-fitting at epoch {epoch}: training accuracy {values['train/accuracy']:.3f}, validation "
                f"{values['validation/accuracy']:.3f}, a gap above training.overfit_gap {self.plan.overfit_gap}: "
                "more data, augmentation (training.flip, training.crop_padding) or weight decay help"
            )

    def _validate(self) -> dict[str, float]:
        model = self.state.model.eval()
        loss = torch.zeros((), device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        with torch.inference_mode():
            for rows in self.validation.in_order(2 * self.plan.batch_size):
                images, labels = self.validation.batch(rows, self.device)
                with autocast(self.precision, self.device):
                    logits = model(images)
                loss += cross_entropy(logits.float(), labels, reduction="sum")
                correct += (logits.argmax(1) == labels).sum()
        model.train()
        return {
            "validation/loss": loss.item() / len(self.validation),
            "validation/accuracy": correct.item() / len(self.validation),
        }

    def _checkpoint(self) -> Iterator[Event]:
        yield from self._fetch()  # what a checkpoint has behind it must have been reported
        at_epochs_end = self.state.batch == 0 and self.state.history
        score = self._score(self.state.history[-1], self.state.epoch) if at_epochs_end else None
        self.store.put(self.state.snapshot(self.identity, score=score))
        yield Checkpointed(self.state.step)
        yield from self._problems()

    def _problems(self) -> Iterator[Event]:
        while self.store.problems:
            yield Notice(self.store.problems.pop(0))
