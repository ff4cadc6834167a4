"""The user's hooks (training.hooks): functions that are called on the events of a training, with copies of its numbers.

They run between two events, in the first process of a training. They get no model, and what they could change of the
process is put back (`ratchet.training.process_state`), so the weights are those of a training without hooks.
"""

import inspect
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.counts import count_of
from ratchet.errors import TrainingError, first_line
from ratchet.training.custom_code import CustomCode
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    import torch

    from ratchet import training

__all__ = ["HookRecord", "Hooks"]

NO_RESULT = "what it calls gets copies, and the state of the process is restored after each call"

_LARGE_SHARE, _LEAST_SECONDS = 0.1, 10.0  # of the time of the training, from which hooks are called slow


@dataclass(frozen=True)
class HookRecord:
    """Copies of the numbers of a training at one event, for one call of one hook."""

    event: str  # start, step, epoch, checkpoint, stop or end
    step: int  # optimizer steps that are done,
    total_steps: int  # of so many
    epoch: int  # counted from 1; at start and checkpoint: epochs that are complete
    metrics: dict[str, float]  # of a step or an epoch; at the end: the best value
    best: bool  # it is the best epoch so far
    history: list[dict[str, float]]  # metrics of the complete epochs
    weights: "dict[str, torch.Tensor] | None" = None  # on the CPU, at checkpoint and end, if the hook asks for them


@dataclass
class _Hook:
    """One function, and what its calls have cost."""

    name: str  # package.module:function
    function: Callable[[HookRecord], object]
    root: Path  # project folder
    calls: int = 0
    seconds: float = 0.0
    failures: int = 0
    error: str = ""  # the first one, with its step

    def check(self) -> None:
        """Check that it can be called with one record.

        Raises:
            TrainingError: it cannot.
        """
        code = inspect.unwrap(self.function)
        fault = ""
        if isinstance(self.function, type):
            fault = f"is a class. Fix: write `hook = {self.name.partition(':')[2]}()` below it, and name that"
        elif inspect.iscoroutinefunction(code) or inspect.isgeneratorfunction(code):
            fault = "does nothing when it is called: it is a generator or a coroutine. Fix: leave out yield and async"
        else:
            try:
                inspect.signature(self.function).bind(None)
            except TypeError as error:
                fault = f"cannot be called with one record ({error}). Fix: write `def NAME(record):`"
            except ValueError:  # a function of C has no signature
                return
        if fault:
            raise TrainingError(f"training.hooks: {self.name}{self._place()} {fault}")

    def call(self, record: HookRecord, weights: "Callable[[], dict[str, torch.Tensor] | None]") -> str:
        """Call it, and return a message for its first error, otherwise nothing."""
        from ratchet.training.process_state import kept_process_state

        begun = time.perf_counter()
        self.calls += 1
        try:
            if getattr(self.function, "weights", False):
                record = replace(record, weights=weights())
            with kept_process_state():
                self.function(record)
        except (Exception, SystemExit, GeneratorExit) as error:  # the user's code may raise anything
            self.failures += 1
            if self.failures == 1:
                line = _line_of(error, self.root)
                self.error = f"at step {record.step:,}, event {record.event}: {line}{_error_text(error)}"
                return f"training.hooks: {self.name} failed {self.error}. The training goes on. Fix: correct the hook"
        finally:
            self.seconds += time.perf_counter() - begun
        return ""

    @property
    def summary(self) -> str:
        """Calls, time and errors."""
        text = f"{self.name}: {count_of(self.calls, 'call')}, {self.seconds:.1f} s"
        times = "once," if self.failures == 1 else f"{self.failures:,} times, first"
        return f"{text}, failed {times} {self.error}" if self.failures else text

    def _place(self) -> str:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        path = Path(code.co_filename) if code else None
        if code is None or path is None or not path.is_relative_to(self.root):
            return ""
        return f" ({path.relative_to(self.root)}, line {code.co_firstlineno})"


class _HookCode(CustomCode):
    """Code of a hook, which DVC does not track: it decides no result."""

    def _require_inside(self, names: list[str]) -> None:
        """Let it import all modules of the project."""


