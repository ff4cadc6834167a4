"""The request log: complete files whatever happens, limited in memory and on the disk."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from waiting import until

from ratchet.problems import Classes
from ratchet.traffic import log_reader, request_log
from ratchet.traffic.log_reader import DAMAGED, find, read, read_file, read_shadow
from ratchet.traffic.log_summary import summary
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import SHADOW, Logged, is_sampled, target_id
from ratchet.traffic.shadow_comparison import comparisons

NOW, HOUR, DAY = time.time(), 3_600.0, 86_400.0


def logged(number: int = 0, *, at: float = NOW, rows: int = 1, **changed: Any) -> Logged:
    inputs = {"pixels": np.full((rows, 2, 2, 1), number % 256, np.uint8)}
    answers = np.full((rows, 3), number, np.float32)
    content = {"inputs": inputs, "predictions": answers} | changed
    return Logged(f"{number:032x}", at, 0.25, "own", "digits", "3", "record", "anna", **content)


def log(folder: Path, requests: list[Logged], **changed: Any) -> RequestLog:
    given: dict[str, Any] = {"share": 1.0, "inputs": "hash", "days": 30.0, "mib": 64.0, "clock": lambda: NOW}
    written = RequestLog(folder, **given | changed)
    for request in requests:
        written.add(request.answer, lambda request=request: request)
    written.close()
    return written


def test_each_row_is_logged(tmp_path: Path) -> None:
    log(tmp_path, [logged(1), logged(2, rows=3)])
    rows = read(tmp_path)
    assert rows["row"].to_list() == [0, 0, 1, 2]
    assert rows["prediction"].to_list()[1] == [2.0, 2.0, 2.0]
    assert rows.row(0, named=True)["time"].timestamp() == pytest.approx(NOW, abs=1e-5)
    assert rows["input_sha256"].n_unique() == 2
    assert "input.pixels" not in rows.columns
    assert find(tmp_path, f"{2:032x}")["row"].to_list() == [0, 1, 2]
    assert find(tmp_path, f"{3:032x}").is_empty()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.parquet")} == {0o600}


def test_end_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    free = threading.Event()

    class Hung(RequestLog):
        """A log whose disk takes no file until `free`."""

        def _write_file(self, path: Path, part: Any) -> None:
            free.wait()
            super()._write_file(path, part)

    hung = Hung(tmp_path, share=1.0, inputs="hash", days=30.0, mib=64.0, clock=lambda: NOW)
    hung.add(f"{1:032x}", lambda: logged(1))
    hung.close(0.01)
    assert hung.problem == "the request log was not written within 0.01 s at the end"
    assert f"{tmp_path}: {hung.problem}; the last requests are lost" in caplog.text
    free.set()
    hung.close()
    assert len(read(tmp_path)) == 1


def test_inputs_are_kept_or_left_out(tmp_path: Path) -> None:
    log(tmp_path / "keep", [logged(7)], inputs="keep")
    log(tmp_path / "none", [logged(7)], inputs="none")
    log(tmp_path / "keep", [logged(8, inputs={"prompt": ("To be",)}, predictions=["or not"])], inputs="keep")
    kept = read(tmp_path / "keep")
    assert kept["input.pixels"].to_list() == [[7, 7, 7, 7], None]
    assert (kept["input.prompt"].to_list(), kept["text"].to_list()) == ([None, "To be"], [None, "or not"])
    assert read(tmp_path / "none")["input_sha256"].to_list() == [None]


def test_summaries_read_no_kept_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of images take gigabytes."""
    live = logged(7, target=target_id(Classes(("a", "b", "c"))), columns=lambda: {"age": [3.0]})
    log(tmp_path, [live, live._replace(envelope=SHADOW, version="4", inputs={})], inputs="keep")
    assert "input.pixels" in read(tmp_path).columns
    columns: set[str] = set()

    def noted(*file: Any, **options: Any) -> pl.DataFrame:
        rows = read_file(*file, **options)
        columns.update(rows.columns)
        return rows

    monkeypatch.setattr(log_reader, "read_file", noted)
    assert [hour.requests for hour in summary(tmp_path)] == [1]
    assert [pair.requests for pair in comparisons(tmp_path, by="age")] == [1]
    assert "prediction" in columns
    assert not {"input.pixels", "input_sha256", "text"} & columns


