"""Ingest of text for language models. Expected texts are cut with Python's own string functions."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ratchet.data import pack
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, StorageUnavailable
from ratchet.kinds import TokensInput
from ratchet.problems import NextToken
from tests.data.conftest import TablePlace, failing_disk

SPLITS = ("train", "validation", "test")
LINES = "".join(f"line {number}: ärgerlich, 日本語, 🎭\n" for number in range(400))


class Place(TablePlace):
    """A project folder with a source of text."""

    kind = "tokens"

    def write(self, name: str, content: str | bytes) -> None:
        super().write(content, f"text/{name}")

    def ingest(self, path: str = "text", **changes: object) -> Manifest:
        self.packed = self.root / f"packed {len(list(self.root.iterdir()))}"
        return super().ingest(path, **changes)

    def text(self, split: str) -> str:
        manifest = Manifest.read(self.packed)
        shards = [np.load(self.packed / shard.file, mmap_mode="r") for shard in manifest.splits[split].arrays["text"]]
        assert all(shard.dtype == np.uint8 for shard in shards)
        return np.concatenate(shards).tobytes().decode()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_file_is_cut_in_order_at_line_ends(place: Place) -> None:
    place.write("all.txt", LINES)
    manifest = place.ingest("text/all.txt", validation_fraction=0.1, test_fraction=0.2)
    texts = [place.text(split) for split in SPLITS]
    assert "".join(texts) == LINES
    assert all(text.endswith("\n") for text in texts)
    shares = [len(text.encode()) / len(LINES.encode()) for text in texts]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.003)
    assert (manifest.input, manifest.target, manifest.name) == (TokensInput(), NextToken(0), "all")
    assert [manifest.splits[split].rows for split in SPLITS] == [len(text.encode()) for text in texts]


def test_a_very_long_line_is_cut_between_characters(place: Place) -> None:
    text = "title\n" + "日本語" * 1000
    place.write("all.txt", text)
    place.ingest("text/all.txt")
    texts = [place.text(split).removesuffix("\n") for split in SPLITS]
    assert "".join(texts) == text
    assert all(len(part) > 300 for part in texts)


def test_folds_take_turns_as_validation(place: Place) -> None:
    place.write("all.txt", LINES)
    held_out = ""
    for fold in range(4):
        place.ingest("text/all.txt", test_fraction=0.2, folds=4, fold=fold)
        held_out += place.text("validation")
        assert place.text("train").replace(place.text("validation"), "") == place.text("train")
    assert held_out + place.text("test") == LINES


def test_folds_divide_given_train_and_validation_texts(place: Place) -> None:
    lines = LINES.splitlines(keepends=True)
    texts = {"train": lines[:240], "valid": lines[240:320], "test": lines[320:]}
    for name, part in texts.items():
        place.write(f"{name}.txt", "".join(part))
    held_out = []
    for fold in range(4):
        place.ingest(folds=4, fold=fold)
        assert place.text("test") == "".join(texts["test"])
        held_out += place.text("validation").splitlines(keepends=True)
    assert sorted(held_out) == sorted(lines[:320])


def test_many_files_keep_their_splits_when_others_come(place: Place) -> None:
    for number in range(60):
        place.write(f"{number:02}.txt", f"text number {number}\n")
    place.ingest()
    before = {line: split for split in SPLITS for line in place.text(split).splitlines()}
    assert len(before) == 60
    for number in range(60, 80):
        place.write(f"{number}.txt", f"text number {number}\n")
    (place.root / "text" / "00.txt").rename(place.root / "text" / "zero.txt")
    place.ingest()
    after = {line: split for split in SPLITS for line in place.text(split).splitlines()}
    assert len(after) == 80
    assert {line: after[line] for line in before} == before


def test_folders_keep_their_splits(place: Place) -> None:
    for folder, split in (("train", "a"), ("val", "b"), ("test", "c")):
        for number in range(3):
            place.write(f"{folder}/{number}.txt", f"{split} {number}")  # without a line end
    place.ingest()
    assert [place.text(split) for split in SPLITS] == ["".join(f"{name} {n}\n" for n in range(3)) for name in "abc"]
    assert place.profile()["files"] == {"train": 3, "validation": 3, "test": 3}


@pytest.mark.parametrize(
    "names",
    [
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ("train.txt", "dev.txt", "Test.txt"),
        ("corpus/train/a.txt", "corpus/val/a.txt", "corpus/test/a.txt"),
        ("train-00000-of-00001.txt", "validation-00000-of-00001.txt", "test-00000-of-00001.txt"),
        ("corpusTrain.txt", "corpusDev.txt", "corpusTest.txt"),
    ],
)
def test_files_called_like_splits_keep_them(place: Place, names: tuple[str, ...]) -> None:
    """They are how most sets for language models come. Cut like other files, their test text would be trained on."""
    for name, split in zip(names, SPLITS, strict=True):
        place.write(name, LINES.replace("line", split))
    place.ingest()
    assert [place.text(split) for split in SPLITS] == [LINES.replace("line", split) for split in SPLITS]


def test_validation_is_cut_from_a_file_called_train(place: Place) -> None:
    place.write("train.txt", LINES)
    place.write("test.txt", LINES.replace("line", "test"))
    place.ingest()
    assert place.text("train") + place.text("validation") == LINES
    assert place.text("test") == LINES.replace("line", "test")


def test_a_file_without_split_beside_others_stops_with_the_fix(place: Place) -> None:
    for name in ("train.txt", "test.txt", "README"):
        place.write(name, LINES.replace("line", name))
    with pytest.raises(
        DataError, match=r"'test.txt' names a split, and 'README' names none\. Fix: .* train-README; or, "
    ):
        place.ingest()
    (place.root / "text" / "README").rename(place.root / "text" / "train-README")
    place.ingest()
    assert place.profile()["files"]["test"] == 1
    for path in list((place.root / "text").iterdir()):
        (place.root / "text" / "train").mkdir(exist_ok=True)
        path.rename(place.root / "text" / "train" / path.name)
    place.ingest()
    assert place.profile()["files"] == {"train": 3, "validation": 3, "test": 3}


@pytest.mark.parametrize(
    "names",
    [
        ("test.txt", "driving-test.txt", "story.txt"),
        ("train.py", "test_model.py", "model.py"),
        ("train.py", "test.py", "model.py", "data.py"),
        ("training.md", "testing.md", "install.md", "index.md"),
        ("Strangers on a Train.txt", "The Test.txt", "Emma.txt"),
        ("p/src/train/loop.py", "p/test/test_a.py", "p/docs/a.md"),
    ],
)
def test_ordinary_texts_may_have_the_words_of_splits(place: Place, names: tuple[str, ...]) -> None:
    for name in names:
        place.write(name, LINES.replace("line", name))
    place.ingest()
    assert place.profile()["files"] == {"train": len(names), "validation": len(names), "test": len(names)}


def test_text_of_the_test_split_is_not_in_train(place: Place) -> None:
    for folder in ("train", "val", "test"):
        for number in range(20):
            place.write(f"{folder}/{number}.txt", f"{folder} {number}\n")
    place.write("train/copy.txt", "test 7\n")
    place.ingest()
    assert "test 7" not in place.text("train")
    assert [(source, rule) for source, rule, _ in place.bad()] == [("train/copy.txt", "duplicate-across-splits")]


BROKEN = {
    "latin-1": ("caf\u00e9".encode("latin-1") * 9, "not-utf-8", "byte 0xe9 at position 3 is not UTF-8"),
    "latin-1 after a mark": (b"\xef\xbb\xbfcaf\xe9\n", "not-utf-8", "byte 0xe9 at position 6 is not UTF-8"),
    "cut inside a character": ("日本".encode()[:-1], "not-utf-8", "byte 0xe6 at position 3 is not UTF-8"),
    "surrogate": (b"ab\xed\xa0\x80", "not-utf-8", "byte 0xed at position 2 is not UTF-8"),
    "half of UTF-16": ("text".encode("utf-16")[:-1], "not-utf-8", "byte 0x74 at position 8 is not UTF-16"),
    "late": ("日本語\n".encode() * 900_000 + b"\xff", "not-utf-8", "byte 0xff at position 9,000,000 is not UTF-8"),
    "zero byte": (b"text\0text", "nul-character", "U+0000 as character 5"),
    "late zero byte": ("日本語\n".encode() * 900_000 + b"\0", "nul-character", "U+0000 as character 3,600,001"),
    "UTF-16 without a mark": ("text".encode("utf-16-le"), "nul-character", "U+0000 as character 2"),
    "zip": (b"PK\x03\x04rest", "not-text", "a ZIP archive"),
    "pdf": (b"%PDF-1.7", "not-text", "a PDF document"),
    "empty": (b"", "empty-text", "0 bytes"),
    "only a mark": (b"\xef\xbb\xbf", "empty-text", "3 bytes"),
    "unreadable": (None, "unreadable-text", "Too many levels of symbolic links"),
}


@pytest.mark.parametrize(("content", "rule", "value"), BROKEN.values(), ids=BROKEN.keys())
def test_a_bad_file_is_named_with_its_fault(place: Place, content: bytes | None, rule: str, value: str) -> None:
    for number in range(30):
        place.write(f"{number:02}.txt", f"text number {number}\n")
    if content is None:
        (place.root / "text" / "broken.txt").symlink_to("broken.txt")
    else:
        place.write("broken.txt", content)
    place.ingest()
    assert place.bad() == [("broken.txt", rule, value)]
    assert place.profile()["quarantined_by_rule"] == {rule: 1}


def test_a_single_bad_file_stops_the_ingest_with_its_fault(place: Place) -> None:
    place.write("all.txt", b"good\n\xff\n")
    with pytest.raises(DataError, match=r"all\.txt, not-utf-8 \(found byte 0xff at position 5"):
        place.ingest("text/all.txt")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_marks_and_line_ends_of_other_systems_are_removed(place: Place, encoding: str) -> None:
    for name, text in (("train", "one\r\ntwo\rthree\r\n🎭"), ("val", "a\rb\r"), ("test", "\r\n\r\nc")):
        place.write(f"{name}/a.txt", text.encode(encoding))
    place.ingest()
    assert [place.text(split) for split in SPLITS] == ["one\ntwo\nthree\n🎭\n", "a\nb\n", "\n\nc\n"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "does not exist"),
        ({"a.txt": "one line\n"}, "split train of .* has no text"),
        ({".hidden": "x"}, "has no files"),
    ],
)  # fmt: skip
def test_too_little_text_is_refused(place: Place, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        place.write(name, content)
    with pytest.raises(DataError, match=message):
        place.ingest(validation_fraction=0.5, test_fraction=0.49)


def test_shards_hold_the_whole_text(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_SHARD_MIB", 1)
    text = "".join(f"{number:015}\n" for number in range(5 << 16))  # 5 MiB
    place.write("all.txt", text)
    manifest = place.ingest("text/all.txt")
    assert len(manifest.splits["train"].arrays["text"]) == 4
    assert "".join(place.text(split) for split in SPLITS) == text


def test_equal_input_gives_equal_bytes(place: Place) -> None:
    for number in range(40):
        place.write(f"{number}.txt", f"text number {number}\n")
    first = place.ingest()
    content = {path.name: path.read_bytes() for path in place.packed.rglob("*") if path.is_file()}
    second = place.ingest()
    assert first == second
    assert content == {path.name: path.read_bytes() for path in place.packed.rglob("*") if path.is_file()}


def test_the_profile_counts_characters(place: Place) -> None:
    place.write("train/a.txt", "aab\n")
    place.write("val/a.txt", "abc\n")
    place.write("test/a.txt", "äa\n")
    place.ingest()
    profile = place.profile()
    assert profile["rows"] == {"train": 4, "validation": 4, "test": 4}
    assert profile["characters"] == {"train": 4, "validation": 4, "test": 3}
    assert profile["distinct_characters"] == 3
    assert profile["most_frequent"] == [["a", 0.5], ["b", 0.25], ["\n", 0.25]]
    assert profile["unseen_characters"] == {"validation": ["c"], "test": ["ä"]}


def test_a_preflight_takes_little_text(place: Place) -> None:
    place.write("all.txt", LINES * 100)
    manifest = place.ingest("text/all.txt", sample=True)
    assert sum(split.rows for split in manifest.splits.values()) <= (1 << 16) + 1  # and a line end


def test_tinyshakespeare_is_packed_whole(place: Place) -> None:
    path = Path(os.environ.get("RATCHET_DATASETS", "")) / "tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip("no tinyshakespeare.txt in the folder that RATCHET_DATASETS names")
    place.ingest(str(path.absolute()), validation_fraction=0.1, test_fraction=0.1)
    assert "".join(place.text(split) for split in SPLITS) == path.read_text(encoding="utf-8")
    assert place.profile()["distinct_characters"] == 65


def test_json_lines_train_on_their_texts(place: Place) -> None:
    for part in range(3):
        score = float("nan")  # as Python writes a missing number; only the texts count
        rows = [json.dumps({"id": row, "s": score, "text": f"line {part} {row}\r\nmore é"}) for row in range(200)]
        place.write(f"part{part}.jsonl", "\n".join(rows) + "\n")
    place.ingest()
    text = "".join(place.text(split) for split in SPLITS)
    assert sorted(text.splitlines()) == sorted(
        [f"line {part} {row}" for part in range(3) for row in range(200)] + ["more é"] * 600
    )
    place.write("part3.jsonl", '{"body": "no text"}\n')
    place.ingest(max_bad_fraction=0.5)
    assert place.bad() == [("part3.jsonl", "no-text-key", "line 1 is no JSON object with a text 'text'")]


@pytest.mark.parametrize("row", [{}, {"text": None}, {"text": 5}, {"content": "a line"}])
def test_json_lines_without_a_text_have_a_working_fix(place: Place, row: dict[str, object]) -> None:
    lines = [*(json.dumps({"text": f"line {number}"}) for number in range(100)), json.dumps(row)]
    place.write("all.jsonl", "\n".join(lines))
    with pytest.raises(DataError, match=r"no-text-key \(found line 101 .*'text'\): correct or remove the line; if ano"):
        place.ingest()
    place.write("all.jsonl", "\n".join(lines[:-1]).replace('"text"', '"content"'))
    place.ingest(text_column="content")
    assert "line 99" in place.text("test")


@pytest.mark.parametrize("name", ["a.csv", "part/b.JSON", "c.tsv", "d.parquet"])
def test_a_table_among_texts_stops_with_the_fix(place: Place, name: str) -> None:
    place.write("all.txt", LINES)
    place.write(name, '[{"text": "a"}]\n')
    for path in ("text", f"text/{name}"):
        with pytest.raises(DataError, match=r"would learn its syntax.*JSON Lines .*rename it to .txt"):
            place.ingest(path)


def test_a_file_on_a_failing_disk_is_not_bad(place: Place) -> None:
    for number in range(4):
        place.write(f"{number}.txt", LINES.replace("line", f"line of {number}"))
    with failing_disk("3.txt"), pytest.raises(StorageUnavailable, match=r"3\.txt: cannot be read now .*it may be good"):
        place.ingest()
    place.ingest()
    assert place.bad() == []
