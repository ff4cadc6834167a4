"""Folders of images: classes, samples, and layouts that are refused."""

import os
import unicodedata
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from ratchet.data.checks.label_spelling import in_order
from ratchet.data.reading.storage import open_storage
from ratchet.data.sources.image_folder import ImageFolder
from ratchet.errors import DataError


def test_given_splits_are_kept_and_validation_is_drawn_from_train(place) -> None:
    for split, first in (("train", 0), ("test", 5000)):
        place.fill(f"{split}/cat", 30, first=first)
        place.fill(f"{split}/dog", 30, first=first + 1000)
    manifest = place.ingest()
    index = place.index()
    assert manifest.splits["test"].rows == 60
    assert index.filter(index["id"].str.starts_with("test/"))["split"].unique().to_list() == ["test"]
    assert manifest.splits["train"].rows + manifest.splits["validation"].rows == 60
    assert set(index.filter(index["split"] == "validation")["id"].str.slice(0, 6)) == {"train/"}


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Validation", "dev"])
def test_a_validation_folder_by_any_of_its_names_is_kept(place, name: str) -> None:
    for split, first in (("train", 0), (name, 3000), ("test", 5000)):
        place.fill(f"{split}/cat", 4, first=first)
        place.fill(f"{split}/dog", 4, first=first + 1000)
    assert [place.ingest().splits[split].rows for split in ("train", "validation", "test")] == [8, 8, 8]


@pytest.mark.parametrize(("train", "test"), [("Training", "Testing"), ("trainset", "testset")])
def test_folders_with_words_for_splits_are_splits(place, train: str, test: str) -> None:
    for split, first in ((train, 0), (test, 5000)):
        place.fill(f"{split}/cat", 8, first=first)
        place.fill(f"{split}/dog", 8, first=first + 1000)
    manifest = place.ingest()
    assert manifest.target.names == ("cat", "dog")
    index = place.index()
    assert set(index.filter(index["split"] == "test")["id"].str.split("/").list.first()) == {test}
    assert manifest.splits["test"].rows == 16


@pytest.mark.parametrize("inner", ["", "{0}/cat", "{0}/{0}/cat"])
@pytest.mark.parametrize(
    "names",
    [
        ("seg_train", "seg_test"), ("training_set", "test_set"), ("train images", "test images"),
        ("seg_train", "seg_test", "seg_pred"), ("training_set", "test_set", "single_prediction"),
        ("TrainImages", "TestImages"),
    ],
)  # fmt: skip
def test_folders_called_like_splits_stop_with_a_working_fix(place, names: tuple[str, ...], inner: str) -> None:
    """Kaggle's archives have them, also twice inside each other. They would be the two classes."""
    for number, name in enumerate(names):
        place.fill(inner.format(name) or name, 20, first=1000 * number)
    with pytest.raises(DataError, match=r"names of splits \('.*'\)\. Fix: rename them to train.*data\.label_level=1"):
        place.ingest()
    assert set(place.ingest(label_level=1).target.names) == set(names)


@pytest.mark.parametrize("inner", ["", "/one", "/one/{0}"])
@pytest.mark.parametrize(
    "names",
    [
        ("trains", "tests"), ("steam train", "model train"), ("train", "bus"), ("Web Dev", "Software Testing"),
        ("valid_test", "invalid_test"), ("pre-training", "post-test"), ("train test", "bus"), ("dev", "test"),
        ("dev", "ops"), ("training", "match", "rest"),
    ],
)  # fmt: skip
def test_classes_with_words_of_splits_are_classes(place, names: tuple[str, ...], inner: str) -> None:
    for number, name in enumerate(names):
        place.fill(name + (inner.format(name) if name != "train" else ""), 20, first=1000 * number)
    assert set(place.ingest().target.names) == set(names)


@pytest.mark.parametrize("levels", ["{c}/{g}", "{g}/{c}", "all/{c}/{g}"])
def test_frames_of_a_video_share_a_split(place, levels: str) -> None:
    """Hashed one by one, the frames of nearly every video would be in training and in the test."""
    for video in range(20):
        place.fill(levels.format(c="cat" if video % 2 else "dog", g=f"video {video}"), 6, first=10 * video)
    depth = levels.split("/").index("{g}") + 1
    place.ingest(label_level=levels.split("/").index("{c}") + 1, group_column=f"level_{depth}")
    splits = place.index().group_by("group").agg(pl.col("split").n_unique())
    assert splits.height == 20
    assert set(splits["split"]) == {1}


