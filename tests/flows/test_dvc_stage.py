"""Asking and recording a stage here does what `dvc repro` does around a command.

The truth is DVC's own `status`, dvc.lock and cache, in a small pipeline of two real stages.
"""

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
    root = tmp_path / "ein Projekt für DVC"  # whose own Config.edit takes ASCII alone
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
    """What the flow does, stage by stage: how each was settled, "ran" if it had to run."""
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


def test_what_was_recorded_is_unchanged_and_dvc_agrees(root: Path) -> None:
    assert not dvc_stage.all_unchanged(root)
    assert run(root) == {"double": RAN, "count": RAN}
    assert dvc_stage.all_unchanged(root)
    assert run(root) == {"double": UNCHANGED, "count": UNCHANGED}


def test_after_an_edit_of_a_setting_the_stage_has_to_run(root: Path) -> None:
    run(root)
    choose(root, times=3)
    lock = (root / "dvc.lock").read_bytes()
    assert dvc_stage.settle(root, "double") is None
    assert (root / "dvc.lock").read_bytes() == lock  # nothing is recorded of what was not made
    assert run(root) == {"double": RAN, "count": RAN}
    assert text(root) == "abc" * 3


def test_after_an_edit_of_the_data_the_stage_has_to_run(root: Path) -> None:
    run(root)
    (root / "source.txt").write_text("xyz")
    assert run(root) == {"double": RAN, "count": RAN}
    assert text(root) == "xyzxyz"


def test_after_an_edit_of_the_command_the_stage_has_to_run(root: Path) -> None:
    run(root)
    (root / "dvc.yaml").write_text(PIPELINE.replace("cmd: exit 1  # only", "cmd: exit 2  # only"))
    assert run(root) == {"double": RAN, "count": UNCHANGED}


def test_an_earlier_setting_brings_its_results_back(root: Path) -> None:
    run(root)
    choose(root, times=3)
    run(root)
    choose(root, times=2)
    assert run(root) == {"double": RESTORED, "count": RESTORED}
    assert (text(root), (root / "count.txt").read_text()) == ("abcabc", "6")
    assert dvc_stage.all_unchanged(root)


def test_a_result_that_is_gone_comes_back_from_the_cache(root: Path) -> None:
    run(root)
    shutil.rmtree(root / "doubled")
    assert run(root) == {"double": RESTORED, "count": UNCHANGED}
    assert text(root) == "abcabc"


def test_a_result_that_was_altered_is_put_right(root: Path) -> None:
    run(root)
    shutil.rmtree(root / "doubled")
    (root / "doubled").mkdir()
    (root / "doubled" / "text").write_text("altered")
    assert run(root)["double"] == RESTORED
    assert text(root) == "abcabc"


def test_without_its_cache_a_lost_result_is_made_again(root: Path) -> None:
    run(root)
    shutil.rmtree(root / "doubled")
    shutil.rmtree(root / ".dvc" / "cache")
    assert run(root)["double"] == RAN


def test_a_missing_dependency_is_left_to_the_stage_to_name(root: Path) -> None:
    (root / "source.txt").unlink()
    assert dvc_stage.settle(root, "double") is None


def test_what_is_recorded_is_stored_in_the_remote(root: Path) -> None:
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
    told: list[str] = []
    dvc_stage.record(root, "double", say=told.append)
    assert len(told) == 1
    assert told[0].startswith("source.txt.dvc: not stored in DVC's remote (")
    assert told[0].endswith("so `dvc pull` fails in another clone. Fix: `dvc push`")
    random.setstate(state)


def test_a_remote_that_cannot_be_reached_is_told_and_the_record_stands(root: Path) -> None:
    (root / "file").touch()
    config = "[core]\n    no_scm = true\n    remote = r\n['remote \"r\"']\n    url = ../file/inside\n"
    (root / ".dvc" / "config").write_text(config)
    double(root)
    told: list[str] = []
    dvc_stage.record(root, "double", say=told.append)
    assert len(told) == 1
    assert "`dvc push` stores it later" in told[0]
    assert dvc_stage.settle(root, "double") == UNCHANGED


def test_a_broken_pipeline_file_is_told_in_words(root: Path) -> None:
    (root / "dvc.yaml").write_text("stages: [")
    with pytest.raises(WorkspaceError, match=r"dvc\.yaml"):
        dvc_stage.settle(root, "double")


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # DVC's own, in `dvc add`
def test_what_dvc_add_tracks_is_recorded_as_it_is_now_when_a_stage_reads_it(root: Path) -> None:
    """The truth is `dvc repro`, which brings an edited source's .dvc file up to date before it runs the stage."""
    state = random.getstate()  # DVC draws from it
    with Repo(str(root)) as repo:
        repo.add(str(root / "source.txt"))
    assert run(root) == {"double": "ran", "count": "ran"}
    (root / "source.txt").unlink()
    (root / "source.txt").write_text("abcdef")
    assert run(root) == {"double": "ran", "count": "ran"}
    assert dvc_stage.all_unchanged(root)  # source.txt.dvc too
    random.setstate(state)


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
def test_what_one_folder_has_made_another_that_shares_its_cache_need_not_make(root: Path, other: Path) -> None:
    run(root)
    dvc_stage.share(root, other)
    dvc_stage.bring(other)
    assert (other / "source.txt").read_text() == "abc"
    assert run(other) == {"double": RESTORED, "count": RESTORED}
    assert text(other) == "abcabc"
    assert not (other / ".dvc" / "cache").exists()


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")
def test_what_is_recorded_lies_there_before_the_first_stage(root: Path, other: Path) -> None:
    """The run cache would not do: DVC has none for a stage whose outputs persist, as ingest's do."""
    run(root)
    dvc_stage.share(root, other)
    shutil.copy2(root / "dvc.lock", other / "dvc.lock")
    shutil.rmtree(root / ".dvc" / "cache" / "runs")
    dvc_stage.bring(other)
    assert run(other) == {"double": UNCHANGED, "count": UNCHANGED}


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")
def test_a_source_that_the_cache_has_not_comes_from_the_projects_remote(root: Path, other: Path) -> None:
    config = "[core]\n    no_scm = true\n    remote = r\n['remote \"r\"']\n    url = ../remote\n"
    (root / ".dvc" / "config").write_text(config)
    with Repo(str(root)) as repo:
        repo.push()
    shutil.rmtree(root / ".dvc" / "cache")
    dvc_stage.share(root, other)
    dvc_stage.bring(other)
    assert (other / "source.txt").read_text() == "abc"


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")
def test_a_source_that_is_nowhere_is_named(root: Path, other: Path) -> None:
    shutil.rmtree(root / ".dvc" / "cache")
    dvc_stage.share(root, other)
    with pytest.raises(WorkspaceError, match=r"^source\.txt\.dvc: .*`dvc push` it from where it lies"):
        dvc_stage.bring(other)


def test_without_dvc_nothing_can_be_shared(root: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"^DVC: "):
        dvc_stage.share(root, tmp_path)