def test_sampled_inputs_are_spread_over_the_window(tmp_path: Path) -> None:
    begin = NOW // 3600 * 3600
    busy = [logged(minute, at=begin + minute * 60, rows=30) for minute in range(60)]
    log(tmp_path, busy, inputs="sample", window=60)
    rows = read(tmp_path).with_columns(pl.col("time").dt.truncate("5m"), kept=pl.col("input.pixels").is_not_null())
    by_slot = rows.group_by("time", maintain_order=True).agg(pl.col("kept").sum())["kept"].to_list()
    assert (sum(by_slot), len(by_slot), max(by_slot), min(by_slot)) == (200, 12, 17, 16)
    assert (len(rows), rows["input_sha256"].null_count()) == (1800, 0)
    kept = rows.filter(pl.col("kept"))
    assert all(pixels == [int(answer, 16)] * 4 for answer, pixels in kept.select("answer", "input.pixels").iter_rows())
    log(tmp_path / "quiet", [logged(n, at=begin + n * 60) for n in range(60)], inputs="sample", window=60)
    assert read(tmp_path / "quiet")["input.pixels"].null_count() == 0
    texts = ("To be", "or not")
    log(tmp_path / "texts", [logged(1, at=begin, rows=2, texts=texts)], inputs="sample", window=60)
    assert read(tmp_path / "texts")["input.text"].to_list() == ["To be", "or not"]


def test_parts_of_past_hours_become_one_file(tmp_path: Path) -> None:
    past = NOW - 7200
    log(tmp_path, [logged(1, at=past), logged(2, at=past)])
    assert not list(tmp_path.glob("*/*.parquet"))
    (whole,) = tmp_path.glob("*.parquet")
    assert len(pl.read_parquet(whole)) == 2
    late = (
        whole.with_suffix("").with_suffix("") / "late.parquet"
    )  # of a server that was killed before it merged its parts
    late.parent.mkdir()
    pl.read_parquet(whole).head(1).with_columns(answer=pl.lit("f" * 32)).write_parquet(late)
    (late.parent / ".draft-cut-off.parquet").write_bytes(b"PAR1")
    log(tmp_path, [])
    assert len(read(tmp_path)) == 3
    assert not late.parent.exists()
    assert list(tmp_path.glob("*.parquet")) == [whole]