def test_a_level_alone_makes_the_class_folders_folders_groups(place) -> None:
    for video in range(20):
        place.fill(f"{'cat' if video % 2 else 'dog'}/video {video}", 6, first=10 * video)
    place.ingest(group_column="level_2")
    assert place.index()["group"].n_unique() == 20
    assert "level_2" not in place.index().columns  # it would be named as one that predicts the class


def test_a_group_in_two_split_folders_stops_with_the_fix(place) -> None:
    for number, name in enumerate(f"{split}/{kind}" for split in ("train", "val", "test") for kind in ("cat", "dog")):
        place.fill(f"{name}/001", 6, first=10 * number)
    with pytest.raises(DataError, match=r"group '001' .*different groups different names; if these are no groups, "):
        place.ingest(group_column="level_2")
    for number, path in enumerate(sorted((place.root / "images").glob("*/*/001"))):
        path.rename(path.with_name(f"video {number}"))
    place.ingest(group_column="level_2")
    assert place.index()["group"].n_unique() == 6


def test_folders_with_words_of_splits_may_be_set_as_classes(place) -> None:
    for number, name in enumerate(("dev", "training", "ops")):
        place.fill(f"{name}/one", 20, first=1000 * number)
    with pytest.raises(DataError, match=r"beside others \('ops'\).*or set data\.label_level=1 if all are classes$"):
        place.ingest()
    assert place.ingest(label_level=1).target.names == ("dev", "ops", "training")


def test_an_unknown_level_stops_with_the_fix(two_classes) -> None:
    with pytest.raises(DataError, match=r"found video\. Allowed .*: none.* Fix: `ratchet set data.group_column=group`"):
        two_classes.ingest(group_column="video")
    two_classes.ingest(group_column="group")
    two_classes.fill("cat/deep", 6, first=7000)
    with pytest.raises(DataError, match=r"Allowed for .*: level_2\. Fix: `ratchet set data.group_column=level_2`"):
        two_classes.ingest(group_column="video")
    two_classes.ingest(group_column="level_2")


def test_hidden_files_are_skipped_and_others_are_counted(two_classes) -> None:
    """Windows' Thumbs.db counts as hidden."""
    cat = two_classes.root / "images" / "cat"
    (cat / ".DS_Store").write_bytes(b"x")
    (cat / "Thumbs.db").write_bytes(b"x")
    (cat / "notes.txt").write_text("three of these are lions")
    (two_classes.root / "images" / "README").write_text("at the top")
    manifest = two_classes.ingest()
    assert two_classes.bad() == {"cat/notes.txt": {"unreadable"}, "README": {"unreadable"}}
    assert two_classes.index().height + manifest.quarantined == 82


def test_loops_of_links_end_and_linked_images_count(two_classes) -> None:
    cat = two_classes.root / "images" / "cat"
    (cat / "up").symlink_to(two_classes.root / "images")
    (cat / "self").symlink_to(cat)
    (cat / "round.png").symlink_to(cat / "round.png")
    (cat / "gone.png").symlink_to("not-there.png")
    two_classes.ingest()
    assert two_classes.bad() == {"cat/round.png": {"unreadable"}, "cat/gone.png": {"unreadable"}}
    assert set(two_classes.index()["class"]) == {"cat", "dog"}


def test_a_pipe_is_quarantined_not_waited_for(two_classes) -> None:
    os.mkfifo(two_classes.root / "images" / "cat" / "pipe.png")
    two_classes.ingest()
    assert two_classes.bad() == {"cat/pipe.png": {"unreadable"}}


def test_a_file_name_that_is_not_utf8_is_quarantined(two_classes) -> None:
    content = (two_classes.root / "images" / "cat" / "0000.png").read_bytes()
    with open(os.fsencode(two_classes.root / "images" / "cat") + b"/\xff.png", "wb") as file:
        file.write(content)
    two_classes.ingest()
    assert two_classes.bad() == {"cat/\\udcff.png": {"unreadable"}}


