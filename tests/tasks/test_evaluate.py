"""What the test rows are sliced by: the index's columns, a row's value beside its answer."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from ratchet.data.ingest import ingest
from ratchet.errors import SettingsError
from ratchet.params import DataSettings, EvaluationSettings
from ratchet.workspace import Workspace
from tasks.evaluate import slice_columns


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    """Pictures that a table lists with camera, age and a note for each, ingested."""
    root: Path = tmp_path_factory.mktemp("slices")
    (root / "pets").mkdir()
    lines = ["path,label,camera,age,note"]
    for number in range(300):
        drawn = np.random.default_rng(number)
        pixels = drawn.integers(0, 40 + number // 2, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "pets" / f"{number}.png")
        age = "" if number % 10 == 0 else number % 70
        lines.append(
            f"{number}.png,{'cat' if number % 2 else 'dog'},{'canon' if number % 3 else 'nikon'},{age},n{number}"
        )
    (root / "pets" / "labels.csv").write_text("\n".join(lines))
    workspace = Workspace(root)
    ingest(
        DataSettings(source="image-manifest", path="pets", manifest="labels.csv"),
        packed=workspace.packed, quarantine=workspace.quarantine, root=root, report=lambda *_: None,
    )  # fmt: skip
    return workspace


def test_each_test_row_has_its_own_values(workspace: Workspace) -> None:
    columns = slice_columns(workspace, EvaluationSettings())
    assert set(columns) == {"brightness", "contrast", "format", "camera", "age", "note"}
    index = pl.read_parquet(workspace.packed / "index.parquet")
    test = index.filter(pl.col("split") == "test").sort("row")
    assert columns["camera"] == test["camera"].to_list()
    edges = index.filter(pl.col("split") == "train")["age"].drop_nulls().sort()
    third = edges[len(edges) // 3]
    for part, age in zip(columns["age"], test["age"], strict=True):
        assert (part is None) == (age is None)
        if age is not None and abs(age - third) > 2:
            assert (part == "low") == (age < third)


def test_named_columns_are_taken_and_no_others(workspace: Workspace) -> None:
    assert set(slice_columns(workspace, EvaluationSettings(slices=("camera", "brightness")))) == {
        "camera",
        "brightness",
    }
    with pytest.raises(SettingsError, match=r"evaluation\.slices: found lens; allowed: auto, or .*camera, age, note"):
        slice_columns(workspace, EvaluationSettings(slices=("camera", "lens")))
