"""Ingest of texts: layouts, hostile files, duplicates and the packed arrays.

Expected values are written out, or come from Python's own codecs and string functions.
"""

import hashlib
import random
import shutil
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ratchet.data import split
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, RatchetError, SettingsError, StorageUnavailable
from ratchet.registry.sample_digests import split_samples
from ratchet.tokens.tokenizers import encode, fit_tokenizer
from tests.data.conftest import TablePlace, failing_disk

GOOD, BAD = "a wonderful film, number {}", "a dreadful film, number {}"
CLASSES = ((GOOD, "good"), (BAD, "bad"))
TABLE = "text,label\n" + "".join(f'"{GOOD.format(n)}",good\n"{BAD.format(n)}",bad\n' for n in range(40))


class Place(TablePlace):
    """A folder with a source of texts, and the packed set made of it."""

    kind, changes = "text", {"max_bad_fraction": 1.0}

    def write(self, name: str, content: str | bytes) -> str:
        super().write(content, name)
        return name

    def quarantined(self) -> dict[str, list[str]]:
        """Return the values of each broken rule."""
        table = pl.read_parquet(self.quarantine).sort("row")
        assert table["hint"].null_count() == 0
        return {rule: table.filter(pl.col("rule") == rule)["value"].to_list() for rule in table["rule"].unique()}

    def texts(self, name: str) -> list[str]:
        """Return the packed texts of a split."""
        values, starts = (np.load(self.packed / name / f"{array}.npy") for array in ("text", "starts"))
        assert values.dtype == np.uint8
        assert starts.dtype == np.int64
        return [bytes(values[start:end]).decode() for start, end in pairwise(starts.tolist())]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def folder(place: Place, *, start: str = "", texts: int = 40) -> None:
    for label, text in (("good", GOOD), ("bad", BAD)):
        for number in range(texts):
            place.write(f"data/{start}{label}/{number:03}.txt", text.format(f"{start}{number}"))


def test_packed_arrays_have_the_texts_in_order(place: Place) -> None:
    manifest = place.ingest(place.write("reviews.csv", TABLE))
    assert manifest.name == "reviews"
    assert manifest.target.names == ("bad", "good")
    assert sum(files.rows for files in manifest.splits.values()) == 80
    for name in split.SPLITS:
        rows = place.index().filter(pl.col("split") == name).sort("row")
        texts = place.texts(name)
        assert [hashlib.sha256(text.encode()).hexdigest() for text in texts] == rows["packed"].to_list()
        targets, keys = (np.load(place.packed / name / f"{array}.npy") for array in ("targets", "keys"))
        assert targets.tolist() == [int("wonderful" in text) for text in texts] == rows["label"].to_list()
        assert (keys == split.keys(rows["id"])).all()
        for shards in manifest.splits[name].arrays.values():
            content = (place.packed / shards[0].file).read_bytes()
            assert hashlib.sha256(content).hexdigest() == shards[0].sha256
    assert place.profile()["lengths"]["words"]["1.0"] == 5


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "other"):
        place = Place(tmp_path / name)
        place.root.mkdir()
        place.ingest(place.write("reviews.csv", TABLE))
        digests.add(
            tuple(path.read_bytes() for path in sorted(place.packed.rglob("*.*")) if path.name != "manifest.json")
        )
    assert len(digests) == 1


@pytest.mark.parametrize("suffix", ["tsv", "parquet", "jsonl"])
def test_each_table_format_gives_the_same_texts(place: Place, suffix: str) -> None:
    table = pl.read_csv(TABLE.encode())
    path = place.root / f"reviews.{suffix}"
    match suffix:
        case "tsv":
            table.write_csv(path, separator="\t")
        case "parquet":
            table.write_parquet(path)
        case _:
            table.write_ndjson(path)
    place.ingest(path.name)
    texts = [text for name in split.SPLITS for text in place.texts(name)]
    assert sorted(texts) == sorted(table["text"])


def test_folder_of_classes_and_given_splits(place: Place) -> None:
    folder(place, start="train/")
    folder(place, start="test/", texts=10)
    manifest = place.ingest("data")
    assert manifest.splits["test"].rows == 20
    assert manifest.splits["train"].rows + manifest.splits["validation"].rows == 80
    assert manifest.splits["validation"].rows > 0


