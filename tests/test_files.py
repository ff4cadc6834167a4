"""A file or a folder is whole, or is what it was before: under errors, and when the writer is killed in mid-write."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
import pytest

from ratchet import files

SOURCE = Path(files.__file__).parents[1]


def drafts(folder: Path) -> list[Path]:
    return list(folder.rglob(".draft-*"))


def fill(path: Path, name: str, *, then: BaseException | None = None) -> None:
    with files.draft_directory(path) as draft:
        (draft / name).touch()
        if then:
            raise then


def killed(program: str, *arguments: object) -> None:
    """Run a program that says "ready" when it is in the middle, and kill it there."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_a_write_makes_folders_and_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    files.write_text(path, "one")
    first = path.stat().st_ino
    files.write_text(path, "two, with ø")
    assert path.read_text(encoding="utf-8") == "two, with ø"
    assert path.stat().st_ino != first
    assert path.stat().st_mode & 0o777 == 0o644
    assert drafts(tmp_path) == []


@pytest.mark.parametrize(("mask", "shared", "private"), [(0o077, 0o700, 0o600), (0o002, 0o775, 0o600)])
def test_files_and_folders_have_the_rights_of_the_umask(tmp_path: Path, mask: int, shared: int, private: int) -> None:
    """077: no other user may read the data. 002: all in the group work in the folder."""
    before = os.umask(mask)
    try:
        files.write_text(tmp_path / "file", "")
        files.write_bytes(tmp_path / "keys", b"", private=True)
        for _ in ("new", "replaced"):
            fill(tmp_path / "folder", "inner")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "keys", "folder", "folder/inner")]
    assert modes == [shared & 0o666, private, shared, shared & 0o666]


def test_a_file_of_another_disk_is_copied(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no second file system here")
    with tempfile.TemporaryDirectory(dir=memory) as other:
        source = Path(other, "step")
        source.write_bytes(b"weights")
        files.link_or_copy(source, tmp_path / "step")
        assert (tmp_path / "step").read_bytes() == b"weights"
        with pytest.raises(FileExistsError):
            files.link_or_copy(source, tmp_path / "step")
        files.link_or_copy(source, Path(other, "linked"))
        assert source.stat().st_nlink == 2


def test_a_link_to_the_old_file_keeps_the_old_content(tmp_path: Path) -> None:
    path, cached = tmp_path / "out", tmp_path / "cache"
    files.write_text(path, "old")
    os.link(path, cached)  # as DVC's cache does
    files.write_text(path, "new")
    assert (cached.read_text(), path.read_text()) == ("old", "new")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file.json"
    files.write_json(path, {"old": True})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space"):
            files.write_json(path, {"new": True})
    assert files.read_json(path) == {"old": True}
    assert drafts(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("draft", [files.draft_file, files.draft_directory])
@pytest.mark.parametrize("write", [lambda path: path.write_bytes(b"x"), pl.DataFrame({"a": [1]}).write_parquet])
def test_a_full_disk_is_that_of_the_written_file(tmp_path: Path, draft, write) -> None:
    with pytest.raises(OSError, match="No space left on device") as full, draft(tmp_path / "answers"):
        write(Path("/dev/full"))
    assert full.value.filename == str(tmp_path / "answers")
    assert drafts(tmp_path) == []


def test_files_and_folders_of_a_draft_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    with files.draft_directory(tmp_path / "packed") as draft:
        (draft / "train").mkdir()
        (draft / "train" / "images.npy").touch()
    written = tmp_path / "packed"
    assert {path.stat().st_ino for path in (tmp_path, written, *written.rglob("*"))} == synced


def test_a_writer_killed_in_mid_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    files.write_bytes(path, b"old" * 1000)
    program = """
import os, signal, sys
from pathlib import Path
from ratchet import files
def stop(_):
    print("ready", flush=True)
    signal.pause()
os.fsync = stop
files.write_bytes(Path(sys.argv[1]), b"new" * 100_000)
"""
    killed(program, path)
    assert path.read_bytes() == b"old" * 1000
    files.write_bytes(path, b"newer")
    assert path.read_bytes() == b"newer"


def test_equal_json_has_equal_bytes_and_nan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    files.write_json(path, {"b": [1, 2.5], "a": "ø"})
    content = path.read_bytes()
    files.write_json(path, {"b": [1, 2.5], "a": "ø"})
    assert path.read_bytes() == content == '{\n  "b": [\n    1,\n    2.5\n  ],\n  "a": "ø"\n}\n'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"loss": float("nan")})
    assert path.read_bytes() == content


def test_a_draft_folder_replaces_the_old_folder_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for name in ("one", "two"):
        with files.draft_directory(path) as draft:
            assert list(draft.iterdir()) == []
            (draft / "inner").mkdir()
            (draft / "inner" / name).write_text(name)
            assert path.exists() == (name == "two")
    assert [file.name for file in path.rglob("*") if file.is_file()] == ["two"]
    assert path.stat().st_mode & 0o777 == 0o755
    assert drafts(tmp_path) == []


def test_an_error_while_filling_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with files.draft_directory(path) as draft:
        (draft / "old").touch()
    with pytest.raises(KeyboardInterrupt):
        fill(path, "new", then=KeyboardInterrupt())
    assert [file.name for file in path.iterdir()] == ["old"]
    assert drafts(tmp_path) == []


