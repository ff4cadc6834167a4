"""`ratchet data ...`: quarantine, differences between commits, and suspicious labels."""

import shutil

import numpy as np
import polars as pl
import pytest
from PIL import Image

pytestmark = pytest.mark.slow


@pytest.fixture
def pets(project):
    """Project with photos of two classes under DVC, ingested and committed. One photo is too small."""
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


def test_diff_lists_changed_samples(pets) -> None:
    assert "120 samples before, 120 after: no sample differs" in pets.good("ratchet", "data", "diff")
    folder = pets.root / "data" / "raw" / "pets"
    (folder / "dog" / "1001.png").unlink()
    (folder / "dog" / "1002.png").rename(folder / "cat" / "1002.png")
    shutil.copy(folder / "dog" / "1003.png", folder / "dog" / "more.png")
    pets.good("dvc", "repro", "--quiet", "ingest")
    pets.good("git", "commit", "--all", "--quiet", "--message=changed")
    output = pets.good("ratchet", "data", "diff", "HEAD~1", "HEAD").splitlines()
    moved = [line for line in output if line.startswith("~ moved ")]  # at the borders of the splits of a class
    assert len(moved) <= 4
    assert [line.split(":")[0] for line in output if line not in moved] == [
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


def test_quarantined_sample_is_listed_and_released(pets) -> None:
    output = pets.good("ratchet", "data", "quarantine")
    assert "too-small: 1" in output
    assert "cat/tiny.png: too-small (found 9 x 3 pixels); remove the image, or lower data.min_side" in output
    assert f"images of them: {pets.workspace.card}" in output
    assert "needs a reason" in pets.refused("ratchet", "data", "release", "cat/tiny.png", "--reason", " ")
    assert "not in quarantine" in pets.refused("ratchet", "data", "release", "cat/0001.png", "--reason", "x")
    output = pets.good("ratchet", "data", "release", "cat/tiny.png", "--reason", "all we have")
    assert "released from too-small" in output
    pets.good("dvc", "repro", "--quiet", "ingest")
    assert "no sample is in quarantine" in pets.good("ratchet", "data", "quarantine")
    assert "+ added      cat/tiny.png" in pets.good("ratchet", "data", "diff")
    assert '"all we have"' in (pets.root / "data" / "packed" / "manifest.json").read_text()


def test_data_card_shows_what_changed(pets) -> None:
    card = pets.root / "data" / "reports" / "data.html"
    assert "First version: no changes" in card.read_text()
    (pets.root / "data" / "raw" / "pets" / "dog" / "1001.png").unlink()
    pets.good("dvc", "repro", "--quiet", "ingest")
    assert "120 samples before, 119 after: 1 removed" in card.read_text()
    assert "data.html" not in pets.good("git", "status", "--short")


def test_commands_without_data_report_the_fix(project) -> None:
    for command in (("quarantine",), ("labels",), ("release", "a", "--reason", "b")):
        assert "ingest the data first" in project.refused("ratchet", "data", *command)
    assert "HEAD: its packed data is neither in DVC's cache nor" in project.refused("ratchet", "data", "diff")


def test_wrong_labels_are_flagged_and_data_is_unchanged(project) -> None:
    project.good("dvc", "repro", "--quiet", "ingest")
    packed = project.root / "data" / "packed"
    labels = np.load(packed / "train" / "targets.npy")
    index = pl.read_parquet(packed / "index.parquet").filter(pl.col("split") == "train")
    chosen = np.random.default_rng(0).choice(len(labels), 30, replace=False)
    (packed / "train" / "targets.npy").unlink()  # DVC's cache may share the file
    changed = labels.copy()
    changed[chosen] = (changed[chosen] + 1 + np.arange(30) % 9) % 10
    np.save(packed / "train" / "targets.npy", changed)
    before = project.digests("data/packed")
    output = project.good("ratchet", "data", "labels", "--folds", "2", "--epochs", "5")
    assert "accuracy on samples held out" in output
    assert "Nothing was changed" in output
    assert project.digests("data/packed") == before
    ranking = pl.read_csv(project.root / "data" / "reports" / "labels.csv", schema_overrides={"id": pl.String})
    planted = {index["id"][int(row)] for row in chosen}
    assert ranking.height == len(labels)
    assert len(planted & set(ranking["id"].head(30))) >= 20
    flagged = set(ranking.filter("flagged")["id"])
    assert len(flagged) >= 10
    assert len(planted & flagged) >= 0.8 * len(flagged)


def test_images_in_s3_are_ingested_and_tracked(pets, s3) -> None:
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
