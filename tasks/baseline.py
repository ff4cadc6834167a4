"""The baseline of a training: a simple model that is fitted in seconds to the same samples.

It is stored in data/baseline. It can also be the model (model.name: baseline), or be averaged with the network
(model.name: blend).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.kinds import Input, ModelSpec, TextInput
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    import torch

    from ratchet import training
    from ratchet.training.custom_split import ArraysSplit
    from tasks.training_job import TrainingJob

__all__ = ["Baseline", "validated"]

_MOST_ROWS = 1_000_000  # that a baseline learns from
_MOST_BYTES = 1 << 26  # of texts
_MOST_UNPACKED_BYTES = 1 << 28  # of a user's samples that are read for it once more
_PIECE = 64  # samples of a user's own kind that are read together


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline: `model` is on the CPU in eval mode."""

    name: str  # for people: "HistGradientBoosting"
    spec: "ModelSpec"
    model: "training.Model"

    @classmethod
    def fit(cls, job: "TrainingJob", train: "training.Split") -> "Baseline":
        """Fit the baseline to the training samples that count in the loss, or to a part of very many."""
        from ratchet import training
        from ratchet.baselines import fit_baseline

        counted = _counted(job, train)
        rows = _part(counted, train)
        arrays, input_spec = _samples(job, train, rows)
        targets = np.asarray(train.targets)[rows]
        fitted = fit_baseline(arrays, targets, input_spec, job.spec.target, seed=job.plan.seed)
        spec = ModelSpec(fitted.network_name, fitted.input, job.spec.target)
        model = training.build(spec).eval()
        model.network.load_state_dict(fitted.weights)
        part = f" of {len(rows):,} training samples" if len(rows) < len(counted) else ""
        return cls(fitted.name + part, spec, model)

    @classmethod
    def load(cls, workspace: Workspace) -> "Baseline":
        """Load the one of the last training, from data/baseline."""
        from ratchet import training

        model, spec = training.load_model(workspace.baseline)
        return cls(files.read_json(workspace.baseline / "model.json")["baseline"]["name"], spec, model)

    def write(self, workspace: Workspace) -> None:
        """Write data/baseline."""
        from ratchet import training

        with files.draft_directory(workspace.baseline) as draft:
            training.save_model(draft, self.model.state_dict(), self.spec, about={"baseline": {"name": self.name}})

    def blended(self, spec: "ModelSpec", weights: "Mapping[str, torch.Tensor]") -> "tuple[ModelSpec, training.Model]":
        """Return the average of the network `spec` with these weights and of the baseline."""
        from ratchet import training
        from ratchet.training.models.baseline_nets import blend_weights

        network = {
            name.removeprefix("network."): value for name, value in weights.items() if name.startswith("network.")
        }
        both = replace(spec, name=f"blend:{spec.name}+{self.spec.name}")
        model = training.build(both).eval()
        model.network.load_state_dict(blend_weights(network, self.model.network.state_dict()))
        return both, model

    def events(self, job: "TrainingJob", inputs: "training.TrainingInputs") -> "Iterator[training.Event]":
        """Yield the events of a training without steps whose result is the baseline."""
        from ratchet import training

        metrics = validated(self.model, inputs.validation, job)
        sizes = sum(tensor.numel() for tensor in self.model.state_dict().values())
        yield training.Started(
            device="cpu",
            processes=1,
            device_name=f"baseline {self.name}",
            precision="fp32",
            parameters=sizes,
            step=0,
            total_steps=0,
            steps_per_epoch=0,
            resumed_from=None,
        )
        yield training.Epoch(1, 0, metrics, {}, best=True, attempt=0)
        history = [{"epoch": 1.0, "step": 0.0, **metrics}]
        yield training.Finished(
            step=0,
            best_epoch=1,
            best_value=metrics[job.plan.best],
            weights=dict(self.model.state_dict()),
            history=history,
        )


