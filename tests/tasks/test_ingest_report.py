"""Messages of an ingest on the terminal: the fixes that they name are tried."""

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandera.polars  # noqa: F401  # sets variables of the environment as it is imported
import pytest
from PIL import Image

from ratchet import settings
from ratchet.workspace import Workspace
from tasks.ingest import ingest
from tasks.progress import Terminal
from tests.conftest import REPOSITORY

ROWS = 300
Lines = Callable[..., list[str]]


@pytest.fixture
def lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Lines:
    """Return a function that ingests data of the folder by some settings, and returns what the terminal shows."""
    workspace = Workspace(tmp_path)

    def run(**changes: object) -> list[str]:
        workspace.params.write_bytes((REPOSITORY / "params.yaml").read_bytes())
        params = settings.override(workspace.params, {f"data.{name}": value for name, value in changes.items()})
        with Terminal("ingest", unit="samples") as progress:
            ingest(params, workspace, progress=progress)
        texts = [line.removeprefix("ingest: ") for line in capsys.readouterr().err.splitlines()]
        return [text for text in texts if not text.endswith("samples")]  # the progress

    return run


def fill(folder: Path, numbers: range) -> None:
    """Write images with large shapes, like photos."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        image(number).save(folder / f"{number}.png")


def image(number: int) -> Image.Image:
    small = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((48, 48), Image.Resampling.BICUBIC)


def test_one_command_leaves_out_all_leaks_and_keeps_others(tmp_path: Path, lines: Lines) -> None:
    chance = np.random.default_rng(0)
    label, size = chance.random(ROWS) < 0.4, chance.normal(0, 1, ROWS)
    rows = [
        f"{number:.3f},{-code},{code * 7 + 1},{code + number:.2f},{'ab'[code]}"
        for number, code in zip(size, label.astype(int), strict=True)
    ]
    (tmp_path / "rows.csv").write_text('size,"bob\'s, copy",scaled,old,label\n' + "\n".join(rows) + "\n")
    table = {"kind": "table", "path": "rows.csv"}

    *leaks, fix = [text for text in lines(**table, drop=["old"]) if "leak" in text or "data.drop" in text]
    assert len(leaks) == 2
    fixed = settings.parse_assignments(shlex.split(fix.partition("ratchet set ")[2]))
    assert fixed == {"data.drop": ["old", "bob's, copy", "scaled"]}
    assert not [text for text in lines(**table, drop=fixed["data.drop"]) if "leak" in text]


def leaky(folder: Path, *, has_noise: bool) -> dict[str, object]:
    """Write a table in which `old` decides the label, and perhaps noise, and return its settings."""
    chance = np.random.default_rng(0)
    rows = [f"{noise:.3f},{old:.5f},{'ab'[int(old > 0.6)]}" for noise, old in chance.random((ROWS, 2))]
    lines = ["noise,old,label", *rows]
    content = "\n".join(line if has_noise else line.partition(",")[2] for line in lines)
    (folder / "rows.csv").write_text(content + "\n")
    return {"kind": "table", "path": "rows.csv"}


def test_leak_command_takes_the_column_from_columns_too(tmp_path: Path, lines: Lines) -> None:
    table = leaky(tmp_path, has_noise=True)
    (fix,) = [text for text in lines(**table, columns={"old": "numeric", "noise": "numeric"}) if "data.drop" in text]
    fixed = settings.parse_assignments(shlex.split(fix.partition("ratchet set ")[2]))
    assert fixed == {"data.drop": ["old"], "data.columns": {"noise": "numeric"}}
    texts = lines(**table, **{key.removeprefix("data."): value for key, value in fixed.items()})
    assert not [text for text in texts if "leak" in text]


def test_no_command_drops_all_inputs(tmp_path: Path, lines: Lines) -> None:
    texts = lines(**leaky(tmp_path, has_noise=False))
    assert [text.partition(";")[0] for text in texts if "leak" in text] == [
        "possible data leakage: old alone predicts the target"
    ]
    assert not [text for text in texts if "data.drop" in text]


def test_splits_that_are_drawn_need_no_words(tmp_path: Path, lines: Lines) -> None:
    fill(tmp_path / "images" / "ants", range(40))
    fill(tmp_path / "images" / "bees", range(100, 140))
    assert lines(source="image-folder", path="images") == []


def test_given_splits_with_other_shares_are_reported(tmp_path: Path, lines: Lines) -> None:
    for first, (name, ants, bees) in enumerate((("train", 20, 20), ("val", 10, 10), ("test", 15, 5))):
        fill(tmp_path / "images" / name / "ants", range(1000 * first, 1000 * first + ants))
        fill(tmp_path / "images" / name / "bees", range(1000 * first + 500, 1000 * first + 500 + bees))
    (text,) = lines(source="image-folder", path="images")
    assert text.startswith("test has other shares per class than train: ants 75.0 % (train 50.0 %), bees 25.0 % (train")


@pytest.mark.parametrize(("kind", "content"), [("image", None), ("text", b"some words"), ("tokens", b"some words\n")])
def test_ignored_files_are_counted_in_one_line(tmp_path: Path, lines: Lines, kind: str, content: bytes | None) -> None:
    for label, first in (("ants", 0), ("bees", 100)):
        folder = tmp_path / "images" / label
        folder.mkdir(parents=True)
        if content is None:
            fill(folder, range(first, first + 20))
        for number in range(20) if content else ():
            (folder / f"{number}.txt").write_bytes(b"%s %d %s" % (label.encode(), number, content))
        (folder / "@eaDir").mkdir()
        (folder / "@eaDir" / "1.png").write_bytes(b"x")
    text = lines(kind=kind, source="image-folder", path="images")[0]
    assert text == "ignored 2 files that systems write or hide, such as ants/@eaDir/1.png"


def test_near_duplicates_in_different_splits_are_reported(tmp_path: Path, lines: Lines) -> None:
    for first, name in enumerate(("train", "val", "test")):
        fill(tmp_path / "images" / name / "ants", range(1000 * first, 1000 * first + 15))
        fill(tmp_path / "images" / name / "bees", range(1000 * first + 500, 1000 * first + 515))
    for number in range(3):
        image(number).save(tmp_path / "images" / "test" / "ants" / f"again-{number}.jpg", quality=90)
    text = next(text for text in lines(source="image-folder", path="images") if "near-duplicates" in text)
    assert text.startswith(
        "3 pairs of near-duplicates are in different splits, such as train/ants/0.png (train) and test/ants/again"
    )
    assert "data.group_column" in text


def test_contradicting_labels_are_counted_as_a_person_would(tmp_path: Path, lines: Lines) -> None:
    rows = [f"{number},{'ab'[number % 2]}" for number in range(ROWS)]
    for copies, counted in ((1, "1 sample has several labels: "), (2, "2 samples have several labels: ")):
        rows += [f"{copies},{'ba'[copies % 2]}"]
        (tmp_path / "rows.csv").write_text("size,label\n" + "\n".join(rows) + "\n")
        shown = lines(kind="table", path="rows.csv", columns={"size": "numeric"})
        assert [text for text in shown if text.startswith(counted)], shown
