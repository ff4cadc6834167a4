"""Folders as people have them: what is a class, what is a sample, what is refused."""

import os

import pytest

from ratchet.errors import DataError


def test_split_folders_are_kept_as_given_and_validation_is_carved_from_train(place) -> None:
    for split, first in (("train", 0), ("test", 5000)):
        place.fill(f"{split}/cat", 30, first=first)
        place.fill(f"{split}/dog", 30, first=first + 1000)
    manifest = place.ingest()
    index = place.index()
    assert manifest.splits["test"].rows == 60
    assert index.filter(index["id"].str.starts_with("test/"))["split"].unique().to_list() == ["test"]
    assert manifest.splits["train"].rows + manifest.splits["validation"].rows == 60
    assert set(index.filter(index["split"] == "validation")["id"].str.slice(0, 6)) == {"train/"}


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Validation"])
def test_a_validation_folder_by_any_of_its_names_is_kept(place, name: str) -> None:
    for split, first in (("train", 0), (name, 3000), ("test", 5000)):
        place.fill(f"{split}/cat", 4, first=first)
        place.fill(f"{split}/dog", 4, first=first + 1000)
    assert [place.ingest().splits[split].rows for split in ("train", "validation", "test")] == [8, 8, 8]


def test_hidden_files_and_thumbs_are_passed_over_and_the_rest_is_accounted_for(two_classes) -> None:
    cat = two_classes.root / "pictures" / "cat"
    (cat / ".DS_Store").write_bytes(b"x")
    (cat / "Thumbs.db").write_bytes(b"x")
    (cat / "notes.txt").write_text("three of these are lions")
    (two_classes.root / "pictures" / "README").write_text("at the top")
    manifest = two_classes.ingest()
    assert two_classes.bad() == {"cat/notes.txt": {"unreadable"}, "README": {"unreadable"}}
    assert two_classes.index().height + manifest.quarantined == 82


def test_loops_of_links_end_and_linked_pictures_count(two_classes) -> None:
    cat = two_classes.root / "pictures" / "cat"
    (cat / "up").symlink_to(two_classes.root / "pictures")
    (cat / "self").symlink_to(cat)
    (cat / "round.png").symlink_to(cat / "round.png")
    (cat / "gone.png").symlink_to("not-there.png")
    two_classes.ingest()
    assert two_classes.bad() == {"cat/round.png": {"unreadable"}, "cat/gone.png": {"unreadable"}}
    assert set(two_classes.index()["class"]) == {"cat", "dog"}


def test_a_pipe_is_quarantined_not_waited_for(two_classes) -> None:
    os.mkfifo(two_classes.root / "pictures" / "cat" / "pipe.png")
    two_classes.ingest()
    assert two_classes.bad() == {"cat/pipe.png": {"unreadable"}}


def test_a_file_name_that_is_not_text_is_quarantined(two_classes) -> None:
    content = (two_classes.root / "pictures" / "cat" / "0000.png").read_bytes()
    with open(os.fsencode(two_classes.root / "pictures" / "cat") + b"/\xff.png", "wb") as file:
        file.write(content)
    two_classes.ingest()
    assert two_classes.bad() == {"cat/\\udcff.png": {"unreadable"}}


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ([], "is not there"),
        (["pictures/"], "no class folders"),
        (["pictures/a.png"], "no class folders"),
        (["pictures/cat/a.png"], "one class only.*'cat'"),
        (["pictures/cat/a.png", "pictures/dog/"], "dog: the class folder is empty"),
        (["pictures/cat/a.png", "pictures/dog/.hidden"], "dog: the class folder is empty"),
        (["pictures/train/a.png"], "train: holds no class folders"),
        (["pictures/test/cat/a.png"], "no train folder"),
        (["pictures/train/cat/a.png", "pictures/train/dog/a.png", "pictures/notes/a.txt"], "'notes'"),
        (["pictures/train/cat/a.png", "pictures/train/dog/a.png", "pictures/test/emu/a.png"], "'emu' is no class"),
        (["pictures/train/cat/a", "pictures/train/dog/a", "pictures/val/cat/a", "pictures/valid/cat/a"], "keep one"),
    ],
)
def test_a_folder_without_filled_classes_is_refused_by_name(place, made: list[str], told: str) -> None:
    for name in made:
        path = place.root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(b"x")
    with pytest.raises(DataError, match=told) as refusal:
        place.ingest()
    assert str(place.root / "pictures") in str(refusal.value)
    assert not (place.root / "data").exists()


def test_a_file_in_place_of_the_folder_is_refused(place) -> None:
    (place.root / "pictures").write_bytes(b"x")
    with pytest.raises(DataError, match="is a file"):
        place.ingest()


def test_a_split_word_may_be_a_class_among_others(place) -> None:
    for number, name in enumerate(("bus", "train", "car")):
        place.fill(name, 20, first=1000 * number)
    assert place.ingest().classes == ("bus", "car", "train")
