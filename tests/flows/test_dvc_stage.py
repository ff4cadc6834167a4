"""Checking and recording a stage equals `dvc repro`, by DVC's own `status`, dvc.lock and cache.

The pipeline has two small real stages.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows import dvc_stage
from ratchet.errors import WorkspaceError

PIPELINE = """
stages:
  double:
    cmd: exit 1  # only ever run by the test
    deps: [source.txt]
    params: [double]
    outs: [doubled]
  count:
    cmd: exit 1
    deps: [doubled]
    outs: [count.txt]
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    root = tmp_path / "ein Projekt für DVC"  # whose own Config.edit accepts only ASCII
    root.mkdir()
    Repo.init(str(root), no_scm=True).close()
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "source.txt").write_text("abc")
    choose(root, times=2)
    return root


def choose(root: Path, *, times: int) -> None:
    (root / "params.yaml").write_text(f"double:\n  times: {times}\n")


def double(root: Path) -> None:
    """The first stage's work."""
    times = int((root / "params.yaml").read_text().split()[-1])
    shutil.rmtree(root / "doubled", ignore_errors=True)
    (root / "doubled").mkdir()
    (root / "doubled" / "text").write_text((root / "source.txt").read_text() * times)


def count(root: Path) -> None:
    """The second stage's work."""
    (root / "count.txt").unlink(missing_ok=True)
    (root / "count.txt").write_text(str(len((root / "doubled" / "text").read_text())))


def run(root: Path) -> dict[str, str]:
    """Run both stages as the flow does. Return how each was settled, "ran" if it had to run."""
    how = {}
    work: dict[str, Callable[[Path], None]] = {"double": double, "count": count}
    for name, stage in work.items():
        settled = dvc_stage.settle(root, name)
        if settled is None:
            stage(root)
            dvc_stage.record(root, name, say=pytest.fail)
        how[name] = settled or "ran"
    return how


def text(root: Path) -> str:
    return (root / "doubled" / "text").read_text()


RAN, UNCHANGED, RESTORED = "ran", "unchanged", "restored from DVC's cache"


def test_recorded_stages_are_unchanged_for_dvc_too(root: Path) -> None:
    assert not dvc_stage.all_unchanged(root)
    assert run(root) == {"double": RAN, "count": RAN}
    assert dvc_stage.all_unchanged(root)
    assert run(root) == {"double": UNCHANGED, "count": UNCHANGED}


def test_stage_runs_after_an_edited_setting(root: Path) -> None:
    run(root)
    choose(root, times=3)
    lock = (root / "dvc.lock").read_bytes()
    assert dvc_stage.settle(root, "double") is None
    assert (root / "dvc.lock").read_bytes() == lock  # nothing is recorded without a result
    assert run(root) == {"double": RAN, "count": RAN}
    assert text(root) == "abc" * 3


def test_dvc_records_the_settings_that_the_run_has_read(root: Path) -> None:
    """The file is edited while the stage works: what ran is recorded, and the stage is outdated for the new value."""
    as_read = root / "as-read.yaml"
    shutil.copy2(root / "params.yaml", as_read)
    assert dvc_stage.settle(root, "double", params=as_read) is None
    double(root)
    choose(root, times=3)
    dvc_stage.record(root, "double", say=pytest.fail, params=as_read)
    assert "times: 2" in (root / "dvc.lock").read_text()
    assert dvc_stage.settle(root, "double", params=as_read) == UNCHANGED
    assert dvc_stage.settle(root, "double") is None
    assert run(root) == {"double": RAN, "count": RAN}
    assert text(root) == "abc" * 3


def test_a_half_written_edit_does_not_stop_the_run(root: Path) -> None:
    as_read = root / "as-read.yaml"
    shutil.copy2(root / "params.yaml", as_read)
    double(root)
    (root / "params.yaml").write_text("double: [")
    dvc_stage.record(root, "double", say=pytest.fail, params=as_read)
    assert dvc_stage.settle(root, "double", params=as_read) == UNCHANGED


