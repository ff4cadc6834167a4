"""Samples released by hand: for a content and a rule, with a person and a reason."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import polars as pl
import pytest

from ratchet.data import overrides
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError
from ratchet.settings.model import DataSettings


@pytest.fixture
def tiny(two_classes):
    """A good set with one image that is too small and one empty file."""
    cat = two_classes.root / "images" / "cat"
    two_classes.image(7005, size=(3, 9)).save(cat / "tiny.png")
    (cat / "empty.png").write_bytes(b"")
    two_classes.releases = two_classes.root / "releases.csv"
    two_classes.ingest()
    assert set(two_classes.bad()) == {"cat/tiny.png", "cat/empty.png"}
    return two_classes


def release(place, source: str, reason: str = "all we have") -> list[str]:
    return overrides.add(place.releases, pl.read_parquet(place.quarantine), source, reason=reason, by="me")


def test_a_released_sample_is_packed_and_noted_in_the_manifest(tiny) -> None:
    assert release(tiny, "cat/tiny.png") == ["too-small"]
    manifest = tiny.ingest()
    assert "cat/tiny.png" in tiny.index()["id"].to_list()
    assert set(tiny.bad()) == {"cat/empty.png"}
    (noted,) = manifest.released
    assert (noted["source"], noted["rule"], noted["reason"], noted["by"]) == (
        "cat/tiny.png", "too-small", "all we have", "me",
    )  # fmt: skip


def test_a_release_survives_a_rename_and_ends_with_the_content(tiny) -> None:
    release(tiny, "cat/tiny.png")
    cat = tiny.root / "images" / "cat"
    (cat / "tiny.png").rename(cat / "small.png")
    tiny.ingest()
    assert set(tiny.bad()) == {"cat/empty.png"}
    tiny.image(7006, size=(3, 9)).save(cat / "small.png")
    manifest = tiny.ingest()
    assert set(tiny.bad()) == {"cat/empty.png", "cat/small.png"}
    assert manifest.released == ()


def test_releases_at_once_are_all_recorded(tmp_path) -> None:
    sources = [f"cat/{number}.png" for number in range(24)]
    rows = {"source": sources, "rule": ["too-small"] * 24, "content": sources, "hint": [""] * 24}
    with ThreadPoolExecutor(8) as pool:
        add = partial(overrides.add, tmp_path / "releases.csv", pl.DataFrame(rows), reason="all we have", by="me")
        list(pool.map(add, sources))
    assert sorted(overrides.read(tmp_path / "releases.csv")["source"]) == sorted(sources)


@pytest.mark.parametrize(
    ("source", "reason", "message"),
    [
        ("cat/tiny.png", " ", "needs a reason"),
        ("cat/0000.png", "because", r"not in quarantine, which has cat/empty.png, cat/tiny.png"),
        ("cat/empty.png", "because", "empty-file cannot be released, only animated"),
    ],
)
def test_impossible_releases_are_refused(tiny, source: str, reason: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        release(tiny, source, reason)
    assert not tiny.releases.exists()


def test_an_animation_can_be_released_too(tiny) -> None:
    cat = tiny.root / "images" / "cat"
    tiny.image(1).save(cat / "film.webp", save_all=True, append_images=[tiny.image(2)], lossless=True)
    tiny.ingest(max_pixels=500)
    assert tiny.bad()["cat/film.webp"] == {"animated"}
    release(tiny, "cat/film.webp")
    tiny.ingest(max_pixels=500)
    assert "cat/film.webp" in tiny.index()["id"].to_list()


@pytest.mark.parametrize("content", ["source,rule\na,b\n", "\x00\xff"])
def test_a_damaged_table_is_reported(tiny, content: str) -> None:
    tiny.releases.write_text(content)
    with pytest.raises(DataError, match=r"releases\.csv"):
        tiny.ingest()


ROWS = "text,size,label\n" + "".join(f"number {row:02d},{row},{'ab'[row % 2]}\n" for row in range(40))
NOTED = "call 555-123-4567 for it,7,a\n"


@pytest.mark.parametrize("kind", ["table", "text"])
def test_a_number_that_looks_personal_can_be_released(tmp_path, kind: str) -> None:
    """Until its content changes, wherever it is in the file."""
    source, releases, quarantine = (tmp_path / name for name in ("rows.csv", "releases.csv", "quarantine.parquet"))
    settings = DataSettings.model_validate(
        {"kind": kind, "path": "rows.csv", "refuse_personal": True, "max_bad_fraction": 1.0, "columns": {}}
        | ({"columns": {"text": "categorical"}} if kind == "table" else {})
    )

    def ingested(content: str) -> Manifest:
        source.write_text(content)
        return ingest(
            IngestTask(settings, packed=tmp_path / "packed", quarantine=quarantine, root=tmp_path, releases=releases)
        )

    rows = sum(split.rows for split in ingested(ROWS + NOTED + ",9,a\nlost,8,\n").splits.values())
    table = pl.read_parquet(quarantine)
    (source_of,) = table.filter(pl.col("rule") == "personal-data")["source"]
    assert overrides.add(releases, table, source_of, reason="a fictional number", by="me") == ["personal-data"]
    unlabelled = table.filter(pl.col("rule") == "no-label")["source"][0]
    with pytest.raises(DataError, match="no-label cannot be released, only animated"):
        overrides.add(releases, table, unlabelled, reason="why not", by="me")

    moved = ingested(ROWS.replace("number 20,", NOTED + "number 20,"))
    assert sum(split.rows for split in moved.splits.values()) == 41
    assert rows >= 40
    assert [(noted["rule"], noted["reason"]) for noted in moved.released] == [("personal-data", "a fictional number")]
    changed = ingested(ROWS + NOTED.replace("4567", "4568"))
    assert changed.released == ()
    assert pl.read_parquet(quarantine)["rule"].to_list() == ["personal-data"]
