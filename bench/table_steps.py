"""Speed of table training: the loop of the train stage beside bare steps of the same network.

    RATCHET_DATASETS=FOLDER python -m bench.table_steps [--rounds 5]

FOLDER holds tabular/adult.data. Each round trains the recipe of examples/tabular-classification.yaml twice in this
process, for the same number of steps. "loop" is `ratchet.training.fit` on the packed set: reading from the memory map,
metrics, and a checkpoint every 50 steps. "resident" makes the same optimizer steps on tensors in memory, in the
same precision. The order changes from round to round. The rates are samples per CPU second, because other programs
change the wall time; start, validation and the first 20 steps are not counted. Claim: the median of the ratios is at
least .9.
"""

import itertools
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bench.project import scratch
from bench.report import Row, alone, options, ratio, spread
from bench.tabular import prepared
from ratchet import settings
from ratchet.data.manifest import Manifest
from ratchet.training import CheckpointStore, TrainingInputs, fit, open_split
from ratchet.training.augment import epoch_order
from ratchet.training.inputs import initial_model
from ratchet.training.losses import Objective
from ratchet.training.optim import build_optimizer, clip_gradients
from ratchet.training.precision import choose_precision
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob

__all__ = ["measure"]

_WARM = 20  # steps
_STEPS = 300
_CLAIM = 0.9


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Return the table's rows: both rates and their ratio."""
    rounds, steps = (1, 20) if quick else (rounds, _STEPS)
    rates: dict[str, list[float]] = {"loop": [], "resident": []}
    with scratch() as folder:
        project = prepared("adult", folder, {"training.checkpoint_steps": 50})
        if project is None:
            return [Row("loop / resident", "no adult.data in RATCHET_DATASETS", "not measured")]
        inputs = _inputs(project.folder, steps)
        for number in range(rounds):
            for name in sorted(rates, reverse=bool(number % 2)):
                rates[name].append((_loop if name == "loop" else _resident)(inputs, steps))
            print(f"round {number + 1}: " + ", ".join(f"{name} {rate[-1]:,.0f}" for name, rate in rates.items()))
    condition = f"adult, batch {inputs.plan.batch_size}, {steps} steps, median of {rounds} rounds"
    rows = [Row(f"samples per CPU-s: {name}", condition, spread(values)) for name, values in rates.items()]
    gained = ratio(rates["loop"], rates["resident"])
    return [*rows, Row("loop / resident", condition, f"{gained:.3f}", f">= {_CLAIM}", gained >= _CLAIM)]


def _inputs(project: Path, steps: int) -> TrainingInputs:
    params, workspace = settings.load(project / "params.yaml"), Workspace(project)
    job = TrainingJob.of(params, workspace, Manifest.read(workspace.packed))
    train, validation = (open_split(workspace.packed, name) for name in ("train", "validation"))
    plan = job.plan
    epochs = -(-(_WARM + steps + 1) * plan.batch_size // len(train))
    plan = replace(plan, epochs=epochs, max_steps=_WARM + steps + 1, doctor="never")
    return TrainingInputs(train, validation, job.spec, plan, identity=job.identity)


def _loop(inputs: TrainingInputs, steps: int) -> float:
    """Return samples per CPU second of the training loop."""
    calls = itertools.count()
    times: list[float] = []  # before the first step that counts, and after the last

    def note() -> bool:
        if next(calls) in (_WARM, _WARM + steps):  # only there: a look at the clock takes up to a tenth of a step
            times.append(time.process_time())
        return False

    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder), keep_last=inputs.plan.keep_last, keep_best=inputs.plan.keep_best)
        for _ in fit(inputs, store=store, stop=note):
            pass
    return inputs.plan.batch_size * steps / (times[1] - times[0])


def _resident(inputs: TrainingInputs, steps: int) -> float:
    """Return samples per CPU second of the same steps on tensors in memory."""
    plan, cpu = inputs.plan, torch.device("cpu")
    precision = choose_precision(plan.precision, cpu)
    model, _ = initial_model(inputs)
    optimizer, objective = build_optimizer(model.train(), plan, cpu), Objective(plan, inputs.spec.target, cpu)
    stored, targets = inputs.train.batch(np.arange(len(inputs.train)), cpu)
    order = torch.from_numpy(epoch_order(len(inputs.train), seed=plan.seed, epoch=0))
    batches = [rows for rows in order.split(plan.batch_size) if len(rows) == plan.batch_size]
    began = time.process_time()
    for step in range(_WARM + steps):
        if step == _WARM:
            began = time.process_time()
        rows = batches[step % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        with precision.autocast(cpu):
            outputs = model(*(array[rows] for array in stored))
        (objective(outputs, targets[rows]) / len(rows)).backward()
        clip_gradients(dict(model.named_parameters()), plan)
        optimizer.step()
    return plan.batch_size * steps / (time.process_time() - began)


def main() -> None:
    """Measure and print."""
    alone(options(__doc__), lambda requested: measure(requested.rounds, quick=requested.quick))


if __name__ == "__main__":
    main()