def test_stage_runs_after_edited_data(root: Path) -> None:
    run(root)
    (root / "source.txt").write_text("xyz")
    assert run(root) == {"double": RAN, "count": RAN}
    assert text(root) == "xyzxyz"


def test_stage_runs_after_an_edited_command(root: Path) -> None:
    run(root)
    (root / "dvc.yaml").write_text(PIPELINE.replace("cmd: exit 1  # only", "cmd: exit 2  # only"))
    assert run(root) == {"double": RAN, "count": UNCHANGED}


def test_earlier_setting_restores_its_results(root: Path) -> None:
    run(root)
    choose(root, times=3)
    run(root)
    choose(root, times=2)
    assert run(root) == {"double": RESTORED, "count": RESTORED}
    assert (text(root), (root / "count.txt").read_text()) == ("abcabc", "6")
    assert dvc_stage.all_unchanged(root)


def test_missing_result_is_restored_from_the_cache(root: Path) -> None:
    run(root)
    shutil.rmtree(root / "doubled")
    assert run(root) == {"double": RESTORED, "count": UNCHANGED}
    assert text(root) == "abcabc"


def test_altered_result_is_restored(root: Path) -> None:
    run(root)
    shutil.rmtree(root / "doubled")
    (root / "doubled").mkdir()
    (root / "doubled" / "text").write_text("altered")
    assert run(root)["double"] == RESTORED
    assert text(root) == "abcabc"


def test_missing_result_without_cache_runs_again(root: Path) -> None:
    run(root)
    shutil.rmtree(root / "doubled")
    shutil.rmtree(root / ".dvc" / "cache")
    assert run(root)["double"] == RAN


def test_missing_dependency_is_left_to_the_stage(root: Path) -> None:
    (root / "source.txt").unlink()
    assert dvc_stage.settle(root, "double") is None


def test_recorded_results_are_stored_in_the_remote(root: Path) -> None:
    config = "[core]\n    no_scm = true\n    remote = r\n['remote \"r\"']\n    url = ../../remote\n"
    (root / ".dvc" / "config").write_text(config)
    run(root)
    shutil.rmtree(root / ".dvc" / "cache")
    shutil.rmtree(root / "doubled")
    with Repo(str(root)) as repo:
        repo.pull()
    assert text(root) == "abcabc"


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # DVC's own, in `dvc add`
def test_raw_data_is_stored_in_the_remote_with_the_stage(root: Path) -> None:
    """So `dvc pull` works in another clone: its first stage's input comes from the remote."""
    state = random.getstate()  # DVC draws from it
    config = "[core]\n    no_scm = true\n    remote = r\n['remote \"r\"']\n    url = ../../remote\n"
    (root / ".dvc" / "config").write_text(config)
    with Repo(str(root)) as repo:
        repo.add(str(root / "source.txt"))
    run(root)
    shutil.rmtree(root / ".dvc" / "cache")
    (root / "source.txt").unlink()
    with Repo(str(root)) as repo:
        repo.pull()
    assert (root / "source.txt").read_text() == "abc"
    random.setstate(state)


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # DVC's own, in `dvc add`
def test_raw_data_that_cannot_be_stored_is_named(root: Path, tmp_path: Path) -> None:
    state = random.getstate()  # DVC draws from it
    config = "[core]\n    no_scm = true\n    remote = r\n['remote \"r\"']\n    url = ../../remote\n"
    (root / ".dvc" / "config").write_text(config)
    with Repo(str(root)) as repo:
        repo.add(str(root / "source.txt"))
    double(root)
    (content,) = (root / ".dvc" / "cache" / "files" / "md5").glob("*/*")
    (tmp_path / "remote" / "files" / "md5").mkdir(parents=True)
    (tmp_path / "remote" / "files" / "md5" / content.parent.name).touch()  # a file where its folder belongs
    messages: list[str] = []
    dvc_stage.record(root, "double", say=messages.append)
    assert len(messages) == 1
    assert messages[0].startswith("source.txt.dvc: not stored in DVC's remote (")
    assert messages[0].endswith("so `dvc pull` fails in another clone. Fix: `dvc push`")
    random.setstate(state)