@dataclass
class Hooks:
    """The hooks of a training, and the numbers that they get."""

    hooks: list[_Hook]
    store: "training.CheckpointStore | None" = None
    history: list[dict[str, float]] = field(default_factory=list)
    total: int = 0
    has_best: bool = False  # the last epoch is the best so far
    begun: float = 0.0
    has_warned: bool = False

    @classmethod
    def load(cls, names: tuple[str, ...], workspace: Workspace) -> "Hooks":
        """Import and check the functions.

        Raises:
            TrainingError: there is no such function, its module does not import, or it takes no record.
        """
        hooks = [_Hook(name, _imported(name, workspace.root), workspace.root.resolve()) for name in names]
        for hook in hooks:
            hook.check()
        return cls(hooks)

    @property
    def summary(self) -> str:
        """One line about all hooks."""
        return "; ".join(hook.summary for hook in self.hooks)

    def follow(self, event: "training.Event") -> Iterator[tuple[int, str]]:
        """Call the hooks with an event that is one for them. Yield step and text of each message for the user."""
        from ratchet import training

        match event:
            case training.Started():
                self.total, self.history, self.begun = event.total_steps, list(event.history), time.perf_counter()
                yield from self._call("start", event.step)
            case training.Points():
                yield from self._call("step", event.step, epoch=event.epoch, metrics=event.values)
            case training.Epoch():
                row = {"epoch": event.epoch, "step": event.step, **event.values}
                self.history = [*self.history[: event.epoch - 1], row]
                self.has_best = event.best
                yield from self._call("epoch", event.step, metrics=event.values)
            case training.Checkpointed():
                yield from self._call("checkpoint", event.step, weights=lambda: self._stored(event.step))
                self.has_best = False
            case training.Stopped():
                yield from self._call("stop", event.step)
            case training.Finished():
                best = {"best_epoch": float(event.best_epoch), "best_value": event.best_value}
                self.history = event.history
                yield from self._call("end", event.step, metrics=best, weights=lambda: _copied(event.weights))

    def _call(
        self,
        event: str,
        step: int,
        *,
        epoch: int | None = None,
        metrics: Mapping[str, float] | None = None,
        weights: "Callable[[], dict[str, torch.Tensor] | None]" = lambda: None,
    ) -> Iterator[tuple[int, str]]:
        for hook in self.hooks:
            record = HookRecord(
                event=event,
                step=step,
                total_steps=self.total,
                epoch=len(self.history) if epoch is None else epoch,
                metrics=dict(metrics or {}),
                best=self.has_best and event in ("epoch", "checkpoint"),
                history=[dict(row) for row in self.history],
            )
            if message := hook.call(record, weights):
                yield step, message
        if message := self._slow():
            yield step, message

    def _stored(self, step: int) -> "dict[str, torch.Tensor] | None":
        """Return the weights in the checkpoint of a step; None if it could not be written."""
        assert self.store is not None
        self.store.wait()
        path, snapshot = self.store.newest() or (None, None)
        if path is None or snapshot is None or snapshot.step != step:
            return None
        group = "averaged/" if any(name.startswith("averaged/") for name in snapshot.tensors) else "model/"
        return {name.removeprefix(group): tensor for name, tensor in snapshot.tensors.items() if name.startswith(group)}

    def _slow(self) -> str:
        """Return a message, once, if the hooks take much of the training's time."""
        seconds, passed = sum(hook.seconds for hook in self.hooks), time.perf_counter() - self.begun
        if self.has_warned or seconds < max(_LEAST_SECONDS, _LARGE_SHARE * passed):
            return ""
        self.has_warned = True
        return f"training.hooks takes {seconds / passed:.0%} of the time ({self.summary}). Fix: do less in each call"


def _imported(name: str, root: Path) -> Callable[..., Any]:
    """Import a hook, which changes nothing of the process, either.

    Raises:
        TrainingError: naming the line, if its module does not import.
    """
    from ratchet.training.process_state import kept_process_state

    top = name.partition(":")[0].partition(".")[0]
    code = _HookCode(root, top if (root / top).is_dir() else f"{top}.py", "training.hooks")
    try:
        with kept_process_state():
            return code.load(name)
    except TrainingError as error:
        line = _line_of(error.__cause__, root) if error.__cause__ else ""
        raise TrainingError(f"{error}, {line.removesuffix(', ')}" if line else str(error)) from error


def _copied(weights: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}


def _error_text(error: BaseException) -> str:
    name, text = type(error).__name__, first_line(error)
    return name if text == name else f"{name}: {text}"


def _line_of(error: BaseException, root: Path) -> str:
    """Return "plots.py, line 3, " for the last line of the user's code in the traceback; empty: there is none."""
    frames = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    own = [(Path(name).relative_to(root.resolve()), line) for name, line in frames if _is_inside(name, root.resolve())]
    return f"{own[-1][0]}, line {own[-1][1]}, " if own else ""


def _is_inside(file: str, root: Path) -> bool:
    """Return whether a file is the user's: in the project folder, which may have the code of Ratchet, too."""
    path = Path(file)
    return path.is_relative_to(root) and path.relative_to(root).parts[0] not in ("commands", "flows", "src", "tasks")
