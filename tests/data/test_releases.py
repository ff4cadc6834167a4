"""A sample let in by hand: for its content, against its rule, with a name and a reason."""

import polars as pl
import pytest

from ratchet.data import overrides
from ratchet.errors import DataError


@pytest.fixture
def tiny(two_classes):
    """A good set with one picture that is too small and one that is empty."""
    cat = two_classes.root / "pictures" / "cat"
    two_classes.picture(7005, size=(3, 9)).save(cat / "tiny.png")
    (cat / "empty.png").write_bytes(b"")
    two_classes.releases = two_classes.root / "releases.csv"
    two_classes.ingest()
    assert set(two_classes.bad()) == {"cat/tiny.png", "cat/empty.png"}
    return two_classes


def release(place, source: str, reason: str = "all we have") -> list[str]:
    return overrides.add(place.releases, pl.read_parquet(place.quarantine), source, reason=reason, by="me")


def test_a_released_sample_is_trained_on_and_the_version_says_why(tiny) -> None:
    assert release(tiny, "cat/tiny.png") == ["too-small"]
    manifest = tiny.ingest()
    assert "cat/tiny.png" in tiny.index()["id"].to_list()
    assert set(tiny.bad()) == {"cat/empty.png"}
    (noted,) = manifest.released
    assert (noted["source"], noted["rule"], noted["reason"], noted["by"]) == (
        "cat/tiny.png", "too-small", "all we have", "me",
    )  # fmt: skip


def test_a_release_moves_with_the_file_and_ends_with_its_content(tiny) -> None:
    release(tiny, "cat/tiny.png")
    cat = tiny.root / "pictures" / "cat"
    (cat / "tiny.png").rename(cat / "small.png")
    tiny.ingest()
    assert set(tiny.bad()) == {"cat/empty.png"}
    tiny.picture(7006, size=(3, 9)).save(cat / "small.png")
    manifest = tiny.ingest()
    assert set(tiny.bad()) == {"cat/empty.png", "cat/small.png"}
    assert manifest.released == ()


@pytest.mark.parametrize(
    ("source", "reason", "told"),
    [
        ("cat/tiny.png", " ", "needs its reason"),
        ("cat/0000.png", "because", r"not in quarantine, which holds cat/empty.png, cat/tiny.png"),
        ("cat/empty.png", "because", "empty-file cannot be released, only animated"),
    ],
)
def test_what_cannot_be_released_is_refused(tiny, source: str, reason: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        release(tiny, source, reason)
    assert not tiny.releases.exists()


def test_a_film_and_a_giant_can_be_released_too(tiny) -> None:
    cat = tiny.root / "pictures" / "cat"
    tiny.picture(1).save(cat / "film.webp", save_all=True, append_images=[tiny.picture(2)], lossless=True)
    tiny.ingest(max_pixels=500)
    assert tiny.bad()["cat/film.webp"] == {"animated"}
    release(tiny, "cat/film.webp")
    tiny.ingest(max_pixels=500)
    assert "cat/film.webp" in tiny.index()["id"].to_list()


@pytest.mark.parametrize("content", ["source,rule\na,b\n", "\x00\xff"])
def test_a_damaged_table_is_told(tiny, content: str) -> None:
    tiny.releases.write_text(content)
    with pytest.raises(DataError, match=r"releases\.csv"):
        tiny.ingest()