def test_unreachable_remote_is_reported_and_the_record_stays(root: Path) -> None:
    (root / "file").touch()
    config = "[core]\n    no_scm = true\n    remote = r\n['remote \"r\"']\n    url = ../file/inside\n"
    (root / ".dvc" / "config").write_text(config)
    double(root)
    messages: list[str] = []
    dvc_stage.record(root, "double", say=messages.append)
    assert len(messages) == 1
    assert "`dvc push` stores it later" in messages[0]
    assert dvc_stage.settle(root, "double") == UNCHANGED


def test_project_without_git_is_told_to_begin_one(root: Path) -> None:
    """As from an unpacked zip: DVC's folder is there, git's is not."""
    (root / ".dvc" / "config").write_text("")  # without no_scm
    with pytest.raises(WorkspaceError, match=r"is not a git repository\. Fix: `git init`$"):
        dvc_stage.all_unchanged(root)
    shutil.rmtree(root / ".dvc")
    with pytest.raises(WorkspaceError, match=r"not inside of a DVC repository .*\. Fix: `dvc init`$"):
        dvc_stage.all_unchanged(root)


def test_broken_pipeline_file_is_named(root: Path) -> None:
    (root / "dvc.yaml").write_text("stages: [")
    with pytest.raises(WorkspaceError, match=r"dvc\.yaml"):
        dvc_stage.settle(root, "double")


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # DVC's own, in `dvc add`
def test_current_content_of_tracked_inputs_is_recorded(root: Path) -> None:
    """Equals `dvc repro`, which updates an edited source's .dvc file before it runs the stage."""
    state = random.getstate()  # DVC draws from it
    with Repo(str(root)) as repo:
        repo.add(str(root / "source.txt"))
    assert run(root) == {"double": "ran", "count": "ran"}
    (root / "source.txt").unlink()
    (root / "source.txt").write_text("abcdef")
    assert run(root) == {"double": "ran", "count": "ran"}
    assert dvc_stage.all_unchanged(root)  # source.txt.dvc too
    random.setstate(state)


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # DVC's own, in `dvc add`
def test_half_a_pulled_folder_is_no_new_data(root: Path) -> None:
    """`dvc pull` was cut off in a clone: half of the files would silently become the data, and the .dvc file theirs."""
    state = random.getstate()  # DVC draws from it
    (root / "dvc.yaml").write_text(PIPELINE.replace("deps: [source.txt]", "deps: [raw]"))
    (root / "raw").mkdir()
    for name in "abcdef":
        (root / "raw" / name).write_text(name)
    with Repo(str(root)) as repo:
        repo.add(str(root / "raw"))
    recorded, messages = (root / "raw.dvc").read_bytes(), list[str]()
    for name in "bcdef":
        (root / "raw" / name).unlink()
    shutil.rmtree(root / ".dvc" / "cache")
    with pytest.raises(WorkspaceError, match=r"^raw\.dvc: records 6 files, and .* has 1\..* Fix: `dvc pull raw\.dvc`"):
        dvc_stage.settle(root, "double", say=messages.append)
    assert ((root / "raw.dvc").read_bytes(), messages) == (recorded, [])
    for name in "bcdef":
        (root / "raw" / name).write_text(name)
    assert dvc_stage.settle(root, "double", say=messages.append) is None  # whole again, and only the cache is empty
    assert ((root / "raw.dvc").read_bytes(), messages) == (recorded, [])
    shutil.rmtree(root / ".dvc" / "cache")
    for name in "bcdef":
        (root / "raw" / name).unlink()
    with Repo(str(root)) as repo:
        repo.add(str(root / "raw"))  # the fix for files that the user removed
    assert dvc_stage.settle(root, "double", say=messages.append) is None
    assert messages == []
    (root / "raw" / "a").unlink()  # DVC's cache has it, so the user can have it back
    assert dvc_stage.settle(root, "double", say=messages.append) is None
    random.setstate(state)
    assert messages == [
        "raw.dvc: its data changed, and it records them as they are now (0 files, 0 bytes; before: 1 file, 1 byte)"
    ]


