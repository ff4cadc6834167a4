"""Messages of the stage ingest about splits and ignored files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ratchet import settings
from ratchet.workspace import Workspace
from tasks.ingest import ingest

REPOSITORY = Path(__file__).parents[2]


class Messages:
    """Progress that keeps the messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, done: int, total: int, note: str = "") -> None:
        pass

    def say(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def messages(tmp_path: Path):
    """Return a function that ingests the folder `images` and returns the messages."""
    shipped = (REPOSITORY / "params.yaml").read_text()
    workspace = Workspace(tmp_path)

    def run(**changes: str) -> list[str]:
        source = {"source": "image-folder", "path": "images", **changes}
        workspace.params.write_text(shipped)
        settings.override(workspace.params, {f"data.{name}": value for name, value in source.items()})
        progress = Messages()
        ingest(settings.load(workspace.params), workspace, progress=progress)
        return progress.texts

    return run


def _image(number: int) -> Image.Image:
    """Return an image with large shapes, like a photo."""
    small = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((48, 48), Image.Resampling.BICUBIC)


def _fill(folder: Path, numbers: range) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        _image(number).save(folder / f"{number}.png")


def test_drawn_splits_need_no_words(tmp_path: Path, messages) -> None:
    _fill(tmp_path / "images" / "ants", range(40))
    _fill(tmp_path / "images" / "bees", range(100, 140))
    assert messages() == []


def test_given_splits_with_other_shares_are_said(tmp_path: Path, messages) -> None:
    for first, (name, ants, bees) in enumerate((("train", 20, 20), ("val", 10, 10), ("test", 15, 5))):
        _fill(tmp_path / "images" / name / "ants", range(1000 * first, 1000 * first + ants))
        _fill(tmp_path / "images" / name / "bees", range(1000 * first + 500, 1000 * first + 500 + bees))
    (text,) = messages()
    assert text.startswith("test has other shares per class than train: ants 75.0 % (train 50.0 %), bees 25.0 % (train")


@pytest.mark.parametrize(("kind", "content"), [("image", None), ("text", b"some words"), ("tokens", b"some words\n")])
def test_ignored_files_are_counted_in_one_line(tmp_path: Path, messages, kind: str, content: bytes | None) -> None:
    for label, first in (("ants", 0), ("bees", 100)):
        if content is None:
            _fill(tmp_path / "images" / label, range(first, first + 20))
        for number in range(20) if content else ():
            path = tmp_path / "images" / label / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%s %d %s" % (label.encode(), number, content))
        thumbnails = tmp_path / "images" / label / "@eaDir"
        thumbnails.mkdir()
        (thumbnails / "1.png").write_bytes(b"x")
    assert messages(kind=kind)[0] == "ignored 2 files that systems write or hide, such as ants/@eaDir/1.png"


def test_near_duplicates_in_different_splits_are_said(tmp_path: Path, messages) -> None:
    for first, name in enumerate(("train", "val", "test")):
        _fill(tmp_path / "images" / name / "ants", range(1000 * first, 1000 * first + 15))
        _fill(tmp_path / "images" / name / "bees", range(1000 * first + 500, 1000 * first + 515))
    for number in range(3):
        _image(number).save(tmp_path / "images" / "test" / "ants" / f"again-{number}.jpg", quality=90)
    text = next(text for text in messages() if "near-duplicates" in text)
    assert text.startswith(
        "3 pairs of near-duplicates are in different splits, such as train/ants/0.png (train) and test/ants/again"
    )
    assert "data.group_column" in text