def test_an_error_between_the_renames_restores_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    with files.draft_directory(path) as draft:
        (draft / "old").touch()
    replace, calls = os.replace, list[Path]()

    def fail_second(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail_second)
        with pytest.raises(OSError, match="Input/output"):
            fill(path, "new")
    assert [file.name for file in path.iterdir()] == ["old"]
    assert drafts(tmp_path) == []


def test_a_killed_writer_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with files.draft_directory(path) as draft:
        (draft / "old").touch()
    program = """
import signal, sys
from pathlib import Path
from ratchet import files
with files.draft_directory(Path(sys.argv[1])) as draft:
    (draft / "half").write_text("half")
    print("ready", flush=True)
    signal.pause()
"""
    killed(program, path)
    assert [file.name for file in path.iterdir()] == ["old"]
    assert len(drafts(tmp_path)) == 1
    with files.draft_directory(path) as draft:
        (draft / "new").touch()
    assert [file.name for file in path.iterdir()] == ["new"]
    assert drafts(tmp_path) == []


def test_a_draft_of_another_name_is_left_alone(tmp_path: Path) -> None:
    with files.draft_directory(tmp_path / "model") as outer, files.draft_directory(tmp_path / "checkpoints") as inner:
        (inner / "step").touch()
        (outer / "weights").touch()
    assert (tmp_path / "model" / "weights").exists()
    assert (tmp_path / "checkpoints" / "step").exists()


@pytest.mark.parametrize(
    ("name", "other"), [("out", "out-int8"), ("out", "out.v2"), ("out", "out"), ("out[a-z]*", "outx")]
)
def test_a_draft_that_is_being_written_stays(tmp_path: Path, name: str, other: str) -> None:
    """Another command writes a folder whose name begins alike, matches as a pattern, or is the same."""
    program = """
import sys
from pathlib import Path
from ratchet import files
with files.draft_directory(Path(sys.argv[1])) as draft:
    (draft / "theirs").touch()
    print("ready", flush=True)
    sys.stdin.readline()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / other)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    fill(tmp_path / name, "mine")
    assert [file.name for file in (tmp_path / name).iterdir()] == ["mine"]
    process.communicate("\n")
    assert process.returncode == 0
    assert [file.name for file in (tmp_path / other).iterdir()] == ["theirs"]
    assert drafts(tmp_path) == []


def test_a_forked_process_does_not_keep_a_lock(tmp_path: Path) -> None:
    """One that was forked meanwhile, such as a worker of a data loader, lives on."""
    program = """
import os, signal, sys
from pathlib import Path
from ratchet import files
folder = Path(sys.argv[1])
with files.locked(folder) as first:
    child = os.fork()
    if not child:
        signal.pause()
with files.locked(folder, wait=False) as second:
    print(first, second)
os.kill(child, signal.SIGKILL)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert result.stdout == "True True\n"


def test_a_killed_replacement_comes_back_with_the_next_draft(tmp_path: Path) -> None:
    """Also one of an earlier Ratchet, which named drafts otherwise."""
    for name, draft in (("out", ".draft-out.abcd1234"), ("out-int8", ".draft-out-int8-abcd1234")):
        (tmp_path / draft / ".replaced").mkdir(parents=True)
        (tmp_path / draft / ".replaced" / "old").touch()
        with pytest.raises(KeyboardInterrupt):
            fill(tmp_path / name, "new", then=KeyboardInterrupt())
        assert [file.name for file in (tmp_path / name).iterdir()] == ["old"]
    assert drafts(tmp_path) == []


def test_digests_are_those_of_sha256_and_of_content_alone(tmp_path: Path) -> None:
    # The digest of "abc" is the example of the standard itself (FIPS 180-2, appendix B.1).
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert files.digest_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.digest_json({"a": 1, "b": [2]}) == files.digest_json({"b": [2], "a": 1})
    assert files.digest_json({"a": 1}) != files.digest_json({"a": 1.5})


def test_digest_of_a_tree_covers_names_and_contents_only(tmp_path: Path) -> None:
    def make(name: str, *contents: tuple[str, str]) -> str:
        for inside, text in contents:
            files.write_text(tmp_path / name / inside, text)
        return files.digest_tree(tmp_path / name, ["**/*.py"])

    same = make("a", ("x.py", "1"), ("in/y.py", "2"))
    assert make("b", ("in/y.py", "2"), ("x.py", "1"), ("notes.txt", "not counted")) == same
    assert make("c", ("x.py", "2"), ("in/y.py", "1")) != same
    assert make("d", ("z.py", "1"), ("in/y.py", "2")) != same


def test_drafts_of_killed_writers_are_cleared(tmp_path: Path) -> None:
    """A folder that a killed writer was replacing comes back."""
    path, kept = tmp_path / "code" / "net.py", tmp_path / "profile"
    files.write_text(path, "whole")
    with files.draft_directory(kept) as draft:
        (draft / "old").touch()
    stop = """
import os, signal, sys
from pathlib import Path
from ratchet import files
def stop(*_):
    print("ready", flush=True)
    signal.pause()
"""
    killed(f"{stop}os.fsync = stop\nfiles.write_text(Path(sys.argv[1]), 'half')", path)
    replacing = f"""{stop}
replace = os.replace
os.replace = lambda source, target: stop() if Path(target).name == "profile" else replace(source, target)
with files.draft_directory(Path(sys.argv[1])) as draft:
    (draft / "new").touch()
"""
    killed(replacing, kept)
    assert not kept.exists()
    files.clear_drafts(tmp_path)
    assert drafts(tmp_path) == []
    assert path.read_text() == "whole"
    assert [file.name for file in kept.iterdir()] == ["old"]
