"""Trouble put into real pictures by a seeded script: leaks, near copies, contradicting labels. Each is found."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from ratchet import files

TRAIN, TEST = 3_000, 600
LEAKED, NEAR, TWICE = 25, 20, 15


@pytest.fixture
def troubled(place, shared):
    """Part of CIFAR-10 as PNG files in place.root/pictures; the names of what was put in, by kind of trouble."""
    folder: Path = shared("cifar-10-batches-py") / "cifar-10-batches-py"
    drawn = np.random.default_rng(0)

    def batch(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        read = pickle.loads((folder / name).read_bytes(), encoding="bytes")
        pixels = read[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return pixels[:count], np.array(read[b"labels"][:count])

    def save(split: str, name: str, label: int, image: Image.Image) -> str:
        path = place.root / "pictures" / split / f"class{label}" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        return path.relative_to(place.root / "pictures").as_posix()

    sets = {"train": batch("data_batch_1", TRAIN), "test": batch("test_batch", TEST)}
    for split, (images, labels) in sets.items():
        for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
            save(split, f"{number:05d}", label, Image.fromarray(pixels))
    images, labels = sets["test"]
    chosen = drawn.permutation(TEST)
    found: dict[str, set[str]] = {"leaked": set(), "near": set(), "twice": set()}
    for number in chosen[:LEAKED]:
        found["leaked"].add(save("train", f"leak-{number}", labels[number], Image.fromarray(images[number])))
    for number in chosen[LEAKED : LEAKED + NEAR]:
        brighter = ImageEnhance.Brightness(Image.fromarray(images[number])).enhance(0.93)
        found["near"].add(save("train", f"near-{number}", labels[number], brighter))
    images, labels = sets["train"]
    for number in drawn.permutation(TRAIN)[:TWICE]:
        other = (labels[number] + 1 + drawn.integers(9)) % 10
        found["twice"].add(save("train", f"twice-{number}", other, Image.fromarray(images[number])))
    return place, found


def test_what_was_put_in_is_found_and_nothing_else(troubled) -> None:
    place, put = troubled
    place.ingest(max_bad_fraction=0.05)
    assert place.bad() == {name: {"duplicate-across-splits"} for name in put["leaked"]}
    profile = files.read_json(place.packed / "profile.json")
    conflicts = profile["label_conflicts"]
    assert conflicts["groups"] == TWICE
    assert {name for group in conflicts["first"] for name in group["ids"] if "twice" in name} == put["twice"]
    pairs = [set(pair["ids"]) for pair in profile["near_duplicates"]["first"]]
    seen = {name for pair in pairs for name in pair} & put["near"]
    assert len(seen) >= 0.9 * NEAR
    rightly = [pair for pair in pairs if pair & put["near"]]
    for one, other in rightly:
        near, original = (one, other) if "near-" in one else (other, one)
        assert f"{int(Path(near).stem.removeprefix('near-')):05d}" == Path(original).stem
    assert len(pairs) - len(rightly) <= 5  # the set has a few near copies of its own