@pytest.mark.parametrize(
    ("created", "message"),
    [
        ([], "does not exist"),
        (["images/"], "no class folders"),
        (["images/a.png"], "no class folders"),
        (["images/cat/a.png"], "only one class.*'cat'"),
        (["images/cat/a.png", "images/dog/"], "dog: the class folder is empty"),
        (["images/cat/a.png", "images/dog/.hidden"], "dog: the class folder is empty"),
        (["images/train/a.png"], "train: has no class folders"),
        (["images/test/cat/a.png"], "no train folder"),
        ([f"images/{name}/a.png" for name in ("dev/cat", "dev/dog", "test/cat", "test/dog")], "no train folder"),
        (["images/train/cat/a.png", "images/train/dog/a.png", "images/notes/a.txt"], "'notes'"),
        (["images/train/cat/a.png", "images/train/dog/a.png", "images/test/emu/a.png"], "'emu' is not a class"),
        (["images/train/cat/a", "images/train/dog/a", "images/val/cat/a", "images/valid/cat/a"], "keep one"),
    ],
)
def test_a_folder_without_filled_classes_is_refused_by_name(place, created: list[str], message: str) -> None:
    for name in created:
        path = place.root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(b"x")
    with pytest.raises(DataError, match=message) as refusal:
        place.ingest()
    assert str(place.root / "images") in str(refusal.value)
    assert not (place.root / "data").exists()


def test_a_file_in_place_of_the_folder_is_refused(place) -> None:
    (place.root / "images").write_bytes(b"x")
    with pytest.raises(DataError, match="is a file"):
        place.ingest()


def test_a_class_may_be_called_like_a_split(place) -> None:
    for number, name in enumerate(("bus", "train", "car")):
        place.fill(name, 20, first=1000 * number)
    assert place.ingest().target.names == ("bus", "car", "train")


DOMAINS, KINDS = ("art", "cartoon", "photo", "sketch"), ("dog", "elephant", "guitar")


def fill_domains(place, *, top: str = "") -> None:
    """Write folders of domains, each with the same folders of classes, as in the PACS data set."""
    for number, domain in enumerate(DOMAINS):
        for kind_number, kind in enumerate(KINDS):
            if (domain, kind) != ("sketch", "guitar"):  # a domain need not have every class
                place.fill(f"{top}{domain}/{kind}", 12, first=1000 * number + 100 * kind_number + 10_000 * len(top))
    (place.root / "images" / f"{top}art" / "about.txt").write_text("their origin")


def test_ambiguous_levels_of_folders_are_refused_with_the_setting(place) -> None:
    fill_domains(place)
    with pytest.raises(DataError) as refused:
        place.ingest()
    message = str(refused.value)
    assert "two levels of folders may be the classes: 'art', 'cartoon', 'photo', 'sketch'" in message
    assert "'dog', 'elephant', 'guitar'" in message
    assert "data.label_level=2 if 'dog' is a class, or data.label_level=1 if 'art' is one" in message
    assert not place.packed.exists()


@pytest.mark.parametrize(("level", "classes", "other"), [(2, KINDS, "level_1"), (1, DOMAINS, "level_2")])
def test_the_set_level_is_the_class_the_other_a_column(place, level: int, classes, other: str) -> None:
    fill_domains(place)
    manifest = place.ingest(label_level=level)
    assert manifest.target.names == classes
    index = place.index()
    parts = index["id"].str.split("/")
    assert index["class"].to_list() == parts.list.get(level - 1).to_list()
    assert index[other].to_list() == parts.list.get(2 - level).to_list()
    assert place.bad() == {"art/about.txt": {"unreadable"}}


def test_levels_are_counted_inside_split_folders(place) -> None:
    fill_domains(place, top="train/")
    fill_domains(place, top="test/")
    with pytest.raises(DataError, match=r"(train|test): two levels of folders may be the classes"):
        place.ingest()
    manifest = place.ingest(label_level=2)
    assert manifest.target.names == KINDS
    index = place.index()
    assert set(index["level_1"]) == set(DOMAINS)
    assert set(index.filter(pl.col("id").str.starts_with("test/"))["split"]) == {"test"}


