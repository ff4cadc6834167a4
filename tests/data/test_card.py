"""The data card: one offline page that says what there is, what changed and what to look at."""

import re
import shutil

from PIL import Image

from ratchet.data.difference import difference
from ratchet.reports.data_card import card


def drawn(place, before=None) -> str:
    changed = None if before is None else difference(before, place.index())
    return card(place.packed, place.quarantine, changed=changed)


def test_it_shows_classes_pictures_and_what_was_kept_out(two_classes) -> None:
    two_classes.picture(7005, size=(3, 9)).save(two_classes.root / "pictures" / "cat" / "tiny <b>.png")
    two_classes.ingest()
    page = drawn(two_classes)
    assert "80 samples of 2 classes" in page
    assert "first version" in page
    assert "tiny &lt;b&gt;.png" in page
    assert "<b>.png" not in page
    assert "too-small" in page
    assert page.count("data:image/png;base64,") == 2 * 13 + 1


def test_nothing_is_loaded_from_anywhere(two_classes) -> None:
    two_classes.ingest()
    page = drawn(two_classes)
    assert not re.search(r"https?://|<script|@import|url\(", page)


def test_what_changed_since_the_version_before_stands_on_top(two_classes) -> None:
    two_classes.ingest()
    before = two_classes.index()
    two_classes.fill("cat", 3, first=5000)
    (two_classes.root / "pictures" / "dog" / "1000.png").unlink()
    two_classes.ingest()
    page = drawn(two_classes, before)
    assert "80 samples before, 82 after: 3 added, 1 removed" in page
    assert page.index("What changed") < page.index("What to look at") < page.index("Classes")
    assert "dog/1000.png" in page


def test_pictures_that_look_the_same_and_labels_that_contradict_are_shown(two_classes) -> None:
    pictures = two_classes.root / "pictures"
    photo = two_classes.picture(3, size=(6, 6)).resize((64, 64), Image.Resampling.BICUBIC)
    photo.save(pictures / "cat" / "photo.png")
    photo.save(pictures / "cat" / "again.jpg", quality=90)
    shutil.copy(pictures / "cat" / "0005.png", pictures / "dog" / "wrong.png")
    two_classes.ingest()
    page = drawn(two_classes)
    assert "Pairs that look the same: 1, in different splits: " in page
    assert "cat/again.jpg, cat/photo.png" in page
    assert "1 pictures stand under several labels" in page


def test_a_rare_class_is_named_with_what_makes_up_for_it(two_classes) -> None:
    two_classes.fill("emu", 2, first=9000)
    two_classes.ingest(min_per_class=1)
    assert "training.class_weights: balanced makes up for it" in drawn(two_classes)
