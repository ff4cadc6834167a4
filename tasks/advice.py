"""Next steps after a run, by its result: the most urgent first."""

from collections.abc import Mapping, Sequence

from ratchet import files
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.problems import read_metrics
from ratchet.gate.verdict import Verdict
from ratchet.problems import PROBLEMS
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["next_steps", "steps_of"]

_MOST = 3
_FALLS = 1.02  # factor by which the loss of the last epoch is below the others if it still falls
_SMALL = 0.1  # of balanced accuracy: a test that can show only larger differences is small

Epochs = Sequence[Mapping[str, float | None]]
Step = tuple[str, str]  # a command or a setting, and its purpose


def steps_of(params: Params, workspace: Workspace, verdict: Verdict) -> list[Step]:
    """Return the next steps after the last run."""
    history = files.read_json(workspace.model / "history.json")
    return next_steps(params, verdict, read_metrics(workspace.reports), history)


def next_steps(params: Params, verdict: Verdict, metrics: Metrics, history: Epochs) -> list[Step]:
    """Return at most three commands with their purposes."""
    steps = [*_usefulness(metrics), *_fit(params, history), *_slices(metrics)]
    if any(rule.name == "champion" for rule in verdict.failed):
        steps.append(("ratchet search", "search better settings; the champion stays"))
    usual = [("ratchet data labels", "the most confident errors: some labels may be wrong")]
    usual *= PROBLEMS[metrics.problem].finds_wrong_labels
    usual += [("ratchet search", "search better settings")]
    if verdict.passed:
        usual.append(("ratchet up", "start the servers: the model answers, and MLflow's page compares runs"))
    done = {command for command, _ in steps}
    return [*steps, *(step for step in usual if step[0] not in done)][:_MOST]


def _usefulness(metrics: Metrics) -> list[Step]:
    constant, baseline, steps = metrics.constant, metrics.baseline, []
    if constant is not None and constant.metric.share and constant.smallest > _SMALL:
        purpose = f"{metrics.rows:,} test samples can show only differences of {100 * constant.smallest:.0f} points"
        steps.append(("add test samples", purpose))
    if constant is not None and not constant.is_better:
        steps.append(("ratchet preflight", f"it is not better than {constant.name}: look for errors in the data"))
    elif baseline is not None and baseline.difference.low <= 0.0:
        steps.append(("ratchet train --set model.name=baseline", f"{baseline.name} may be as good, and is simpler"))
    return steps


def _fit(params: Params, history: Epochs) -> list[Step]:
    """Return the step against over-fitting or under-fitting."""
    losses = [row.get("validation/loss") for row in history]
    values = [loss for loss in losses if loss is not None]
    if len(history) < 2 or len(values) < len(losses):
        return []
    best, last = values.index(min(values)) + 1, history[-1]
    held_out_name = "balanced_accuracy" if params.training.sampling == "balanced" else "accuracy"
    trained, held_out = last.get("train/accuracy"), last.get(f"validation/{held_out_name}")
    gap = 0.0 if trained is None or held_out is None else trained - held_out
    if gap > params.training.overfit_gap:
        decay = 2 * params.training.weight_decay or 0.01
        against = f"validation {held_out_name.replace('_', ' ')} {held_out:.3f}"
        purpose = f"over-fitting: training accuracy {trained:.3f}, {against}; or add data"
        return [(f"ratchet train --set training.weight_decay={decay:g}", purpose)]
    if best < len(history) * 2 / 3 and values[-1] > 1.1 * min(values):
        return [
            (f"ratchet train --set training.epochs={best}", f"over-fitting: validation loss rises after epoch {best}")
        ]
    if min(values[:-1]) > _FALLS * values[-1] and params.model.name != "baseline":
        purpose = "under-fitting: the validation loss still fell in the last epoch"
        return [(f"ratchet train --set training.epochs={2 * params.training.epochs}", purpose)]
    return []


def _slices(metrics: Metrics) -> list[Step]:
    worse = [f"{part.column}: {part.value}" for part in metrics.slices if part.is_worse]
    return [("see the slices in the report", f"significantly worse: {', '.join(worse[:2])}")] if worse else []
