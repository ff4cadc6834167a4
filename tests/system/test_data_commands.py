"""`ratchet data ...` on a project of its own: what was kept out, what changed between two commits, what looks wrong."""

import shutil

import numpy as np
import polars as pl
import pytest
from PIL import Image

pytestmark = pytest.mark.slow


@pytest.fixture
def pets(project):
    """Photos of two classes under DVC, ingested and committed; one is too small."""
    for label, first in (("cat", 0), ("dog", 1000)):
        folder = project.root / "data" / "raw" / "pets" / label
        folder.mkdir(parents=True)
        for number in range(first, first + 60):
            pixels = np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    Image.fromarray(np.zeros((3, 9, 3), np.uint8)).save(project.root / "data" / "raw" / "pets" / "cat" / "tiny.png")
    project.good("ratchet", "set", "data.source=image-folder", "data.path=data/raw/pets")
    project.good("dvc", "add", "--quiet", "data/raw/pets")
    project.good("dvc", "repro", "--quiet", "ingest")
    project.good("git", "add", "--all")
    project.good("git", "commit", "--quiet", "--message=pets")
    return project


def test_the_differences_between_two_versions_are_listed(pets) -> None:
    assert "120 samples before, 120 after: no sample differs" in pets.good("ratchet", "data", "diff")
    folder = pets.root / "data" / "raw" / "pets"
    (folder / "dog" / "1001.png").unlink()
    (folder / "dog" / "1002.png").rename(folder / "cat" / "1002.png")
    shutil.copy(folder / "dog" / "1003.png", folder / "dog" / "more.png")
    pets.good("dvc", "repro", "--quiet", "ingest")
    pets.good("git", "commit", "--all", "--quiet", "--message=changed")
    told = pets.good("ratchet", "data", "diff", "HEAD~1", "HEAD").splitlines()
    assert [line.split(":")[0] for line in told] == [
        "+ added      dog/more.png",
        "- removed    dog/1001.png",
        "> renamed    dog/1002.png -> cat/1002.png",
        "~ relabelled cat/1002.png",
        "120 samples before, 120 after",
    ]
    assert pets.good("ratchet", "data", "diff", "HEAD").splitlines() == [
        "120 samples before, 120 after: no sample differs"
    ]
    assert "unknown Git revision 'nowhere'" in pets.refused("ratchet", "data", "diff", "nowhere")


def test_a_sample_in_quarantine_is_listed_and_let_in_by_hand(pets) -> None:
    told = pets.good("ratchet", "data", "quarantine")
    assert "too-small: 1" in told
    assert "cat/tiny.png: too-small (found 9 x 3 pixels); remove the image, or lower data.min_side" in told
    assert f"pictures of them: {pets.workspace.card}" in told
    assert "needs a reason" in pets.refused("ratchet", "data", "release", "cat/tiny.png", "--reason", " ")
    assert "not in quarantine" in pets.refused("ratchet", "data", "release", "cat/0001.png", "--reason", "x")
    said = pets.good("ratchet", "data", "release", "cat/tiny.png", "--reason", "all we have")
    assert "released from too-small" in said
    pets.good("dvc", "repro", "--quiet", "ingest")
    assert "nothing was kept out" in pets.good("ratchet", "data", "quarantine")
    assert "+ added      cat/tiny.png" in pets.good("ratchet", "data", "diff")
    assert '"all we have"' in (pets.root / "data" / "packed" / "manifest.json").read_text()


def test_the_card_is_written_and_tells_what_changed(pets) -> None:
    card = pets.root / "data" / "reports" / "data.html"
    assert "this is the first version here" in card.read_text()
    (pets.root / "data" / "raw" / "pets" / "dog" / "1001.png").unlink()
    pets.good("dvc", "repro", "--quiet", "ingest")
    assert "120 samples before, 119 after: 1 removed" in card.read_text()
    assert "data.html" not in pets.good("git", "status", "--short")


def test_before_any_ingest_the_commands_say_what_to_do(project) -> None:
    for command in (("quarantine",), ("labels",), ("release", "a", "--reason", "b")):
        assert "ingest the data first" in project.refused("ratchet", "data", *command)
    assert "HEAD: its packed data is neither in DVC's cache nor" in project.refused("ratchet", "data", "diff")


def test_wrong_labels_of_digits_are_found_and_nothing_is_changed(project) -> None:
    project.good("dvc", "repro", "--quiet", "ingest")
    packed = project.root / "data" / "packed"
    labels = np.load(packed / "train" / "labels.npy")
    index = pl.read_parquet(packed / "index.parquet").filter(pl.col("split") == "train")
    chosen = np.random.default_rng(0).choice(len(labels), 30, replace=False)
    (packed / "train" / "labels.npy").unlink()  # DVC's cache may share the file
    changed = labels.copy()
    changed[chosen] = (changed[chosen] + 1 + np.arange(30) % 9) % 10
    np.save(packed / "train" / "labels.npy", changed)
    before = project.digests("data/packed")
    told = project.good("ratchet", "data", "labels", "--folds", "2", "--epochs", "5")
    assert "accuracy on samples held out" in told
    assert "Nothing was changed" in told
    assert project.digests("data/packed") == before
    found = pl.read_csv(project.root / "data" / "reports" / "labels.csv", schema_overrides={"id": pl.String})
    planted = {index["id"][int(row)] for row in chosen}
    assert found.height == len(labels)
    assert len(planted & set(found["id"].head(30))) >= 20
    flagged = set(found.filter("flagged")["id"])
    assert len(flagged) >= 10
    assert len(planted & flagged) >= 0.8 * len(flagged)


def test_pictures_in_s3_are_ingested_and_watched(pets, s3) -> None:
    import s3fs

    bucket = s3fs.S3FileSystem(skip_instance_cache=True)
    bucket.mkdir("animals")
    folder = pets.root / "data" / "raw" / "pets"
    bucket.put(f"{folder}/", "animals/pets/", recursive=True)
    before = pets.digests("data/packed")

    pets.good("ratchet", "set", "data.path=s3://animals/pets")
    pets.good("dvc", "repro", "--quiet", "ingest", **s3)
    shards = {name for name in before if "/images-" in name}
    assert {name: pets.digests("data/packed")[name] for name in shards} == {name: before[name] for name in shards}
    assert "didn't change, skipping" in pets.good("dvc", "repro", "ingest", **s3)

    bucket.rm("animals/pets/dog/1001.png")
    pets.good("dvc", "repro", "--quiet", "ingest", **s3)
    assert "119 after: 1 removed" in pets.good("ratchet", "data", "diff")
    wrong = s3 | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    assert "does not answer" in pets.refused(*pets.stage("ingest"), **wrong)
    written = [*pets.root.glob("*.yaml"), pets.root / "dvc.lock"]
    assert not [path for path in written if s3["AWS_SECRET_ACCESS_KEY"] in path.read_text()]