def test_folders_inside_classes_without_shared_names_are_allowed(place) -> None:
    for number, name in enumerate(("cat/siamese", "cat/persian", "dog/poodle", "dog/beagle")):
        place.fill(name, 20, first=1000 * number)
    assert place.ingest().target.names == ("cat", "dog")
    assert not [name for name in place.index().columns if name.startswith("level_")]
    assert set(place.index()["id"].str.extract("^(.*)/")) == {"cat/siamese", "cat/persian", "dog/poodle", "dog/beagle"}


def test_images_beside_shared_folders_make_the_top_the_class(place) -> None:
    for number, name in enumerate(("cat", "cat/old", "cat/new", "dog", "dog/old", "dog/new")):
        place.fill(name, 20, first=1000 * number)
    assert place.ingest().target.names == ("cat", "dog")


def test_split_folders_inside_classes_are_refused_with_the_fix(place) -> None:
    for number, name in enumerate(("cat/train", "cat/test", "dog/train", "dog/test")):
        place.fill(name, 20, first=1000 * number)
    with pytest.raises(DataError, match=r"move them to the top, as train/cat, or set data\.label_level=1"):
        place.ingest()
    assert place.ingest(label_level=1).target.names == ("cat", "dog")


@pytest.mark.parametrize("depth", [1, 2])
def test_one_folder_too_high_names_the_folder_of_the_classes(place, depth: int) -> None:
    inside = "/".join(["download", "photos"][:depth])
    place.fill(f"{inside}/cat", 3)
    place.fill(f"{inside}/dog", 3)
    with pytest.raises(DataError, match=rf"only one class \('download'\).*Fix: set data.path=\S+/images/{inside}$"):
        place.ingest()


def test_one_folder_too_low_names_the_folder_of_the_classes(two_classes) -> None:
    with pytest.raises(DataError) as refused:
        two_classes.ingest(path="images/cat")
    message = str(refused.value)
    assert "has no class folders but 40 files" in message
    assert f"Fix: set data.path={two_classes.root}/images if those are the classes" in message
    assert "'cat', 'dog'" in message


def test_a_level_below_the_folders_is_refused(two_classes) -> None:
    with pytest.raises(DataError, match=r"has no class folders.*data\.label_level is 3"):
        two_classes.ingest(label_level=3)


def test_names_in_two_unicode_forms_are_named_in_both(place) -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    for split, name, first in (("train", composed, 0), ("train", "thé", 1000), ("test", decomposed, 2000)):
        place.fill(f"{split}/{name}", 4, first=first)
    with pytest.raises(DataError, match=r"two Unicode forms, 'cafe\\u0301' and 'caf\\xe9'"):
        place.ingest()
    (place.root / "images").rename(place.root / decomposed)
    with pytest.raises(DataError, match=r"another Unicode form \('cafe\\u0301', data.path has 'caf\\xe9'\)"):
        place.ingest(path=composed)


def test_a_class_of_empty_files_has_its_true_reason(two_classes) -> None:
    emu = two_classes.root / "images" / "emu"
    emu.mkdir()
    for number in range(3):
        (emu / f"{number}.png").write_bytes(bytes(2_000))
    (emu / "3.png").write_bytes(b"")
    with pytest.raises(DataError) as refused:
        two_classes.ingest(max_bad_fraction=0.5)
    assert "class 'emu' has 0 (quarantined: empty-file 1, unreadable 3)" in str(refused.value)
    assert f"correct the quarantined files, which {two_classes.quarantine} lists with a fix for each" in str(
        refused.value
    )
    table = pl.read_parquet(two_classes.quarantine)
    assert set(table["value"]) == {"0 bytes", "only zero bytes (2,000 of them)"}
    assert table["hint"].str.contains("fetch it again").all()


def test_numbers_are_classes_by_size() -> None:
    assert sorted(["10", "9", "b", "2", "1.5", "a", "nan"], key=in_order) == ["1.5", "2", "9", "10", "a", "b", "nan"]


def test_folders_with_numbers_are_classes_by_size(tmp_path: Path) -> None:
    for name in ("1", "2", "10"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "a.png")
    assert ImageFolder(open_storage(str(tmp_path), root=tmp_path)).classes == ("1", "2", "10")