@pytest.fixture
def other(root: Path, tmp_path: Path) -> Path:
    """The same project as committed, in another folder: its pipeline, settings and .dvc files, and no data."""
    state = random.getstate()  # DVC draws from it
    with Repo(str(root)) as repo:
        repo.add(str(root / "source.txt"))
    random.setstate(state)
    other = tmp_path / "elsewhere" / "other"
    other.mkdir(parents=True)
    Repo.init(str(other), no_scm=True).close()
    for name in ("dvc.yaml", "params.yaml", "source.txt.dvc"):
        shutil.copy2(root / name, other / name)
    return other


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # DVC's own, in `dvc add`
def test_shared_cache_restores_results_in_another_folder(root: Path, other: Path) -> None:
    run(root)
    dvc_stage.share(root, other)
    dvc_stage.bring(other)
    assert (other / "source.txt").read_text() == "abc"
    assert run(other) == {"double": RESTORED, "count": RESTORED}
    assert text(other) == "abcabc"
    assert not (other / ".dvc" / "cache").exists()


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")
def test_recorded_results_are_checked_out_before_the_first_stage(root: Path, other: Path) -> None:
    """The run cache is not enough: DVC has none for a stage with persistent outputs, such as ingest."""
    run(root)
    dvc_stage.share(root, other)
    shutil.copy2(root / "dvc.lock", other / "dvc.lock")
    shutil.rmtree(root / ".dvc" / "cache" / "runs")
    dvc_stage.bring(other)
    assert run(other) == {"double": UNCHANGED, "count": UNCHANGED}


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")
def test_source_outside_the_cache_comes_from_the_remote(root: Path, other: Path) -> None:
    config = "[core]\n    no_scm = true\n    remote = r\n['remote \"r\"']\n    url = ../remote\n"
    (root / ".dvc" / "config").write_text(config)
    with Repo(str(root)) as repo:
        repo.push()
    shutil.rmtree(root / ".dvc" / "cache")
    dvc_stage.share(root, other)
    dvc_stage.bring(other)
    assert (other / "source.txt").read_text() == "abc"


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")
def test_missing_source_is_named(root: Path, other: Path) -> None:
    shutil.rmtree(root / ".dvc" / "cache")
    dvc_stage.share(root, other)
    with pytest.raises(WorkspaceError, match=r"^source\.txt\.dvc: .*`dvc push` it from the folder that has it"):
        dvc_stage.bring(other)


def test_sharing_without_dvc_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"^DVC: "):
        dvc_stage.share(root, tmp_path)


def test_locks_of_a_killed_process_with_this_id_are_removed(root: Path) -> None:
    """In a container every process that was killed had the id 1, as the next one has."""
    run(root)
    locks, path = root / ".dvc" / "tmp" / "rwlock", str(root / "doubled")
    here, parent = ({"pid": number, "cmd": "dvc repro"} for number in (os.getpid(), os.getppid()))
    locks.write_text(json.dumps({"write": {path: here}, "read": {path: [here]}}))
    choose(root, times=3)
    assert run(root)["double"] == "ran"
    locks.write_text(json.dumps({"write": {path: parent}}))
    with pytest.raises(WorkspaceError, match="busy"):
        run(root)


def test_a_damaged_file_of_locks_has_a_fix(root: Path) -> None:
    (root / ".dvc" / "tmp" / "rwlock").write_text("")
    with pytest.raises(WorkspaceError, match=r"Fix: `rm .dvc/tmp/rwlock`"):
        run(root)
    (root / ".dvc" / "tmp" / "rwlock").unlink()
    assert run(root)["double"] == "ran"


@pytest.mark.parametrize("path", ["data/releases.csv", "data/pretrained"])
def test_a_deleted_input_of_the_project_has_a_fix(root: Path, path: str) -> None:
    (root / "dvc.yaml").write_text(PIPELINE.replace("[source.txt]", f"[source.txt, {path}]"))
    with pytest.raises(WorkspaceError, match=rf"'{path}' does not exist\. Fix: `git checkout {path}`"):
        run(root)
