"""Folders as people have them: what is a class, what is a sample, what is refused."""

import os
import unicodedata

import polars as pl
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


DOMAINS, KINDS = ("art", "cartoon", "photo", "sketch"), ("dog", "elephant", "guitar")


def fill_domains(place, *, top: str = "") -> None:
    """As PACS: folders of domains, in each the same folders of classes."""
    for number, domain in enumerate(DOMAINS):
        for kind_number, kind in enumerate(KINDS):
            if (domain, kind) != ("sketch", "guitar"):  # a domain need not have every class
                place.fill(f"{top}{domain}/{kind}", 12, first=1000 * number + 100 * kind_number + 10_000 * len(top))
    (place.root / "pictures" / f"{top}art" / "about.txt").write_text("where they are from")


def test_folders_of_folders_are_refused_with_what_to_set(place) -> None:
    fill_domains(place)
    with pytest.raises(DataError) as refused:
        place.ingest()
    told = str(refused.value)
    assert "two levels of folders may be the classes: 'art', 'cartoon', 'photo', 'sketch'" in told
    assert "'dog', 'elephant', 'guitar'" in told
    assert "data.label_level=2 if 'dog' is a class, or data.label_level=1 if 'art' is one" in told
    assert not place.packed.exists()


@pytest.mark.parametrize(("level", "classes", "other"), [(2, KINDS, "level_1"), (1, DOMAINS, "level_2")])
def test_the_level_that_is_set_is_the_class_and_the_other_a_column(place, level: int, classes, other: str) -> None:
    fill_domains(place)
    manifest = place.ingest(label_level=level)
    assert manifest.classes == classes
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
    assert manifest.classes == KINDS
    index = place.index()
    assert set(index["level_1"]) == set(DOMAINS)
    assert set(index.filter(pl.col("id").str.starts_with("test/"))["split"]) == {"test"}


def test_folders_inside_classes_that_share_no_names_are_read_as_before(place) -> None:
    for number, name in enumerate(("cat/siamese", "cat/persian", "dog/poodle", "dog/beagle")):
        place.fill(name, 20, first=1000 * number)
    assert place.ingest().classes == ("cat", "dog")
    assert not [name for name in place.index().columns if name.startswith("level_")]
    assert set(place.index()["id"].str.extract("^(.*)/")) == {"cat/siamese", "cat/persian", "dog/poodle", "dog/beagle"}


def test_pictures_beside_shared_folders_make_the_top_the_class(place) -> None:
    for number, name in enumerate(("cat", "cat/old", "cat/new", "dog", "dog/old", "dog/new")):
        place.fill(name, 20, first=1000 * number)
    assert place.ingest().classes == ("cat", "dog")


def test_split_folders_inside_classes_are_refused_with_the_fix(place) -> None:
    for number, name in enumerate(("cat/train", "cat/test", "dog/train", "dog/test")):
        place.fill(name, 20, first=1000 * number)
    with pytest.raises(DataError, match=r"move them to the top, as train/cat, or set data\.label_level=1"):
        place.ingest()
    assert place.ingest(label_level=1).classes == ("cat", "dog")


@pytest.mark.parametrize("depth", [1, 2])
def test_one_folder_too_high_says_where_the_classes_are(place, depth: int) -> None:
    inside = "/".join(["download", "photos"][:depth])
    place.fill(f"{inside}/cat", 3)
    place.fill(f"{inside}/dog", 3)
    with pytest.raises(DataError, match=rf"one class only \('download'\).*Fix: set data.path=\S+/pictures/{inside}$"):
        place.ingest()


def test_one_folder_too_low_says_where_the_classes_are(two_classes) -> None:
    with pytest.raises(DataError) as refused:
        two_classes.ingest(path="pictures/cat")
    told = str(refused.value)
    assert "holds no class folders but 40 files" in told
    assert f"Fix: set data.path={two_classes.root}/pictures if those are the classes" in told
    assert "'cat', 'dog'" in told


def test_a_level_below_the_folders_is_refused(two_classes) -> None:
    with pytest.raises(DataError, match=r"holds no class folders.*data\.label_level is 3"):
        two_classes.ingest(label_level=3)


def test_names_in_two_unicode_forms_are_named_in_both(place) -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    for split, name, first in (("train", composed, 0), ("train", "thé", 1000), ("test", decomposed, 2000)):
        place.fill(f"{split}/{name}", 4, first=first)
    with pytest.raises(DataError, match=r"two Unicode forms, 'cafe\\u0301' and 'caf\\xe9'"):
        place.ingest()
    (place.root / "pictures").rename(place.root / decomposed)
    with pytest.raises(DataError, match=r"another Unicode form \('cafe\\u0301', data.path has 'caf\\xe9'\)"):
        place.ingest(path=composed)


def test_a_class_of_empty_files_is_told_with_the_true_reason(two_classes) -> None:
    emu = two_classes.root / "pictures" / "emu"
    emu.mkdir()
    for number in range(3):
        (emu / f"{number}.png").write_bytes(bytes(2_000))
    (emu / "3.png").write_bytes(b"")
    with pytest.raises(DataError) as refused:
        two_classes.ingest(max_bad_fraction=0.5)
    assert "class 'emu' has 0 (kept out: empty-file 1, unreadable 3)" in str(refused.value)
    assert f"each is listed with its fix in {two_classes.quarantine}" in str(refused.value)
    table = pl.read_parquet(two_classes.quarantine)
    assert set(table["value"]) == {"0 bytes", "only zero bytes (2,000 of them)"}
    assert table["hint"].str.contains("fetch it again").all()