def stored(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.parquet*"))


def test_old_files_are_deleted_after_two_readings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for hours in (2, 30, 60):
        log(tmp_path, [logged(hours, at=NOW - HOUR * hours)])
    oldest, *others = stored(tmp_path)
    log(tmp_path, [], days=2.0)
    assert stored(tmp_path) == [oldest, *others]
    assert "1 files are older than 2 days" in caplog.text
    log(tmp_path, [], days=2.0, clock=lambda: NOW + DAY * 1.1)
    assert stored(tmp_path) == others
    assert f"{oldest} deleted: 3.6 days old, limit 2 days" in caplog.text


def test_a_clock_that_runs_ahead_deletes_nothing(tmp_path: Path) -> None:
    log(tmp_path, [logged(1, at=NOW - HOUR * 2)])
    for clock in (NOW + 90 * DAY, NOW, NOW + 90 * DAY, NOW + 90.9 * DAY):
        log(tmp_path, [], days=30.0, clock=lambda clock=clock: clock)
    assert len(read(tmp_path)) == 1


def test_oldest_files_are_deleted_above_the_limit_of_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for hours in (2, 3, 4):
        log(tmp_path, [logged(hours, at=NOW - HOUR * hours)])
    files = stored(tmp_path)
    log(tmp_path, [], mib=files[-1].stat().st_size * 2.5 / 2**20)
    assert stored(tmp_path) == files[1:]
    assert f"{files[0]} deleted: the log is larger than" in caplog.text
    log(tmp_path, [], mib=1e-6)
    assert stored(tmp_path) == files[2:]


def test_files_of_a_clock_ahead_are_deleted_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else each new hour is deleted until that time. The log says that there are such files."""
    year = NOW + 365 * DAY
    for hours in (3, 2):
        log(tmp_path, [logged(hours, at=year - HOUR * hours)], clock=lambda: year)
    ahead = stored(tmp_path)
    mib = ahead[-1].stat().st_size * 2.5 / 2**20
    first = log(tmp_path, [logged(1, at=NOW - HOUR * 2)], mib=mib)
    assert len(stored(tmp_path)) == 2
    assert ahead[1] in stored(tmp_path)
    assert first.problem.startswith(f"1 files, such as {ahead[1]}, are later than the clock")
    assert first.problem in caplog.text
    second = log(tmp_path, [logged(4, at=NOW - HOUR)], mib=mib)
    assert {int(answer, 16) for answer in read(tmp_path)["answer"]} == {1, 4}
    assert second.problem == ""


@pytest.mark.parametrize("age", [0.0, HOUR * 2])
def test_a_limit_smaller_than_an_hour_keeps_newest_rows(tmp_path: Path, age: float) -> None:
    rng, mib = np.random.default_rng(0), 0.2
    for number in range(40):
        noise = rng.integers(0, 256, (1, 100, 100, 1), dtype=np.uint8)
        log(tmp_path, [logged(number, at=NOW - age, inputs={"pixels": noise})], inputs="keep", mib=mib)
    kept = {int(answer, 16) for answer in read(tmp_path)["answer"]}
    assert kept == set(range(min(kept), 40))
    size = sum(path.stat().st_size for path in stored(tmp_path))
    assert mib / 2 < size / 2**20 <= mib


@pytest.mark.parametrize("damage", ["empty", "cut", "page", "columns", "text"])
def test_a_damaged_file_is_set_aside_and_named_once(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    log(tmp_path, [logged(1, at=NOW - HOUR * 2), logged(2, at=NOW - HOUR * 3), logged(3)])
    broken = next(tmp_path.glob("*/*.parquet"))
    content = broken.read_bytes()
    if damage == "columns":
        pl.DataFrame({"answer": ["a"], "row": ["one"]}).write_parquet(broken)
    else:
        broken.write_bytes(
            {
                "empty": b"",
                "cut": content[: len(content) // 2],
                "page": content[:4] + bytes(byte ^ 255 for byte in content[4:200]) + content[200:],
                "text": b"hello\n",
            }[damage]
        )
    (tmp_path / "folder.parquet").mkdir()
    assert set(read(tmp_path)["answer"]) == {f"{number:032x}" for number in (1, 2)}
    assert find(tmp_path, f"{1:032x}")["row"].to_list() == [0]
    assert broken.with_name(broken.name + DAMAGED).exists()
    written = log(tmp_path, [logged(4)], clock=lambda: NOW + HOUR)  # merges the hour of the damaged file
    assert (written.problem, written.lost) == ("", 0)
    assert sorted(int(answer, 16) for answer in read(tmp_path)["answer"]) == [1, 2, 4]
    assert caplog.text.count("is damaged") == 1
    log(tmp_path, [], clock=lambda: NOW + 31 * DAY)
    log(tmp_path, [], clock=lambda: NOW + 33 * DAY)
    assert stored(tmp_path) == [tmp_path / "folder.parquet"]


def test_a_damaged_file_is_found_by_the_merge(tmp_path: Path) -> None:
    log(tmp_path, [logged(1)])
    log(tmp_path, [logged(2)])
    broken, _ = sorted(tmp_path.glob("*/*.parquet"))
    broken.write_bytes(b"PAR1")
    written = log(tmp_path, [], clock=lambda: NOW + 2 * HOUR)
    assert written.problem == ""
    assert read(tmp_path)["answer"].to_list() == [f"{2:032x}"]
    assert find(tmp_path, f"{2:032x}")["row"].to_list() == [0]


def test_damage_after_some_rows_leaves_the_others(tmp_path: Path) -> None:
    """A merge reads a few rows at a time, and finds damage late."""
    for number in (1, 2):
        log(tmp_path, [logged(number, rows=600)])
    broken, good = sorted(tmp_path.glob("*/*.parquet"))
    pq.write_table(pq.read_table(broken), broken, row_group_size=300)
    begin = pq.ParquetFile(broken).metadata.row_group(1).column(0).data_page_offset
    content = broken.read_bytes()
    broken.write_bytes(
        content[:begin] + bytes(byte ^ 255 for byte in content[begin : begin + 40]) + content[begin + 40 :]
    )
    written = log(tmp_path, [], clock=lambda: NOW + 2 * HOUR)
    assert written.problem == ""
    assert not good.exists()
    assert read(tmp_path)["answer"].to_list() == [f"{2:032x}"] * 600
    assert [path.name for path in tmp_path.rglob(f"*{DAMAGED}")] == [broken.name + DAMAGED]


def test_merge_unites_columns_and_their_types(tmp_path: Path) -> None:
    """Also with a file that Polars has written, as older releases did."""
    values: list[list[Any]] = [[1, 2], [0.5, None], ["x", "y"]]
    for number, column in enumerate(values):
        columns = {"age": column} if number else {}
        log(
            tmp_path,
            [logged(number, rows=2, columns=lambda columns=columns: columns)],
            inputs="keep" if number else "none",
        )
    older = min(tmp_path.glob("*/*.parquet"))
    pl.read_parquet(older).write_parquet(tmp_path / f"{older.parent.name}.00000.parquet")  # not yet deleted here
    before = read(tmp_path)
    log(tmp_path, [], clock=lambda: NOW + 2 * HOUR)
    (whole,) = tmp_path.rglob("*.parquet")
    rows = read(tmp_path).sort("answer", "row")
    assert len(pl.read_parquet(whole)) == 6
    assert rows.equals(before.sort("answer", "row").select(rows.columns))
    assert rows["slice.age"].to_list() == [None, None, "0.5", None, "x", "y"]
    assert rows["input.pixels"].to_list() == [None, None, *([[n] * 4 for n in (1, 1, 2, 2)])]


def test_merged_values_do_not_depend_on_rows_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of another type, later in the hour, makes texts of all: 1 must not become 1.0 beside fractions."""
    values: list[list[Any]] = [[1, 2], [0.5, 1.5], ["x", "y"]]
    for number, column in enumerate(values):
        log(tmp_path, [logged(number, rows=2, columns=lambda column=column: {"age": column})])
    first = min(tmp_path.glob("*/*.parquet"))
    monkeypatch.setattr(request_log, "_ROW_GROUP", pl.read_parquet(first).estimated_size() + 1)  # two files at once
    log(tmp_path, [], clock=lambda: NOW + 2 * HOUR)
    (_,) = tmp_path.rglob("*.parquet")
    assert read(tmp_path).sort("answer", "row")["slice.age"].to_list() == ["1", "2", "0.5", "1.5", "x", "y"]


MERGE = """
import sys
from pathlib import Path
from ratchet.traffic.request_log import RequestLog


def peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


log = RequestLog(Path(sys.argv[1]), share=1.0, inputs="keep", days=30.0, mib=64.0, clock=lambda: float(sys.argv[2]))
before = peak()
log.close()
print(peak() - before, log.problem)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports the peak of a process's memory")
def test_merge_of_equal_images_takes_bounded_memory(tmp_path: Path) -> None:
    """They are 115 MiB in memory and some KiB on the disk, so the size of the files bounds nothing."""
    black = np.zeros((100, 224, 224, 3), np.uint8)
    for number in range(8):
        log(tmp_path, [logged(number, rows=100, inputs={"pixels": black})], inputs="keep")
    assert sum(path.stat().st_size for path in stored(tmp_path)) < 1 << 20
    command = [sys.executable, "-c", MERGE, str(tmp_path), str(NOW + 2 * HOUR)]
    peak, _, problem = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.partition(" ")
    assert problem.strip() == ""
    (whole,) = stored(tmp_path)
    file = pq.ParquetFile(whole)
    assert (file.metadata.num_rows, file.metadata.num_row_groups > 5) == (800, True)
    assert float(peak) < 300, "MiB; 200 of it whatever the number of images"


def test_drafts_of_a_killed_merge_are_removed(tmp_path: Path) -> None:
    """They have rows and inputs, and neither log_days nor log_mib counts them."""
    log(tmp_path, [logged(1, at=NOW - HOUR * 2), logged(2)])
    today = next(tmp_path.glob("*/*.parquet")).parent
    for folder in (tmp_path, today):
        (folder / ".draft-2026-01-01T00.00000.parquet.abc.parquet").write_bytes(b"PAR1")
    log(tmp_path, [])
    assert not list(tmp_path.rglob(".draft-*"))
    assert len(read(tmp_path)) == 2


def test_only_folders_of_hours_belong_to_the_log(tmp_path: Path) -> None:
    """A file system may show its snapshots as a folder beside them."""
    snapshot = tmp_path / ".snapshot"
    log(tmp_path / "earlier", [logged(number, at=NOW - HOUR * 2) for number in range(3)])
    shutil.copytree(tmp_path / "earlier", snapshot / "2026-01-01T00")
    for path in stored(tmp_path / "earlier"):
        shutil.copy(path, snapshot)
    (snapshot / ".draft-2026-01-01T00.abc.parquet").write_bytes(b"PAR1")
    before = sorted(snapshot.rglob("*"))
    shutil.rmtree(tmp_path / "earlier")
    written = log(tmp_path, [logged(7, at=NOW - HOUR * 2)], mib=0.0001, days=0.001)
    assert (written.problem, sorted(snapshot.rglob("*"))) == ("", before)
    assert read(tmp_path)["answer"].to_list() == [f"{7:032x}"]


def test_a_disk_that_cannot_be_written_is_named_and_counted(tmp_path: Path) -> None:
    (tmp_path / "requests").write_text("a file in place of the folder")
    written = log(tmp_path / "requests", [logged(1), logged(2)])
    assert written.lost == 2
    assert written.problem.startswith("the request log cannot be written: ")


def test_version_live_and_in_shadow_keeps_all_live_rows(tmp_path: Path) -> None:
    """Rows of a shadow version have neither columns nor inputs."""
    live: dict[str, Any] = {"columns": lambda: {"age": [3.0]}}
    shadow: dict[str, Any] = {"envelope": SHADOW, "inputs": {}, "predictions": np.ones((1, 3), np.float32)}
    for inputs in ("keep", "sample"):
        for first, second in ((live, shadow), (shadow, live)):
            folder = tmp_path / inputs / ("live" if first is live else "shadow")
            written = log(
                folder, [logged(n)._replace(**(second if n % 2 else first)) for n in range(20)], inputs=inputs
            )
            rows = read(folder)
            assert (written.lost, written.problem, len(rows), len(read_shadow(folder))) == (0, "", 10, 10)
            assert rows["slice.age"].to_list() == [3.0] * 10
            assert rows["input.pixels"].null_count() == 0


def test_rows_that_cannot_be_written_lose_no_others(tmp_path: Path) -> None:
    bad = [logged(n, columns=lambda: {"age": [object()]})._replace(model="a") for n in (1, 10)]
    many = [bad[0], *[logged(n) for n in range(2, 9)], logged(9)._replace(model="b"), bad[1]]
    written = log(tmp_path, many)
    assert read(tmp_path)["model"].to_list() == ["digits"] * 7 + ["b"]
    assert (written.lost, written._bytes) == (2, 0), "what was lost is counted, and its memory is free"


def test_what_waits_is_limited_in_memory(tmp_path: Path) -> None:
    large = np.zeros((1, 40 << 20), np.uint8)
    written = log(tmp_path, [logged(number, inputs={"bytes": large}) for number in range(3)])
    assert (written.lost, len(read(tmp_path))) == (2, 1)


def test_sampling_depends_on_the_id_alone(tmp_path: Path) -> None:
    ids = [os.urandom(16).hex() for _ in range(4000)]
    assert 800 < sum(is_sampled(answer, 0.25) for answer in ids) < 1200
    assert all(is_sampled(answer, 1.0) for answer in ids)
    assert not any(is_sampled(answer, 0.0) for answer in ids)


def test_no_part_is_written_while_another_process_merges(tmp_path: Path) -> None:
    """A merge deletes the drafts of its hour."""
    with FileLock(tmp_path / "lock"):
        waiting = RequestLog(tmp_path, share=1.0, inputs="hash", days=30.0, mib=64.0, clock=lambda: NOW)
        waiting.add(f"{1:032x}", lambda: logged(1))
        waiting.close(0.5)
        assert not list(tmp_path.rglob("*.parquet"))
    until(lambda: len(read(tmp_path)) == 1)
    assert waiting.lost == 0