def test_class_is_the_part_of_the_name_that_differs(place: Place) -> None:
    for name, text in (("movie.pos.txt", GOOD), ("movie.neg.txt", BAD)):
        place.write(f"data/{name}", "".join(f"{text.format(n)}\r\n" for n in range(40)))
    place.write("data/README", "about")
    manifest = place.ingest("data")
    assert manifest.target.names == ("neg", "pos")
    assert place.quarantined() == {"unreadable-text": ["a description of the data"]}
    assert not any(text.endswith("\r") for text in place.texts("train"))
    assert "movie.neg.txt:1" in place.index()["id"].to_list()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_name_the_encoding(place: Place, encoding: str) -> None:
    folder(place)
    place.write("data/good/marked.txt", "très bon été".encode(encoding))
    place.ingest("data")
    assert any("très bon été" in place.texts(name) for name in split.SPLITS)
    assert place.quarantined() == {}


def test_each_bad_file_has_its_true_reason(place: Place) -> None:
    folder(place)
    bad = {
        "latin.txt": "très bon".encode("latin-1"),
        "cut.txt": "bon été".encode()[:-1],
        "half.txt": "text".encode("utf-16")[:-1],
        "empty.txt": b"",
        "blank.txt": b" \n\t\xe2\x80\x8b",
        "nul.txt": b"good\0film",
        "wide.txt": "good film".encode("utf-16-le"),
        "image.txt": b"\x89PNG\r\n\x1a\n" + bytes(20),
        "zeros.txt": bytes(64),
    }
    for name, content in bad.items():
        place.write(f"data/good/{name}", content)
    place.write("data/loose.txt", "beside the classes")
    place.ingest("data")
    broken = place.quarantined()
    assert set(broken.pop("not-utf-8")) == {
        "byte 0xe8 at position 2 is not UTF-8",
        "byte 0xc3 at position 7 is not UTF-8",
        "byte 0x74 at position 8 is not UTF-16",
    }
    assert broken.pop("nul-character") == ["U+0000 as character 5", "U+0000 as character 2"]
    assert set(broken.pop("empty-text")) == {"no text", "4 characters, none visible"}
    assert set(broken.pop("not-text")) == {"a PNG image", "only zero bytes"}
    assert broken == {"unreadable-text": ["not in a class folder"]}


def test_wrong_byte_refuses_one_line_and_names_its_position(place: Place) -> None:
    for label, text in (("pos", GOOD), ("neg", BAD)):
        lines = [text.format(n).encode() for n in range(40)]
        place.write(f"data/{label}.txt", b"\n".join([*lines[:2], b"caf\xe9", *lines[2:], b"\xc2\x85ok"]))
    place.ingest("data")
    table = pl.read_parquet(place.root / "quarantine.parquet")
    assert sorted(table["source"]) == ["neg.txt:3", "pos.txt:3"]
    content = (place.root / "data" / "pos.txt").read_bytes()
    assert f"byte 0xe9 at position {content.index(0xE9)} is not UTF-8" in table["value"].to_list()
    assert place.index().height == 82