def validated(model: "training.Model", split: "training.Split", job: "TrainingJob") -> dict[str, float]:
    """Return the validation metrics of a model that no training measured."""
    import torch

    from ratchet.training.losses import Objective
    from ratchet.training.own_loss import own_loss
    from ratchet.training.precision import choose_precision
    from ratchet.training.validation import validate

    cpu = torch.device("cpu")
    objective = Objective.measuring(job.plan, job.spec.target, cpu, own=own_loss(job.plan, job.spec))
    precision = choose_precision("fp32", cpu, channels_last=False)
    return validate(model, split, objective=objective, precision=precision, device=cpu, batch_size=job.plan.batch_size)


def _counted(job: "TrainingJob", train: "training.Split") -> NDArray[np.int64]:
    """Return the rows that count in the loss. A token stream has none: its baseline has its own limit."""
    targets = np.asarray(train.targets)
    return np.flatnonzero(targets != job.plan.ignore_index) if targets.dtype == np.int64 else np.arange(len(targets))


def _part(rows: NDArray[np.int64], train: "training.Split") -> NDArray[np.int64]:
    """Return the rows, or evenly spaced ones of very many, of very long texts or of large samples that are read."""
    from ratchet.baselines import MOST_VALUES
    from ratchet.training.custom_split import UnpackedSplit
    from ratchet.training.texts import TextSplit

    chosen = min(len(rows), _MOST_ROWS)
    if isinstance(train, TextSplit):
        chosen = min(chosen, max(1, len(rows) * _MOST_BYTES // max(1, train.bytes)))
    if isinstance(train, UnpackedSplit) and train.input_spec.size <= MOST_VALUES:
        chosen = min(chosen, max(1, _MOST_UNPACKED_BYTES // sum(part.nbytes for part in _empty(train, 1).values())))
    return rows[np.arange(chosen) * len(rows) // max(1, chosen)]


def _samples(
    job: "TrainingJob", train: "training.Split", rows: NDArray[np.int64]
) -> "tuple[dict[str, NDArray[Any]], Input]":
    """Return the training samples as `fit_baseline` takes them, and their input.

    A baseline of texts learns its own vocabulary, and trees take numbers as they are packed, but the baseline of a
    blend has the network's tokenizer and scaling.
    """
    from ratchet import training
    from ratchet.baselines import MOST_VALUES
    from ratchet.tokens.tokenizers import encode
    from ratchet.training.custom_split import ArraysSplit
    from ratchet.training.streams import StreamSplit
    from ratchet.training.texts import TextSplit

    input_spec = job.spec.input
    match train:
        case TextSplit() if job.variant == "blend":
            ids = encode(train.texts(rows), job.spec.text)
            return {"ids": ids.values, "starts": ids.starts}, input_spec
        case TextSplit():
            texts = [text.encode() for text in train.texts(rows)]
            starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
            return {"text": np.frombuffer(b"".join(texts), np.uint8), "starts": starts}, TextInput()
        case StreamSplit():
            return {"ids": np.asarray(train.windows.ids)}, input_spec
        case training.TableSplit():
            arrays = dict(zip(train.array_names, train.gather(rows), strict=True))
            return arrays, input_spec if job.variant == "blend" else job.spec.table.unscaled
        case ArraysSplit() if train.input_spec.size <= MOST_VALUES:
            return _read(train, rows), input_spec if job.variant == "blend" else job.spec.arrays.unscaled
        case _:
            return {}, input_spec


def _read(train: "ArraysSplit", rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a user's samples. Worker processes read those that are not packed."""
    import torch

    arrays, starts = _empty(train, len(rows)), range(0, len(rows), _PIECE)
    pieces = [rows[start : start + _PIECE] for start in starts]
    for start, (inputs, _) in zip(starts, train.feed(pieces, torch.device("cpu")), strict=True):
        for array, values in zip(arrays.values(), inputs, strict=True):
            array[start : start + len(values)] = values.numpy()
    return arrays


def _empty(train: "ArraysSplit", count: int) -> dict[str, NDArray[Any]]:
    return {name: np.empty((count, *shape), dtype) for name, dtype, shape in train.input_spec.layout}
