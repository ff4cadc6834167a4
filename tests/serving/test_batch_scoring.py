"""Batch scoring: equal bytes after kills, bounded memory, S3, and jobs that are refused. Rows of the Titanic."""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from scored import DATASETS, TEXTS, TITANIC, Place, digests
from waiting import let_run, until, until_or_end

from ratchet import settings
from ratchet.data.reading.input_files import Storages
from ratchet.errors import DataError, RegistryError, StorageUnavailable, WorkspaceBusy
from ratchet.scale.result_folder import ResultFolder
from ratchet.serving.batch.job import Job, begin, plan, read_job
from ratchet.serving.batch.row_reader import RowRange, RowReader
from tasks.score import require_apart, score_shard

pytestmark = pytest.mark.system

RANDOM = random.Random(8)


@pytest.fixture(scope="module")
def place(new_project: Callable[[str], Any]) -> Place:
    project = new_project("scoring")
    settings.override(project.workspace.params, {"registry.export": "onnx"})
    place = Place(project)
    place.add("titanic", TITANIC)
    place.add("texts", TEXTS)
    return place


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    path = DATASETS / "tabular" / "titanic.csv"
    if not path.is_file():
        pytest.skip("RATCHET_DATASETS names no folder with tabular/titanic.csv")
    return pl.read_csv(path)