def test_latin_table_is_refused_with_line_and_byte(place: Place) -> None:
    path = place.write("reviews.csv", TABLE.encode() + "très bon,good\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"data\.path: .*reviews\.csv.*line 82 is not UTF-8 \(byte 0xe8\)"):
        place.ingest(path)


def test_manifest_names_the_source_as_the_settings_do(place: Place) -> None:
    """Without the folder of the project, so that the packed set is the same in every folder."""
    for label in ("good", "bad"):
        place.write(f"reviews/{label}.txt", "".join(f"{label} film, number {n}\n" for n in range(40)))
    assert place.ingest("reviews").source == "reviews"


def test_rows_of_a_table_have_their_reasons(place: Place) -> None:
    rows = ',good\n"  ",bad\nfine,\nfine too,maybe\ntext,label\ntoo,many,cells\nwrite to ann@example.org,good\n'
    rows += "typo film,GOOD\n"
    changes = {"classes": ["bad", "good"], "refuse_personal": True}
    place.ingest(place.write("reviews.csv", TABLE + rows), **changes)
    broken = place.quarantined()
    assert sorted(broken.pop("empty-text")) == ["2 characters, none visible", "no text"]
    assert sorted(broken.pop("unknown-label")) == ["GOOD", "maybe"]
    assert broken.pop("no-label") == [""]
    assert broken.pop("ragged-row") == ["line 87 has 3 cells, the header has 2"]
    assert broken.pop("personal-data") == ["text looks like a personal address or number"]
    assert broken == {"repeated-header": ["the header again"]}


def test_json_lines_without_a_text_are_quarantined(place: Place) -> None:
    """A list or an object is no text, and an empty object is a sample without one."""
    lines = [f'{{"text": "{text.format(n)}", "label": "{label}"}}' for n in range(40) for text, label in CLASSES]
    lines += ['{"text": ["a", "b"], "label": "good"}', '{"text": {"en": "fine"}, "label": "bad"}', "{}", ""]
    lines += ['{"text": "[1] is a reference", "label": "good"}', '{"label": "good"}']
    place.ingest(place.write("reviews.jsonl", "\n".join(lines)))
    assert place.quarantined() == {
        "nested-value": ["a list as 'text'", "an object as 'text'"],
        "empty-text": ["no text", "no text"],
        "no-label": [""],
    }
    assert "[1] is a reference" in [text for name in split.SPLITS for text in place.texts(name)]


def test_duplicates_share_a_split_and_are_counted(place: Place) -> None:
    copies = "".join(f'"  A  WONDERFUL film,\u00a0number {n} ",good\n' for n in range(40))
    copies += '"a wonderful \ufb01lm, number 3",bad\n'
    place.ingest(place.write("reviews.csv", TABLE + copies))
    index = place.index()
    splits: dict[str, set[str]] = {}
    for name in split.SPLITS:
        for text in place.texts(name):
            splits.setdefault(" ".join(unicodedata.normalize("NFKC", text).lower().split()), set()).add(name)
    assert len(splits) == 80
    assert all(len(names) == 1 for names in splits.values())
    assert place.profile()["copies_within_splits"] == 41
    conflicts = place.profile()["label_conflicts"]
    assert conflicts["groups"] == 1
    assert len(conflicts["first"][0]["ids"]) == 3
    assert index.height == 121


def test_duplicate_in_a_given_test_split_leaves_train(place: Place) -> None:
    folder(place, start="train/")
    folder(place, start="test/", texts=10)
    place.write("data/train/good/copy.txt", GOOD.format("TEST/3").replace(" ", "  "))
    place.ingest("data")
    assert place.quarantined() == {"duplicate-across-splits": ["in validation, as test/good/003.txt in test"]}


def test_a_new_text_moves_one_text_at_each_border(tmp_path: Path) -> None:
    splits = []
    for name, table in (("small", TABLE), ("large", TABLE.replace("label\n", 'label\n"another, first",good\n'))):
        place = Place(tmp_path / name)
        place.root.mkdir()
        place.ingest(place.write("reviews.csv", table))
        splits.append({text: part for part in split.SPLITS for text in place.texts(part)})
    assert sum(splits[1][text] != part for text, part in splits[0].items()) <= 2


def test_extra_columns_groups_and_splits_are_kept(place: Place) -> None:
    lines = TABLE.splitlines()
    rows = [
        f"{line},{number % 7},s{number},{'test' if number % 4 == 0 else ''}" for number, line in enumerate(lines[1:])
    ]
    manifest = place.ingest(place.write("r.csv", "\n".join(["text,label,stars,group,split", *rows])))
    index = place.index()
    assert index["stars"].dtype == pl.Int64
    assert index["group"].n_unique() == 80
    assert manifest.splits["test"].rows == 20


def test_a_group_in_two_given_splits_stops_with_the_fix(place: Place) -> None:
    lines = [f"text number {n},{n % 2},w{n // 6},{'train' if n % 6 else 'test'}" for n in range(120)]
    path = place.write("r.csv", "\n".join(["text,label,writer,split", *lines]))
    with pytest.raises(DataError, match=r"'w0' of column 'writer' is in .*`ratchet set data.group_column=group`"):
        place.ingest(path, group_column="writer")
    assert place.ingest(path, group_column="group").splits["test"].rows == 20


def test_columns_and_classes_need_a_table(place: Place) -> None:
    """A folder of texts has the levels of its folders only."""
    for number in range(60):
        place.write(
            f"r/{'neg' if number % 2 else 'pos'}/author {number // 6 % 5}/{number}.txt", f"text number {number}"
        )
    for setting, value in (("classes", ("pos", "neg")), ("split_column", "fold"), ("hash", ("level_2",))):
        with pytest.raises(SettingsError, match=rf"data.{setting}: found .* Fix: `ratchet set '?data.{setting}="):
            place.ingest("r", **{setting: value})
    place.ingest("r", label_level=1, group_column="level_2")
    assert place.index().group_by("group").agg(pl.col("split").n_unique())["split"].to_list() == [1] * 5


def test_a_space_or_form_divides_no_group(place: Place) -> None:
    forms = ("José {}", "Jose\u0301 {}", "José {} ")
    lines = [f'{line},"{forms[row % 3].format(row // 3 % 12)}"' for row, line in enumerate(TABLE.splitlines()[1:])]
    place.ingest(place.write("r.csv", "\n".join(["text,label,group", *lines])))
    splits = place.index().group_by("group").agg(pl.col("split").n_unique())
    assert sorted(splits["group"]) == sorted(f"José {number}" for number in range(12))
    assert set(splits["split"]) == {1}
    train, test = (split_samples(place.packed, name) for name in ("train", "test"))
    assert not test.are_in(train).any()
    assert len({*train.groups.tolist(), *test.groups.tolist()}) <= 12


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        (
            "review,label\na,b\n",
            {},
            "has no column 'text'; it has review, label. Fix: set data.text_column",
        ),
        ("text,lable\na,b\n", {}, r"has no column 'label'.*data.label_column \(to lable\?\)"),
        ("text,label\na,b\nc,b\n", {}, "has only one class .* Fix: add rows of another class"),
        ("text,label\n", {}, "has a header and no rows"),
        ("text,text,label\na,b,c\n", {}, "in the header twice"),
        ("text,label\n" + "".join(f"t{n},c{n}\n" for n in range(30)), {}, "30 different values"),
        ("", {}, "is empty"),
    ],
)
def test_mistakes_are_named(place: Place, content: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        place.ingest(place.write("reviews.csv", content), **changes)


NAMES = {
    "splits first": (["train_pos.txt", "train_neg.txt", "test_pos.txt", "test_neg.txt"], ("neg", "pos"), True),
    "splits last": (["neg.train", "pos.train", "neg.TEST", "pos.TEST"], ("neg", "pos"), True),
    "one split": (["train_pos.txt", "train_neg.txt"], ("neg", "pos"), False),
    "class like a split": (["plane.txt", "train.txt"], ("plane", "train"), False),
    "words like splits": (["web_dev.txt", "data_science.txt"], ("data_science", "web_dev"), False),
    "a word like training": (["strength_training.txt", "yoga.txt"], ("strength_training", "yoga"), False),
    "words of no training": (["web_dev.txt", "user_testing.txt"], ("user_testing", "web_dev"), False),
    "splits by other words": (["training_pos", "training_neg", "testing_pos", "testing_neg"], ("neg", "pos"), True),
    "separator at the end": (["pos-.txt", "neg-.txt"], ("neg", "pos"), False),
    "separator in a class": (["very-good.txt", "good.txt"], ("good", "very-good"), False),
}


@pytest.mark.parametrize(("names", "classes", "given"), NAMES.values(), ids=NAMES.keys())
def test_names_of_files_give_classes_and_splits(
    place: Place, names: list[str], classes: tuple[str, ...], given: bool
) -> None:
    for name in names:
        place.write(f"data/{name}", "".join(f"{name} has text {number}\n" for number in range(40)))
    manifest = place.ingest("data")
    assert manifest.target.names == classes
    tested = {text.partition(" ")[0] for text in place.texts("test")}
    assert tested == {name for name in names if not given or "test" in name.lower()}
    assert place.quarantined() == {}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["pos.txt", "neg.txt", "test_pos.txt"], "'test_pos.txt' names a split, and 'neg.txt' names none. Fix:"),
        (["dev.pos", "dev.neg", "testing.pos", "testing.neg"], "split train is empty"),
        (["pos.txt", "pos-.txt"], "the names of the 2 files give one class, 'pos'. Fix:"),
        (["train.txt", "test.txt"], r"\('test.txt', 'train.txt'\) name splits, and no class. Fix: .* train_CLASS"),
        (["reviews_trainset.txt", "reviews_valset.txt", "reviews_testset.txt"], "name splits, and no class. Fix:"),
        (["pos/a.txt", "neg/a.txt", "unsup/a.txt"], "'unsup' has the name of texts without a class. Fix:"),
        (["pos.txt", "neg.txt", "other.txt"], "class 'other' has 0; data.min_per_class requires 2"),
    ],
)  # fmt: skip
def test_names_without_a_clear_class_are_refused(place: Place, names: list[str], message: str) -> None:
    for name in names:
        content = "" if "other" in name else "".join(f"{name} has text {number}\n" for number in range(40))
        place.write(f"data/{name}", content)
    with pytest.raises(DataError, match=message):
        place.ingest("data")


