"""`ratchet train --from` on the real digits: the parent is recorded, and the version can be reproduced."""

import json
import re
import shutil
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from ratchet import settings
from ratchet.registry.mlflow_store import connect
from ratchet.registry.sample_digests import split_samples

pytestmark = pytest.mark.slow

RULES = {
    "training.epochs": 2,
    "gate.minimum": 0.0,
    "gate.champion": "not-worse",
    "gate.tolerance": 0.99,
    "gate.slice_tolerance": 0.99,
    "export.variants": [],
}


@pytest.fixture(scope="module")
def continued(
    new_project: Callable[[str], Any], use_small_net: Callable[[Any], None], share_server: Callable[[Any], None]
) -> Any:
    """A project whose version 2 continues version 1, with another split of the data."""
    project = new_project("continued")
    settings.override(project.workspace.params, RULES)
    use_small_net(project)
    share_server(project)
    project.good("ratchet", "train")
    project.good("git", "add", "--all")
    project.good("git", "commit", "--quiet", "--message=first")
    rate = ("--set", "training.learning_rate=0.0005", "--set", "data.test_fraction=0.25")
    message = project.good("ratchet", "train", "--from", "digits@champion", *rate)
    assert "continues digits version 1 (champion)" in message
    assert "train: pretrained weights of digits/1: " in message
    assert re.search(r"models:/digits/1 learned from \d+ of \d+ test samples, so the metrics are too good", message)
    return project


def record(project: Any) -> dict[str, Any]:
    return json.loads((project.root / "data" / "reports" / "provenance.json").read_text())


def test_the_parent_is_recorded_everywhere(continued: Any) -> None:
    parent = "models:/digits/1"
    assert record(continued)["parent"] == parent
    client = connect(continued.workspace, settings.load(continued.workspace.params).tracking)
    run = record(continued)["mlflow_run"]
    assert client.get_run(run).data.tags["ratchet.parent"] == parent
    (card,) = (continued.root / "mlruns" / "artifacts").glob(f"{run}/artifacts/card/card.md")
    assert f"{parent} learned from " in card.read_text()
    assert f"continued from {parent}" in continued.good("ratchet", "trace", "digits/2")
    assert f"{parent} was continued by the run " in continued.good("ratchet", "trace", "digits/1")
    assert settings.load(continued.workspace.params).model.pretrained == "digits/1"
    assert continued.good("dvc", "status").strip() == "Data and pipelines are up to date."


def test_samples_of_the_parent_count_as_seen(continued: Any) -> None:
    """With another split, test samples of the child can be training samples of its parent."""
    seen = {
        path.parts[-4]: set(pl.read_parquet(path)["content"])
        for path in (continued.root / "mlruns" / "artifacts").glob("*/artifacts/provenance/training_rows.parquet")
    }
    child = seen.pop(record(continued)["mlflow_run"])
    (parent,) = seen.values()
    own = set(split_samples(continued.workspace.packed, "train", "validation").content.tolist())
    assert child == parent | own
    assert not parent <= own


def test_a_continued_version_is_reproduced_by_its_registry(continued: Any) -> None:
    shutil.rmtree(continued.root / "data" / "pretrained" / "digits")
    assert "reproduced, bit for bit" in continued.good("ratchet", "reproduce", "digits/2")
    fault = continued.refused("ratchet", "train", "--set", "training.epochs=3")
    assert "Fix: `ratchet train --from digits/1` fetches" in fault


def test_a_wrong_parent_leaves_settings_and_files_alone(continued: Any) -> None:
    before = continued.workspace.params.read_bytes()
    assert "there are digits/1, digits/2" in continued.refused("ratchet", "train", "--from", "digits@nightly")
    both = continued.refused("ratchet", "train", "--from", "digits/1", "--set", "model.pretrained=none")
    assert "Allowed: one of them" in both
    assert "--folds, --from: found both" in continued.refused("ratchet", "train", "--from", "digits/1", "--folds", "3")
    assert continued.workspace.params.read_bytes() == before
