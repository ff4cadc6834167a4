"""`ratchet predict`: score files by a registered version."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from commands.app import interruptible
from ratchet import files, settings
from ratchet.data.reading.input_files import InputFile
from ratchet.data.reading.storage import is_url
from ratchet.errors import DataError
from ratchet.registry.models import ModelRegistry
from ratchet.serving.batch.answer_files import FORMATS, AnswerFile, TextAnswers, open_answers
from ratchet.serving.batch.row_reader import RowRange, RowReader
from ratchet.serving.process import configured
from ratchet.serving.scoring import score
from ratchet.serving.versions.loaded import Identity
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace
from tasks.progress import Terminal
from tasks.score import Request, loaded_version, new_reader, options_of, require_apart
from tasks.score import score as score_shards

__all__ = ["predict", "predict_shards"]


def predict(workspace: Workspace, request: Request, out: Path | None) -> bool:
    """Score the files of a request, and write the answers to `out`, or as CSV to the terminal.

    A file that cannot be read is named, and the others are scored. Return whether all were read and a row was answered.
    """
    if out is not None and out.suffix.lower() not in FORMATS:
        raise DataError(f"--out: found {out}; allowed: a file that ends in {', '.join(FORMATS)}")
    params = settings.load(workspace.params)
    version = ModelRegistry(workspace, params).find(request.model or configured(workspace, params))
    rows = refused = unlike = unread = unsure = 0

    def note_fault(error: DataError) -> None:
        nonlocal unread
        unread += 1
        echo(f"ratchet: {error}", err=True)

    with loaded_version(workspace, f"{version.name}/{version.number}", params.serving) as loaded:
        options = options_of(loaded, request)
        reader = new_reader(loaded, request.column)
        listing = list(_files(reader, request.inputs, note_fault))
        if not listing:
            return False  # every path is named above
        _require_no_input(out, request.inputs, reader, listing)
        with _answers(out, loaded.identity) as answers:
            for batch in reader.batches(list(map(RowRange, listing)), on_fault=note_fault):
                frame = score(loaded, batch, options)
                answers.write(frame)
                rows, refused = rows + frame.height, refused + int(frame["refused"].count())
                unlike += int(frame["warnings"].count())
                unsure += frame.filter("abstained").height if options.abstain else 0
            if not rows:
                raise DataError(f"{', '.join(request.inputs)}: no row could be read")
        for note in reader.notes:
            echo(f"warning: {note}", err=True)
        ends = [f"{rows - refused:,} of {rows:,} rows answered by {loaded.identity}"]
        ends += [f"{unlike:,} unlike the training samples, see the column warnings"] if unlike else []
        ends += [f"{unsure:,} without a class, because the model is not sure (--abstain)"] if unsure else []
        ends += [f"{unread:,} of the files could not be read, see above"] if unread else []
        echo("; ".join([*ends, *reader.left_out]), err=True)
    return refused < rows and not unread


def _files(reader: RowReader, paths: Sequence[str], note_fault: Callable[[DataError], None]) -> Iterator[InputFile]:
    """Yield the files at the paths, and note the paths that have none."""
    for path in paths:
        try:
            yield from reader.files([path])
        except DataError as error:
            note_fault(error)


def _require_no_input(out: Path | None, paths: Sequence[str], reader: RowReader, listing: Sequence[InputFile]) -> None:
    """Refuse a file for answers that is an input, or that the same command would read the next time."""
    if out is not None and out.suffix.lower() in reader.suffixes:
        require_apart("--out", str(out), paths)
    if out is None or not out.exists():
        return
    own = out.stat()
    for file in listing:
        if file.size >= 0 and not is_url(file.path) and os.path.samestat(own, os.stat(file.path)):
            raise DataError(f"--out: {out} is one of the inputs. Fix: choose another file")


def predict_shards(workspace: Workspace, request: Request) -> bool:
    """Score the files into a folder of shards. Return whether a row was answered."""
    params = settings.load(workspace.params)
    continues = "the same command continues at the first unfinished shard"
    with interruptible(continues), Terminal("predict", unit="rows") as progress:
        scored = score_shards(params, workspace, request, progress=progress)
    echo(scored.summary, err=True)
    return scored.refused < scored.rows


@contextmanager
def _answers(out: Path | None, identity: Identity) -> Iterator[AnswerFile]:
    """Yield the receiver of answers: a file that is complete or unchanged, or the terminal."""
    if out is None:
        sys.stdout.flush()
        yield TextAnswers(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with files.draft_file(out) as draft, open_answers(draft, out.suffix.lower(), identity) as answers:
        yield answers