@pytest.mark.system
def test_texts_of_unusual_characters_and_lengths_are_kept(place: Place) -> None:
    kept = {
        "emoji": "🎬🎬👍🏽", "signs": "?!... --- ***", "long": "word " * 400_000, "line": "x" * 2_000_000,
        "crlf": "a\r\nb",
    }  # fmt: skip
    folder(place)
    for name, text in kept.items():
        place.write(f"data/good/{name}.txt", text)
    place.write("data/good/joiners.txt", "\u200d\u200b")
    manifest = place.ingest("data")
    packed = {text for name in split.SPLITS for text in place.texts(name)}
    assert packed >= set(kept.values())
    assert place.quarantined() == {"empty-text": ["2 characters, none visible"]}
    ids = encode(place.texts("train") + list(kept.values()), fit_tokenizer(packed, "hashed"))
    assert np.diff(ids.starts).min() > 0
    assert sum(files.rows for files in manifest.splits.values()) == 85


def test_spaces_and_capitals_in_splits_are_ignored(place: Place) -> None:
    names = [" Train", "train ", "TEST", "Validation ", " val", "train"]
    rows = [f"{line},{names[number % 6]}" for number, line in enumerate(TABLE.splitlines()[1:])]
    manifest = place.ingest(place.write("r.csv", "\n".join(["text,label,split", *rows])))
    assert {name: files.rows for name, files in manifest.splits.items()} == {"train": 41, "validation": 26, "test": 13}


