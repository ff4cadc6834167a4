"""`ratchet predict`: score files by a registered version."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from commands.app import echo
from ratchet import files, settings
from ratchet.errors import DataError
from ratchet.registry.models import ModelRegistry
from ratchet.serving.batch.writing import FORMATS, Answers, CsvAnswers, written
from ratchet.serving.process import configured
from ratchet.serving.scoring import score
from ratchet.serving.versions.loaded import Identity
from ratchet.workspace import Workspace
from tasks.progress import Terminal
from tasks.score import Request, loaded_version, new_reader
from tasks.score import score as score_shards

__all__ = ["predict", "predict_shards"]


def predict(
    workspace: Workspace, paths: Sequence[str], *, model: str | None, out: Path | None, column: str | None
) -> bool:
    """Score the files, and write the answers to `out`, or as CSV to the terminal. Return whether a row was answered.

    Raises:
        DataError: a file cannot be read, or `out` cannot be written.
        RegistryError: there is no such version, or its files are damaged.
    """
    if out is not None and out.suffix.lower() not in FORMATS:
        raise DataError(f"--out: found {out}; allowed: a file that ends in {', '.join(FORMATS)}")
    params = settings.load(workspace.params)
    registry = ModelRegistry(workspace, params)
    version = registry.find(model or configured(workspace, params))
    rows = refused = 0
    with loaded_version(registry, version, params, variant=params.serving.variant) as loaded:
        reader = new_reader(loaded, column)
        listing = reader.files(paths)
        if reader.ignored.files:
            print(reader.ignored.text, file=sys.stderr)
        with _answers(out, loaded.identity) as answers:
            for batch in reader.batches(listing):
                frame = score(loaded, batch)
                answers.write(frame)
                rows, refused = rows + frame.height, refused + int(frame["refused"].count())
            if not rows:
                raise DataError(f"{', '.join(map(str, paths))}: has no rows")
        for note in reader.notes:
            echo(f"warning: {note}", err=True)
        echo(f"{rows - refused:,} of {rows:,} rows answered by {loaded.identity}", err=True)
    return refused < rows


def predict_shards(workspace: Workspace, request: Request) -> bool:
    """Score the files into a folder of shards. Return whether a row was answered.

    Raises:
        RatchetError: as `tasks.score.score`.
    """
    params = settings.load(workspace.params)
    with Terminal("predict", unit="MiB") as watch:
        scored = score_shards(params, workspace, request, watch=watch)
    echo(scored.summary, err=True)
    return scored.refused < scored.rows


@contextmanager
def _answers(out: Path | None, identity: Identity) -> Iterator[Answers]:
    """Yield the receiver of answers: a file that is complete or unchanged, or the terminal."""
    if out is None:
        sys.stdout.flush()
        terminal = CsvAnswers(sys.stdout.buffer)
        yield terminal
        terminal.close()
        return
    with files.draft_file(out) as draft, written(draft, out.suffix.lower(), identity) as answers:
        yield answers
