"""`ratchet train --folds`: the settings, trained on each fold."""

from ratchet import settings
from ratchet.evaluation.cross_validation import CrossValidation, Fold
from ratchet.references import require_references
from ratchet.settings.run_settings import overridden
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace

__all__ = ["cross_validate"]


def cross_validate(workspace: Workspace, assignments: list[str], folds: int) -> None:
    """Train the settings on each of so many folds, and print the metrics of each and their means."""
    changes = settings.parse_assignments(assignments)
    with workspace.hold("ratchet train") as restored:
        if restored:
            _print_note(restored)
        with overridden(workspace.params, changes, note=workspace.overrides, say=_print_note) as run:
            from flows.packed_data import bring_data
            from tasks.folds import cross_validate as train_folds
            from tasks.progress import Terminal

            require_references(run.params, workspace)
            bring_data(run.params, workspace)
            result, trained = train_folds(
                run.params,
                workspace,
                folds,
                progress=lambda number: Terminal(f"fold {number} of {folds}", unit="steps"),
                report=lambda fold: echo(fold_line(fold, folds)),
            )
            run.keep()
    if not trained:
        echo("Nothing to do: code, data and settings are those of these folds.")
    for line in summary(result):
        echo(line)


def fold_line(fold: Fold, count: int) -> str:
    """Return the result of a fold as one line."""
    rows = f"{fold.rows['train']:,} train, {fold.rows['validation']:,} validation, epoch {fold.best_epoch}"
    return f"fold {fold.number} of {count}  {_values(fold.metrics)}  ({rows})"


def summary(result: CrossValidation) -> list[str]:
    """Return the means with their intervals, and where they are recorded."""
    level = f"{100 * result.confidence:g} % CI"
    lines = [
        f"mean  {_short(name)} {interval.value:.4f} ({level} {interval.low:.4f} to {interval.high:.4f})"
        for name, interval in result.intervals.items()
    ]
    record = (
        f"MLflow run {result.run_id}" if result.run_id else "MLflow did not answer: the same command records it later"
    )
    return [
        *lines,
        "interval  corrected t of Nadeau and Bengio (2003): the folds share training samples",
        f"record  {record}; nothing is registered",
    ]


def _values(metrics: dict[str, float]) -> str:
    return "  ".join(f"{_short(name)} {value:.4f}" for name, value in metrics.items())


def _short(name: str) -> str:
    return name.removeprefix("validation/")


def _print_note(text: str) -> None:
    echo(f"ratchet: {text}", err=True)