def test_columns_with_names_of_the_index_are_kept(place: Place) -> None:
    lines = enumerate(TABLE.splitlines()[1:])
    rows = [f"{number},{line},{number % 3},{number % 5},{number % 7}" for number, line in lines]
    place.ingest(place.write("r.csv", "\n".join(["id,text,label,class,class_,target", *rows])))
    index = place.index()
    places = index["id"].str.extract(r"(\d+)$").cast(pl.Int64) - 2  # rows are counted from 1, and the header is one
    assert index["id_"].to_list() == places.to_list()
    assert index["class__"].to_list() == [number % 3 for number in places]
    assert index["class_"].to_list() == [number % 5 for number in places]
    assert index["target"].to_list() == [number % 7 for number in places]
    assert set(index["class"]) == {"good", "bad"}


def test_paths_that_are_no_source_are_refused(place: Place) -> None:
    for path, message in {"nothing": "does not exist", "plain.txt": "data.kind=tokens", "single": "1 files"}.items():
        place.write("plain.txt", "some text")
        place.write("single/only.txt", "some text")
        with pytest.raises(RatchetError, match=message):
            Place(place.root).ingest(path)
        place.packed.exists() and place.packed.rmdir()


def test_folder_with_a_table_names_the_file(place: Place) -> None:
    place.write("data/reviews.csv", TABLE)
    with pytest.raises(DataError, match=r"Fix: set data\.path=.*data/reviews\.csv"):
        place.ingest("data")


def test_private_text_column_cannot_be_dropped(place: Place) -> None:
    with pytest.raises(SettingsError, match=r"data\.drop"):
        place.ingest(place.write("reviews.csv", TABLE), drop=["text"])


