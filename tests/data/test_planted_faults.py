"""Faults planted in real images: leaks, near-duplicates and contradicting labels. Each of them is found."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from ratchet import files

TRAIN, TEST = 3_000, 600
LEAKED, NEAR, TWICE = 25, 20, 15


@pytest.fixture
def planted(place, shared):
    """Part of CIFAR-10 as PNG files in place.root/images, and the names of planted files by kind of fault."""
    folder: Path = shared("cifar-10-batches-py") / "cifar-10-batches-py"
    drawn = np.random.default_rng(0)

    def batch(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        read = pickle.loads((folder / name).read_bytes(), encoding="bytes")
        pixels = read[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return pixels[:count], np.array(read[b"labels"][:count])

    def save(split: str, name: str, label: int, image: Image.Image) -> str:
        path = place.root / "images" / split / f"class{label}" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        return path.relative_to(place.root / "images").as_posix()

    sets = {"train": batch("data_batch_1", TRAIN), "test": batch("test_batch", TEST)}
    for split, (images, labels) in sets.items():
        for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
            save(split, f"{number:05d}", label, Image.fromarray(pixels))
    images, labels = sets["test"]
    chosen = drawn.permutation(TEST)
    names: dict[str, set[str]] = {"leaked": set(), "near": set(), "twice": set()}
    for number in chosen[:LEAKED]:
        names["leaked"].add(save("train", f"leak-{number}", labels[number], Image.fromarray(images[number])))
    for number in chosen[LEAKED : LEAKED + NEAR]:
        brighter = ImageEnhance.Brightness(Image.fromarray(images[number])).enhance(0.93)
        names["near"].add(save("train", f"near-{number}", labels[number], brighter))
    images, labels = sets["train"]
    for number in drawn.permutation(TRAIN)[:TWICE]:
        other = (labels[number] + 1 + drawn.integers(9)) % 10
        names["twice"].add(save("train", f"twice-{number}", other, Image.fromarray(images[number])))
    return place, names


def test_planted_faults_are_found_and_nothing_else(planted) -> None:
    place, names = planted
    place.ingest(max_bad_fraction=0.05)
    assert place.bad() == {name: {"duplicate-across-splits"} for name in names["leaked"]}
    profile = files.read_json(place.packed / "profile.json")
    conflicts = profile["label_conflicts"]
    assert conflicts["groups"] == TWICE
    assert {name for group in conflicts["first"] for name in group["ids"] if "twice" in name} == names["twice"]
    pairs = [set(pair["ids"]) for pair in profile["near_duplicates"]["first"]]
    seen = {name for pair in pairs for name in pair} & names["near"]
    assert len(seen) >= 0.9 * NEAR
    expected = [pair for pair in pairs if pair & names["near"]]
    for left, right in expected:
        near, original = (left, right) if "near-" in left else (right, left)
        assert f"{int(Path(near).stem.removeprefix('near-')):05d}" == Path(original).stem
    assert len(pairs) - len(expected) <= 5  # CIFAR-10 has a few near-duplicates of its own
