"""The data card: one offline page with changes, issues, classes and images of a data set."""

import re
import shutil

from PIL import Image

from ratchet.data.difference import difference
from ratchet.reports.data_card import card


def page_of(place, before=None) -> str:
    changed = None if before is None else difference(before, place.index())
    return card(place.packed, place.quarantine, changed=changed)


def test_card_shows_classes_images_and_quarantine(two_classes) -> None:
    two_classes.image(7005, size=(3, 9)).save(two_classes.root / "images" / "cat" / "tiny <b>.png")
    two_classes.ingest()
    page = page_of(two_classes)
    assert "80 samples, target: 2 classes" in page
    assert "First version" in page
    assert "tiny &lt;b&gt;.png" in page
    assert "<b>.png" not in page
    assert "too-small" in page
    assert page.count("data:image/png;base64,") == 2 * 13 + 1


def test_other_shares_of_given_splits_are_shown(place) -> None:
    for folder, count in (("train/cat", 10), ("train/dog", 30), ("val/cat", 5), ("val/dog", 15), ("test/cat", 9)):
        place.fill(folder, count, first=1000 * len(folder) + 100 * count)
    place.fill("test/dog", 3, first=9000)
    place.ingest()
    page = page_of(place)
    assert "Shares per class that differ: 2" in page
    assert re.search(r"test</th><td>cat</td><td>75.0\W*%</td><td>25.0\W*%", page)


def test_card_loads_nothing(two_classes) -> None:
    two_classes.ingest()
    page = page_of(two_classes)
    assert not re.search(r"https?://|<script|@import|url\(", page)


def test_changes_since_the_previous_version_come_first(two_classes) -> None:
    two_classes.ingest()
    before = two_classes.index()
    two_classes.fill("cat", 3, first=5000)
    (two_classes.root / "images" / "dog" / "1000.png").unlink()
    two_classes.ingest()
    page = page_of(two_classes, before)
    assert "80 samples before, 82 after: 3 added, 1 removed" in page
    assert page.index("<h2>Changes") < page.index("<h2>Issues to review") < page.index("<h2>Classes")
    assert "dog/1000.png" in page


def test_near_duplicates_and_label_conflicts_are_shown(two_classes) -> None:
    images = two_classes.root / "images"
    photo = two_classes.image(3, size=(6, 6)).resize((64, 64), Image.Resampling.BICUBIC)
    photo.save(images / "cat" / "photo.png")
    photo.save(images / "cat" / "again.jpg", quality=90)
    shutil.copy(images / "cat" / "0005.png", images / "dog" / "wrong.png")
    two_classes.ingest()
    page = page_of(two_classes)
    assert "Pairs of near-duplicates: 1, in different splits: " in page
    assert "cat/again.jpg, cat/photo.png" in page
    assert "Groups of identical samples with different labels: 1" in page


def test_class_imbalance_is_named_with_its_fix(two_classes) -> None:
    two_classes.fill("emu", 2, first=9000)
    two_classes.ingest(min_per_class=1)
    page = page_of(two_classes)
    assert re.search(r"Class imbalance: (cat|dog) has \d+ training samples, emu has \d\.", page)
    assert "Fix: set training.class_weights or training.sampling to balanced." in page
