"""`ratchet data ...`: quarantine, differences between commits, and suspicious labels."""

import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from PIL import Image

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def committed_pets(new_project):
    """Project with photos of two classes under DVC, ingested and committed. One photo is too small."""
    project = new_project("pets")
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


@pytest.fixture
def pets(committed_pets, tmp_path):
    """A copy of it for one test."""
    root = shutil.copytree(committed_pets.root, tmp_path.resolve() / "pets", symlinks=True)
    return replace(committed_pets, root=root, home=tmp_path.resolve() / "home")


def test_quarantine_diff_and_card_follow_a_change_of_data(pets) -> None:
    """A quarantined sample is released, others are removed, moved to the other class, and copied."""
    card = pets.root / "data" / "reports" / "data.html"
    assert "First version: no changes" in card.read_text()
    assert "120 samples before, 120 after: no sample differs" in pets.good("ratchet", "data", "diff")
    output = pets.good("ratchet", "data", "quarantine")
    assert "too-small: 1" in output
    assert "cat/tiny.png: too-small (found 9 x 3 pixels); remove the image, or lower data.min_side" in output
    assert f"images of them: {pets.workspace.card}" in output
    assert "needs a reason" in pets.refused("ratchet", "data", "release", "cat/tiny.png", "--reason", " ")
    assert "not in quarantine" in pets.refused("ratchet", "data", "release", "cat/0001.png", "--reason", "x")
    output = pets.good("ratchet", "data", "release", "cat/tiny.png", "--reason", "all we have", LOGNAME="another")
    assert "released from too-small" in output
    assert "another" not in (pets.root / "data" / "releases.csv").read_text()  # the system's user counts

    folder = pets.root / "data" / "raw" / "pets"
    (folder / "dog" / "1001.png").unlink()
    (folder / "dog" / "1002.png").rename(folder / "cat" / "1002.png")
    shutil.copy(folder / "dog" / "1003.png", folder / "dog" / "more.png")
    pets.good("dvc", "repro", "--quiet", "ingest")
    assert "no sample is in quarantine" in pets.good("ratchet", "data", "quarantine")
    assert '"all we have"' in (pets.root / "data" / "packed" / "manifest.json").read_text()
    assert "120 samples before, 121 after: 2 added, 1 removed, 1 renamed, 1 relabelled" in card.read_text()
    assert "data.html" not in pets.good("git", "status", "--short")

    pets.good("git", "add", "--all")
    pets.good("git", "commit", "--quiet", "--message=changed")
    output = pets.good("ratchet", "data", "diff", "HEAD~1", "HEAD").splitlines()
    moved = [line for line in output if line.startswith("~ moved ")]  # at the borders of the splits of a class
    assert len(moved) <= 4
    assert [line.split(":")[0] for line in output if line not in moved] == [
        "+ added      cat/tiny.png",
        "+ added      dog/more.png",
        "- removed    dog/1001.png",
        "> renamed    dog/1002.png -> cat/1002.png",
        "~ relabelled cat/1002.png",
        "120 samples before, 121 after",
    ]
    assert pets.good("ratchet", "data", "diff", "HEAD").splitlines() == [
        "121 samples before, 121 after: no sample differs"
    ]
    assert "unknown Git revision 'nowhere'" in pets.refused("ratchet", "data", "diff", "nowhere")


def test_commands_need_data_and_labels_change_none(project) -> None:
    """That planted wrong labels rank first: tests/tasks/test_labels.py."""
    for command in (("quarantine",), ("labels",), ("release", "a", "--reason", "b")):
        assert "ingest the data first" in project.refused("ratchet", "data", *command)
    assert "HEAD: its packed data is neither in DVC's cache nor" in project.refused("ratchet", "data", "diff")
    project.good(*project.stage("ingest"))
    before = project.digests("data/packed")
    output = project.good("ratchet", "data", "labels", "--folds", "2", "--epochs", "1")
    assert "accuracy on samples held out" in output
    assert "Nothing was changed" in output
    assert project.digests("data/packed") == before
    ranking = pl.read_csv(project.root / "data" / "reports" / "labels.csv", schema_overrides={"id": pl.String})
    assert ranking.height == len(np.load(project.root / "data" / "packed" / "train" / "targets.npy"))


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
    pets.good(*pets.stage("ingest"), **s3)
    assert "119 after: 1 removed" in pets.good("ratchet", "data", "diff")
    wrong = s3 | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    assert "does not answer" in pets.refused(*pets.stage("ingest"), **wrong)
    written = [*pets.root.glob("*.yaml"), pets.root / "dvc.lock"]
    assert not [path for path in written if s3["AWS_SECRET_ACCESS_KEY"] in path.read_text()]
