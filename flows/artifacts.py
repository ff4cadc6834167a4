"""A finished run's figures and report, as Prefect artifacts."""

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from ratchet.settings import Params
from ratchet.workspace import Workspace
from tasks.evaluate import read_figures
from tasks.register import Registration
from tasks.summary import summary

__all__ = ["publish"]


def publish(params: Params, workspace: Workspace) -> None:
    """The verdict and what was made; each class's figures; where the whole report is."""
    registration, figures = Registration.load(workspace), read_figures(workspace)
    lines = [f"# {'Passed' if registration.passed else 'Refused'}", registration.words, "", "| | |", "|---|---|"]
    lines += [f"| {caption} | {text} |" for caption, text in summary(params, workspace).items() if caption != "gate"]
    intervals = {"accuracy": figures.accuracy, "macro F1": figures.macro_f1, "log-loss": figures.log_loss}
    lines += ["", f"| figure | value | {figures.confidence:.0%} interval |", "|---|---|---|"]
    lines += [f"| {name} | {one.value:.4f} | {one.low:.4f} to {one.high:.4f} |" for name, one in intervals.items()]
    create_markdown_artifact("\n".join(lines), key="report", description="Verdict, figures and where everything is")
    rows = [
        {
            "class": one.name,
            "precision": _rounded(one.precision),
            "recall": _rounded(one.recall),
            "F1": _rounded(one.f1),
            "test rows": one.support,
        }
        for one in figures.per_class
    ]
    create_table_artifact(rows, key="classes", description="Figures of each class on the test rows")
    create_link_artifact(
        workspace.report.as_uri(), key="report-page", link_text="report.html on the machine that ran it"
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
