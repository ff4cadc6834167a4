"""Files that systems write beside a user's data are ignored by every source that reads a folder, and counted."""

import os
from pathlib import Path

import fsspec
import pytest

from ratchet.data.reading.input_files import Storages
from ratchet.data.reading.storage import LocalFolder, open_storage
from ratchet.data.system_files import Ignored, is_system_path
from ratchet.errors import DataError

WRITTEN = (
    "@eaDir/1.png/SYNOPHOTO_THUMB_M.png", ".thumbnails/1.png", "__MACOSX/._1.png", "._1.png", "Thumbs.db", ".DS_Store",
    "desktop.ini", ".ipynb_checkpoints/1-checkpoint.png", "lost+found/1.png", "#recycle/1.png", "$RECYCLE.BIN/1.png",
    "System Volume Information/1.png", ".cache/deep/er/1.png", "@Recycle/1.png", "1.png@SynoEAStream",
)  # fmt: skip
KEPT = ("a/1.png", "a/eaDir/1.png", "b/recycle/1.png", "b/thumbs.png", "b/@mail.png")


def _write(folder: Path, names: tuple[str, ...], content: bytes = b"x") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_system_writes_is_known(name: str) -> None:
    assert is_system_path(name.split("/"))
    assert is_system_path(["a", *name.upper().split("/")])


@pytest.mark.parametrize("name", KEPT)
def test_names_of_users_are_kept(name: str) -> None:
    assert not is_system_path(name.split("/"))


def test_a_local_folder_ignores_and_counts_them(tmp_path: Path) -> None:
    _write(tmp_path, (*KEPT, *(f"a/{name}" for name in WRITTEN)))
    tree = LocalFolder(tmp_path).tree()
    assert sorted(tree.names) == sorted(KEPT)
    assert tree.ignored == Ignored(len(WRITTEN), "a/#recycle/1.png")


def test_a_remote_folder_ignores_and_counts_them(tmp_path: Path) -> None:
    _write(tmp_path, (*KEPT, *(f"a/{name}" for name in WRITTEN)))
    fsspec.filesystem("memory").put(str(tmp_path), "/system-files", recursive=True)
    tree = open_storage("memory://system-files", root=tmp_path).tree()
    assert sorted(tree.names) == sorted(KEPT)
    assert tree.ignored.files == len(WRITTEN)


def test_scoring_a_folder_ignores_and_counts_them(tmp_path: Path) -> None:
    _write(tmp_path / ".hidden top", (*KEPT, *(f"a/{name}" for name in WRITTEN)))
    storages = Storages("FILE")
    scored = storages.files(str(tmp_path / ".hidden top"), (".png",), "images")
    assert [Path(file.path).relative_to(tmp_path / ".hidden top").as_posix() for file in scored] == sorted(KEPT)
    assert storages.ignored.files == len(WRITTEN)


def test_a_hidden_file_that_is_named_is_scored(tmp_path: Path) -> None:
    _write(tmp_path, (".one.png",))
    assert len(Storages("FILE").files(str(tmp_path / ".one.png"), (".png",), "images")) == 1


def test_a_folder_that_may_not_be_listed_is_no_fault(tmp_path: Path) -> None:
    _write(tmp_path, ("a/1.png", "lost+found/1.png"))
    (tmp_path / "lost+found").chmod(0)
    try:
        assert LocalFolder(tmp_path).tree().names.to_list() == ["a/1.png"]
    finally:
        (tmp_path / "lost+found").chmod(0o700)


def test_thumbnails_of_a_nas_are_no_samples(two_classes) -> None:
    """Each image has a thumbnail in @eaDir, as Synology writes it."""
    plain = two_classes.ingest()
    for path in sorted((two_classes.root / "images").glob("*/*.png")):
        thumbnail = path.parent / "@eaDir" / path.name / "SYNOPHOTO_THUMB_M.png"
        thumbnail.parent.mkdir(parents=True)
        thumbnail.write_bytes(path.read_bytes())
    assert two_classes.ingest() == plain
    assert two_classes.index().height == 80


def test_a_folder_without_files_is_not_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "empty").mkdir()
    for name in ("pipe.png", "empty"):
        with pytest.raises(DataError, match=rf"{name}: has no images\. Allowed: files that end in \.png$"):
            Storages("FILE").files(str(tmp_path / name), (".png",), "images")
    with pytest.raises(DataError, match="other: there is no such file or folder"):
        Storages("FILE").files(str(tmp_path / "other"), (".png",), "images")