@pytest.fixture
def titanic(rows: pl.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "titanic.csv"
    rows.write_csv(path)
    return path


def answers(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(sorted(folder.glob("shard-*.parquet")))


def test_formats_and_shard_sizes_give_the_same_answers(place: Place, rows: pl.DataFrame, tmp_path: Path) -> None:
    writers: dict[str, Callable[..., Any]] = {
        "csv": rows.write_csv, "parquet": rows.write_parquet, "jsonl": rows.write_ndjson,
    }  # fmt: skip
    results = {}
    for suffix, write in writers.items():
        write(tmp_path / f"rows.{suffix}")
        scored = place.score(tmp_path / f"rows.{suffix}", tmp_path / suffix, shard_rows=97)
        assert (scored.rows, scored.refused, scored.shards, scored.earlier) == (len(rows), 0, 10, 0)
        results[suffix] = answers(tmp_path / suffix).drop("file")
    whole = place.score(tmp_path / "rows.csv", tmp_path / "whole", shard_rows=10_000)
    assert whole.shards == 1
    results["whole"] = answers(tmp_path / "whole").drop("file")
    assert results["csv"]["row"].to_list() == list(range(1, len(rows) + 1))
    assert results["csv"]["probability"].n_unique() > 100
    assert all(frame.equals(results["csv"]) for frame in results.values())
    assert set(results["csv"]["provenance"]) == {"record-1"}
    about = pl.read_parquet_metadata(tmp_path / "whole" / "shard-000000.parquet")
    names = ("model", "version", "provenance", "rows")
    assert [about[f"ratchet.{name}"] for name in names] == ["titanic", "1", "record-1", "891"]


def test_rows_of_several_files_keep_their_numbers(place: Place, rows: pl.DataFrame, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows[:500].write_csv(folder / "a.csv")
    rows[500:].write_parquet(folder / "b.parquet", row_group_size=50)
    place.score(folder, tmp_path / "out", shard_rows=120)
    results = answers(tmp_path / "out")
    assert results["row"].to_list() == [*range(1, 501), *range(1, len(rows) - 499)]
    before = digests(tmp_path / "out")
    for kept in (0, 3, 4, 6):  # in the middle of the first file, at its end, and in the second
        for path in sorted((tmp_path / "out").glob("s*"))[kept:]:
            path.unlink()
        assert place.score(folder, tmp_path / "out", shard_rows=120).earlier == kept
        assert digests(tmp_path / "out") == before


def test_a_killed_job_ends_with_the_same_bytes(place: Place, rows: pl.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    pl.concat([rows] * 10).write_csv(path)
    size = ("--shard-rows", "330")
    place.project.good(*place.command(path, tmp_path / "whole", *size))
    killed = tmp_path / "killed"
    process = place.start(path, killed, *size)
    until_or_end(lambda: list(killed.glob("shard-*")), process, pause=0.005)
    let_run(process, 0.2 * RANDOM.random())
    process.kill()
    process.wait()
    shards = len(list((killed / ".results").glob("[!.]*.json")))  # each is written after its shard
    (killed / ".draft-abandoned.parquet").write_bytes(b"PAR1")
    output = place.project.good(*place.command(path, killed, *size))
    assert f"27 shards in {killed}, {shards} of them earlier" in output
    assert digests(killed) == digests(tmp_path / "whole")
    assert len(digests(killed)) == 27 + 2


def test_a_damaged_shard_is_computed_again(place: Place, titanic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    place.score(titanic, out)
    before = digests(out)
    shard = out / "shard-000002.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    assert place.score(titanic, out).earlier == 4
    assert digests(out) == before


def test_a_worker_of_an_earlier_job_writes_no_shard(place: Place, titanic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    place.score(titanic, out)
    before = digests(out)
    shard = {
        "project": str(place.workspace.root), "version": "titanic/1", "variant": "fp32", "threads": 1, "column": None,
        "output": str(out), "job": "0" * 64, "shard": 0,
        "ranges": [[str(titanic), titanic.stat().st_size, str(titanic.stat().st_mtime_ns), 1, 10, 0, 1, 0]],
    }  # fmt: skip
    with pytest.raises(DataError, match="has another job by now"):
        score_shard(shard)
    assert digests(out) == before


def test_other_inputs_settings_and_versions_are_refused(place: Place, titanic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    place.score(titanic, out)
    before = digests(out)
    number = place.add("titanic", TITANIC, seed=2)
    with pytest.raises(DataError, match=r"shard rows was 200, is 100.*--again"):
        place.score(titanic, out, shard_rows=100)
    with pytest.raises(DataError, match=rf"version was titanic/1, is titanic/{number}; run was"):
        place.score(titanic, out, model=f"titanic/{number}")
    other = tmp_path / "other.csv"
    other.write_bytes(titanic.read_bytes())
    with pytest.raises(DataError, match=r"input files changed \(were 1 with .*, are 2 with"):
        place.score(titanic, out, other=other)
    assert place.score(titanic, out, shard_rows=None, model="titanic/1").earlier == 5
    os.utime(titanic, (1, 1))
    with pytest.raises(DataError, match=r"input files changed.*--again"):
        place.score(titanic, out)
    assert digests(out) == before
    assert place.score(titanic, out, again=True, shard_rows=300).shards == 3
    shards = [f"shard-{shard:06}.parquet" for shard in range(3)]
    assert sorted(digests(out)) == ["manifest.json", *shards, "summary.json"]


def test_a_job_of_another_variant_or_format_is_refused(place: Place, titanic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    place.score(titanic, out)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | {"variant": "int8-static"}))
    with pytest.raises(DataError, match="variant was int8-static, is fp32"):
        place.score(titanic, out)
    (out / "manifest.json").write_text(json.dumps({"format": 1, "model": "titanic", "settings": {}}))
    (out / "inputs.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"has a job of format 1; allowed: 3.*--again"):
        place.score(titanic, out)
    assert place.score(titanic, out, again=True).shards == 5
    assert "inputs.parquet" not in digests(out)


def test_a_moved_alias_does_not_change_a_job(place: Place, titanic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    place.score(titanic, out)
    before = digests(out)
    (out / "summary.json").unlink()
    (out / "shard-000004.parquet").unlink()
    number = place.add("titanic", TITANIC, seed=3)
    place.registry.set_aliases("titanic", {"champion": number})
    try:
        assert place.score(titanic, out).identity.version == "1"
        assert f"titanic@champion is version {number} now" in place.progress.messages[0]
        assert digests(out) == before
        assert place.score(titanic, out, again=True).identity.version == number
    finally:
        place.registry.set_aliases("titanic", {"champion": "1"})


def test_a_folder_is_refused_that_is_no_place_for_answers(place: Place, titanic: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has other files \(titanic.csv\)"):
        place.score(titanic, tmp_path)
    with pytest.raises(DataError, match="is inside the input"):
        place.score(tmp_path, tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path)
    for written in (f"file://{tmp_path}/out", f"local://{tmp_path}/out", str(tmp_path / "link" / "out")):
        with pytest.raises(DataError, match="is inside the input"):
            require_apart("--output", written, [str(tmp_path)])
    with pytest.raises(DataError, match="is a file"):
        place.score(titanic, DATASETS / "tabular" / "titanic.csv")
    out = tmp_path / "out"
    place.score(titanic, out)
    (out / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"has 5 shards and no manifest.json.*--again"):
        place.score(titanic, out)


def test_again_keeps_the_answers_if_nothing_can_be_scored(place: Place, titanic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    place.score(titanic, out)
    before = digests(out)
    with pytest.raises(DataError, match="there is no such file"):
        place.score(tmp_path / "titanik.csv", out, again=True)
    with pytest.raises(RegistryError):
        place.score(titanic, out, again=True, model="titanic/17")
    assert digests(out) == before


def test_a_retry_of_again_continues_after_the_deletion(place: Place, titanic: Path, tmp_path: Path) -> None:
    out, forgotten = tmp_path / "out", tmp_path / "forgotten"
    place.score(titanic, out)
    with pytest.raises(DataError, match="there is no such file"):
        place.score(tmp_path / "titanik.csv", out, again=True, forgotten=forgotten)
    assert not forgotten.exists()
    assert place.score(titanic, out, again=True, forgotten=forgotten).earlier == 0
    (out / "shard-000002.parquet").unlink()  # as if the attempt had ended before it
    assert place.score(titanic, out, again=True, forgotten=forgotten).earlier == 4


def test_predict_never_writes_over_its_input(place: Place, titanic: Path, tmp_path: Path) -> None:
    content = titanic.read_bytes()
    (tmp_path / "same.csv").hardlink_to(titanic)
    for out in (titanic, tmp_path / "same.csv"):
        arguments = ("ratchet", "predict", str(titanic), "--model", "titanic@champion", "--out", str(out))
        output = place.project.refused(*arguments)
        assert f"--out: {out} is " in output
    assert titanic.read_bytes() == content


def test_a_second_process_is_refused(place: Place, titanic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ResultFolder(str(out)).locked(tmp_path), ResultFolder(str(out)).draft("summary.json") as draft:
        output = place.project.refused(*place.command(titanic, out))
        assert draft.exists()
        assert f"{out}: another process scores into it now" in output
    assert place.score(titanic, out).rows == 891


def test_refused_rows_have_reasons_and_the_others_answers(place: Place, tmp_path: Path) -> None:
    names = "age,fare,pclass,sex,embarked"
    table = tmp_path / "rows.csv"
    table.write_text(f'{names}\n31,8,1,male,S\nold,8,1,male,S\n1,2\n\n,,,,\n"3","8",1,"a\nb",S\n')
    scored = place.score(table, tmp_path / "out", shard_rows=4)
    assert (scored.rows, scored.refused) == (6, 3)
    results = answers(tmp_path / "out")
    assert results["refused"].to_list() == [
        None,
        "column 'age': 'old' is no number. Fix: correct it, or leave it empty",
        "line 4 has 2 cells, the header has 5",
        "line 5 has no cells, the header has 5",
        None,
        None,
    ]
    assert (results["class"].is_null() == results["refused"].is_not_null()).all()
    lines = tmp_path / "rows.jsonl"
    row = '{"age": %s, "fare": 8, "pclass": 1, "sex": "male", "embarked": "S", "more": [1]}\n'
    lines.write_text(row % 3 + row % "[3]" + "{\n" + '{"age": 3}\n' + row % '"4"' + row % 4.5)
    place.score(lines, tmp_path / "lines")
    reasons = answers(tmp_path / "lines")["refused"]
    assert [reason is None for reason in reasons] == [True, False, False, False, True, True]
    assert reasons[2] == "line 3 is no JSON object with finite numbers"
    assert reasons[3] == "line 4 has no 'fare'. Fix: add it; null is a missing value"
    table.write_text(f"{names}\nold,8,1,male,S\n")
    assert "1 of 1 rows" not in place.project.refused(*place.command(table, tmp_path / "none"))
    table.write_text(f"{names}\n")
    with pytest.raises(DataError, match=r"rows.csv: has no rows"):
        place.score(table, tmp_path / "empty")


def test_texts_are_files_or_rows(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    texts = ["a good film", "a bad film", "", "film, and plot"]
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text)
    (folder / "4.txt").write_bytes(b"caf\xe9")
    pl.DataFrame({"words": texts}).write_csv(folder / "5.csv")
    pl.DataFrame({"text": texts, "other": 1}).write_ndjson(folder / "6.jsonl")
    scored = place.score(folder, tmp_path / "out", model="texts@champion", shard_rows=5)
    assert (scored.rows, scored.refused) == (13, 1)
    results = answers(tmp_path / "out")
    assert results["refused"][4].startswith("is no text (byte 0xe9 at position 3 is not UTF-8)")
    probabilities = results["probability"].to_list()
    assert probabilities[:4] == probabilities[5:9] == probabilities[9:]


def test_a_removed_file_is_named_and_the_others_scored(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    reader, errors = RowReader(Storages("FILE"), TEXTS.input, column=None), list[DataError]()
    listing = reader.files([str(tmp_path)])
    (tmp_path / "1.txt").unlink()
    (batch,) = reader.batches(list(map(RowRange, listing)), on_fault=errors.append)
    assert [(Path(path).name, value) for path, value in zip(batch.files, batch.values, strict=True)] == [
        ("0.txt", "text 0"),
        ("2.txt", "text 2"),
    ]
    (error,) = errors
    assert str(error).startswith(f"{tmp_path / '1.txt'}: was changed or removed")
    with pytest.raises(DataError, match="was changed or removed"):
        list(reader.batches(list(map(RowRange, listing))))


def test_of_two_jobs_that_begin_at_once_one_is_refused(tmp_path: Path, s3: dict[str, str]) -> None:
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("both")
    output = ResultFolder("s3://both/out")
    job = Job(3, "titanic@champion", "titanic/1", "run", "fp32", "digest", 1, 1, 200, None, 1, {})
    assert begin(output, job) == job
    assert begin(output, replace(job, reference="titanic/1")) == job
    with pytest.raises(DataError, match="shard rows was 200, is 100"):
        begin(output, replace(job, shard_rows=100))
    assert read_job(output) == job


def test_a_job_that_another_machine_begins_first_is_shared(
    place: Place, titanic: Path, tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave the version's number, and this one the alias; each shard has the digest of the job that began."""
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("shared")
    place.score(titanic, tmp_path / "out", model="titanic/1")
    first, output = read_job(ResultFolder(str(tmp_path / "out"))), ResultFolder("s3://shared/out")
    assert first is not None

    def plan_slowly(*about: Any) -> Iterator[Any]:
        yield from plan(*about)
        begin(output, first)

    monkeypatch.setattr("ratchet.serving.batch.job.plan", plan_slowly)
    assert place.score(titanic, output.where).shards == 5
    assert read_job(output) == first


def test_s3_is_read_and_written_as_a_folder(
    place: Place, titanic: Path, tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    system = s3fs.S3FileSystem(skip_instance_cache=True)
    system.mkdir("scoring")
    system.put_file(str(titanic), "scoring/in/titanic.csv")
    url, out = "s3://scoring/in", "s3://scoring/answers/day 1"
    assert place.score(url, out).shards == 5
    assert place.score(titanic, tmp_path / "out").shards == 5

    def content() -> dict[str, bytes]:
        system.invalidate_cache()
        return {name.rpartition("/")[2]: system.cat_file(name) for name in system.find("scoring/answers")}

    before = content()
    system.get("scoring/answers/day 1/", str(tmp_path / "copy"), recursive=True)
    assert answers(tmp_path / "copy").drop("file").equals(answers(tmp_path / "out").drop("file"))
    for name in ("shard-000003.parquet", "summary.json"):
        system.rm_file(f"scoring/answers/day 1/{name}")
    assert place.score(url, out).earlier == 4
    assert content() == before
    assert place.score(url, out).earlier == 5
    system.pipe_file("scoring/in/titanic.csv", titanic.read_bytes() + b"0,3,male,22.0,1,0,7.25,S,,,,,,,\n")
    with pytest.raises(DataError, match=r"input files changed \(were 1 with"):
        place.score(url, out)
    with (
        ResultFolder(out).locked(place.workspace.project.state),
        pytest.raises(WorkspaceBusy, match="another process scores into it"),
    ):
        place.score(url, out)
    with pytest.raises(DataError, match=r"--output: s3://absent/out .*create the bucket"):
        place.score(url, "s3://absent/out")
    with pytest.raises(DataError, match="whose password would be recorded"):
        place.score("s3://key:secret@scoring/in", out)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageUnavailable, match="the connection is refused"):  # which score-flow tries again
        place.score(url, out)


def test_a_terminated_command_removes_its_copy_of_the_model(place: Place, rows: pl.DataFrame, tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out"
    pl.concat([rows] * 200).write_csv(path)
    process = place.start(path, out, "--shard-rows", "1000")
    until(lambda: list(out.glob("shard-*")), process=process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert not list(out.glob(".draft-*"))


@contextlib.contextmanager
def measured(process: "subprocess.Popen[bytes]") -> Iterator[list[float]]:
    """Yield a list that has the process's peak of memory in MiB when it has ended."""
    peak: list[float] = []
    yield peak
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    peak.append(usage.ru_maxrss / (1 if sys.platform == "darwin" else 1024))
    assert isinstance(usage, resource.struct_rusage)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_memory_does_not_grow_with_the_rows(place: Place, rows: pl.DataFrame, tmp_path: Path, suffix: str) -> None:
    peaks = {}
    for count in (20_000, 500_000):
        frame, path = pl.concat([rows] * (count // len(rows) + 1)).head(count), tmp_path / f"{count}.{suffix}"
        if suffix == "csv":
            frame.write_csv(path)
        else:
            frame.write_parquet(path)
        process = subprocess.Popen(
            place.command(path, tmp_path / str(count), "--shard-rows", "125000"),
            cwd=place.project.root,
            env=place.project.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with measured(process) as peak:
            pass
        assert process.returncode == 0
        peaks[count] = peak[0]
    assert answers(tmp_path / "500000").height == 500_000
    assert peaks[500_000] < peaks[20_000] + 50, peaks
