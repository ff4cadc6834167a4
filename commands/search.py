"""`ratchet search`: find better settings, and look at studies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import exit_on_sigterm, interruptible, new_group, project_folder
from ratchet.counts import count_of
from ratchet.terminal_lines import echo, echo_table
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.search.store import StudyStore
    from ratchet.settings.model import Params

__all__ = ["search"]

_CONTINUES = "the same command continues every trial from its checkpoint"

search = new_group("Find better settings: search.space in params.yaml says which.")
search.info.no_args_is_help = False
Name = Annotated[str | None, typer.Argument(metavar="STUDY", show_default="the study of params.yaml")]


@search.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; kept if the search ends. Repeatable."),
    ] = None,
) -> None:
    """Find better settings with processes on this machine. Continues a search that was interrupted."""
    if context.invoked_subcommand is not None:
        return
    with _held() as workspace:
        from flows.packed_data import bring_data
        from ratchet import settings
        from ratchet.references import require_references
        from ratchet.settings.run_settings import overridden

        changes = settings.parse_assignments(assignments or [])
        with overridden(workspace.params, changes, note=workspace.overrides, say=_print_note) as run:
            require_references(run.params, workspace)
            if run.params.search.space:
                bring_data(run.params, workspace)
            _search(workspace, run.params)
            run.keep()


@search.command()
def resume(study: Annotated[str, typer.Argument(metavar="STUDY")]) -> None:
    """Continue a study with the settings with which it began, also after `ratchet search stop`."""
    with _held() as workspace:
        from ratchet import settings
        from tasks.search_study import settings_of

        local = settings.load(workspace.params)
        _search(workspace, settings_of(_store(workspace, study).require(), local))


@search.command()
def join(
    study: Annotated[str, typer.Argument(metavar="STUDY")],
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes.", show_default="one per GPU, else per core")
    ] = None,
) -> None:
    """Help with a study that was begun elsewhere, until it ends. Needs the same code and data, and search.storage."""
    exit_on_sigterm()
    with project_folder() as workspace, interruptible(_CONTINUES):
        from ratchet import settings
        from tasks.progress import Terminal
        from tasks.search import run_workers

        params = settings.load(workspace.params)
        if workers:
            params = params.model_copy(update={"search": params.search.model_copy(update={"workers": workers})})
        store = _store(workspace, study)
        store.require()
        with Terminal(store.name, unit="trials") as progress:
            run_workers(params, workspace, store, progress=progress)


@search.command()
def stop(study: Name = None) -> None:
    """Ask all workers of a study to write checkpoints and end. `ratchet search resume STUDY` continues it."""
    with project_folder() as workspace:
        store = _store(workspace, study)
        running = sum(trial.state == "running" for trial in store.require().trials)
        store.save(stop=True)
        echo(f"{store.name}: its workers end after their current epoch; running now: {count_of(running, 'trial')}")


@search.command()
def table(study: Name = None) -> None:
    """Print the trials, the best first."""
    with project_folder() as workspace:
        from ratchet.reports.search_text import trial_table

        header, rows = trial_table(_store(workspace, study).require())
        echo_table([title.removeprefix("validation/") for title in header], rows)


@search.command()
def importance(study: Name = None) -> None:
    """Print how much each setting decides (PED-ANOVA)."""
    with project_folder() as workspace:
        from ratchet.search.setting_importance import importance as shares

        result = shares(_store(workspace, study).require())
        for key, share in result.items():
            echo(f"{share:6.1%}  {key}")
        if not result:
            echo("too few trials are complete for a statement")


@contextmanager
def _held() -> Iterator[Workspace]:
    """Make the project's folder the working folder, and be the only run in it."""
    exit_on_sigterm()
    with (
        project_folder() as workspace,
        interruptible(_CONTINUES),
        workspace.hold("ratchet search") as restored,
    ):
        if restored:
            _print_note(restored)
        yield workspace


def _print_note(text: str) -> None:
    echo(f"ratchet: {text}", err=True)


def _store(workspace: Workspace, study: str | None) -> "StudyStore":
    from ratchet import settings
    from ratchet.search.store import StudyStore
    from tasks.search_study import study_name

    params = settings.load(workspace.params)
    return StudyStore(workspace, params.search.storage, study or study_name(params, workspace))


def _search(workspace: Workspace, params: "Params") -> None:
    from ratchet.reports.search_text import summary
    from tasks.progress import Terminal
    from tasks.search import search as find

    with Terminal("search", unit="trials") as progress:
        result = find(params, workspace, progress=progress)
    if not result.did_work:
        echo("Nothing to do: the study has ended, and its budget is the same.")
    for line in summary(result.study):
        echo(line)
    for key, (before, after) in result.changes.items():
        from ratchet.settings.messages import spell

        echo(f"params.yaml  {key}: {spell(before)} -> {spell(after)}")
    echo(f"table        {result.table}; plots beside it")
    if result.study.state == "ended":
        echo("next         ratchet train")