def mutated(content: bytes, generator: random.Random) -> bytes:
    """Return the content with one to five random changes."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 5)):
        at = generator.randrange(len(changed))
        match generator.randrange(6):
            case 0:
                changed[at] = generator.randrange(256)
            case 1:
                del changed[at : at + generator.randrange(1, 40)]
            case 2:
                changed[at:at] = generator.choice(
                    [b'"', b",", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\t", b"'"]
                )
            case 3:
                changed[at:at] = changed[:at][-80:]
            case 4:
                changed = changed[: max(at, 200)]
            case _:
                changed[at:at] = generator.randbytes(3)
    return bytes(changed)


def outcome(place: Place, source: str) -> tuple[Manifest | None, str]:
    """Return the manifest, or the message that the user gets instead."""
    try:
        return place.ingest(source), ""
    except RatchetError as error:
        return None, str(error)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_files_give_a_message_or_account_for_all(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    for number in range(10):
        place = Place(tmp_path / str(number))
        place.root.mkdir()
        path = place.write("reviews.csv", mutated(TABLE.encode(), generator))
        lines = [place.write(f"lines/{label}.txt", mutated(TABLE.encode(), generator)) for label in ("pos", "neg")]
        for source in (path, "lines"):
            manifest, message = outcome(place, source)
            assert manifest or "Fix:" in message, message
            if manifest:
                rows = sum(files.rows for files in manifest.splits.values())
                assert rows == place.index().height
                if source == "lines":
                    contents = [(place.root / name).read_bytes() for name in lines]
                    total = sum(len(content.rstrip(b"\n").split(b"\n")) for content in contents)
                    assert rows + manifest.quarantined >= total
            shutil.rmtree(place.packed, ignore_errors=True)


def test_numbers_and_several_labels_are_targets_too(tmp_path: Path) -> None:
    lines = TABLE.splitlines()[1:]
    for name, header, cells, changes in (
        ("numbers", "stars", lambda number: f"{number / 7}", {"label_column": "stars"}),
        ("labels", "long,funny", lambda number: f"{number % 2},{number % 3 % 2}", {"label_column": ["long", "funny"]}),
    ):
        place = Place(tmp_path / name)
        place.root.mkdir()
        rows = "".join(f"{line.rpartition(',')[0]},{cells(number)}\n" for number, line in enumerate(lines))
        manifest = place.ingest(place.write("r.csv", f"text,{header}\n{rows}"), **changes)
        targets = np.load(place.packed / "train" / "targets.npy")
        assert targets.dtype == np.float32
        assert targets.shape == (manifest.splits["train"].rows, len(manifest.target.names))
        assert tuple(place.profile()["targets"]) == manifest.target.names == tuple(header.split(","))


def test_rt_polarity_is_packed_whole(place: Place, shared) -> None:
    manifest = place.ingest(str(shared("text/rt-polarity") / "text" / "rt-polarity"))
    assert sum(files.rows for files in manifest.splits.values()) == 10_662
    assert manifest.target.names == ("neg", "pos")
    assert manifest.quarantined == 0
    content = (shared("text/rt-polarity") / "text" / "rt-polarity" / "rt-polarity.neg").read_bytes().decode()
    assert content.split("\n")[0] in {text for name in split.SPLITS for text in place.texts(name)}


def test_equal_texts_are_counted_where_a_split_is_empty(place: Place) -> None:
    place.write("t.csv", "text,label\n" + "the same,good\n" * 199 + "the same,bad\n")
    message = (
        r"\(200 good samples in all, of which 1 are different: equal ones share a split\)\. Fix: add other samples"
    )
    with pytest.raises(DataError, match=message):
        place.ingest("t.csv", min_per_class=1)
    place.write("t.csv", TABLE)
    assert place.ingest("t.csv").target.names == ("bad", "good")


def test_a_text_on_a_failing_disk_is_not_bad(place: Place) -> None:
    folder(place)
    with (
        failing_disk("007.txt"),
        pytest.raises(StorageUnavailable, match=r"007\.txt: cannot be read now .*it may be good"),
    ):
        place.ingest("data")
    place.ingest("data")
    assert place.quarantined() == {}


def test_a_failing_disk_is_no_fault_of_the_files(place: Place) -> None:
    """The fix would be that of another cause: the layout of the folder, or the permissions of this user."""
    place.write("t.csv", TABLE)
    for name, content in (("data/good.txt", GOOD), ("data/bad.txt", BAD)):
        place.write(name, "".join(f"{content.format(n)}\n" for n in range(40)))
    for name, path in (("t.csv", "t.csv"), ("good.txt", "data")):
        with failing_disk(name), pytest.raises(StorageUnavailable, match=rf"{name}: cannot be read now .*`ulimit -n`"):
            place.ingest(path)
        assert place.ingest(path).target.names == ("bad", "good")
