"""Reproduce, compare and trace on a project with two versions, which differ in settings, code and data.

The model's code is never committed, so a rebuild needs the recorded patch.
"""

import json
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from ratchet import settings
from ratchet.registry.mlflow_store import connect

pytestmark = pytest.mark.slow

PETS = {
    "data.source": "image-folder",
    "data.path": "data/raw/pets",
    "training.epochs": 3,
    "evaluation.temperature_scaling": True,
    "gate.minimum": 0.0,
    "gate.minimum_rows": 5,
    "gate.champion": "not-worse",
    "gate.tolerance": 0.99,
    "gate.slice_tolerance": 0.99,
}


@dataclass(frozen=True)
class Lineage:
    """The project, and the provenance records of its two versions."""

    project: Any
    first: dict[str, Any]
    second: dict[str, Any]

    @property
    def client(self) -> Any:
        workspace = self.project.workspace
        return connect(workspace, settings.load(workspace.params).tracking)

    def predictions(self, record: dict[str, Any]) -> pl.DataFrame:
        path = self.client.download_artifacts(record["mlflow_run"], "report/predictions.parquet")
        return pl.read_parquet(path).with_columns(right=pl.col("label") == pl.col("predicted"))


def record(project: Any) -> dict[str, Any]:
    return json.loads((project.root / "data" / "reports" / "provenance.json").read_text())


@pytest.fixture(scope="module")
def lineage(
    new_project: Callable[[str], Any], use_small_net: Callable[[Any], None], share_server: Callable[[Any], None]
) -> Lineage:
    project = new_project("lineage")
    folder = project.root / "data" / "raw" / "pets"
    for label, first, shade in (("cat", 0, 110), ("dog", 1000, 140)):
        (folder / label).mkdir(parents=True)
        for number in range(first, first + 120):
            pixels = np.random.default_rng(number).normal(shade, 60, (12, 12, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number:04d}.png")
    settings.override(project.workspace.params, PETS)
    use_small_net(project)
    share_server(project)
    project.good("dvc", "add", "--quiet", "data/raw/pets")
    project.good("ratchet", "train")
    first = record(project)

    project.good("git", "add", "params.yaml", "dvc.lock", "data/raw")
    project.good("git", "commit", "--quiet", "--message=first")
    (folder / "dog" / "1001.png").unlink()
    (folder / "dog" / "1002.png").rename(folder / "cat" / "1002.png")
    code = project.root / "nets" / "small.py"
    code.write_text(code.read_text().replace("Dropout(0.2)", "Dropout(0.1)"))
    project.good("ratchet", "train", "--set", "training.epochs=6")
    return Lineage(project, first, record(project))


def versions(lineage: Lineage) -> list[str]:
    return [version.version for version in lineage.client.search_model_versions("name = 'pets'")]


def project_state(lineage: Lineage) -> dict[str, str]:
    """Return all state that a read-only command must not change."""
    project = lineage.project
    with sqlite3.connect(project.root / "mlruns" / "mlflow.db") as database:
        dumped = "\n".join(database.iterdump())
    database.close()
    status = project.good("git", "status", "--porcelain")
    return {**project.digests("data", "mlruns/artifacts", ".dvc/cache", ".ratchet/remote"), "db": dumped, "git": status}


def test_record_is_complete_and_equal_everywhere(lineage: Lineage) -> None:
    assert sorted(map(str, versions(lineage))) == ["1", "2"]
    for number, expected in (("1", lineage.first), ("2", lineage.second)):
        missing = {name for name, value in expected.items() if value is None} - {"git_origin"}
        assert missing == {"search", "parent", "pretrained"}  # no search chose the settings; the weights are random
        assert lineage.project.good("git", "show-ref", f"refs/ratchet/{expected['git_commit']}")
        assert expected["dvc_inputs"]["data/raw/pets"].endswith(".dir")
        tags = lineage.client.get_model_version("pets", number).tags
        run = lineage.client.get_run(expected["mlflow_run"])
        for place in (tags, run.data.tags):
            assert (place["ratchet.provenance"], json.loads(place["ratchet.provenance_record"])) == (
                expected["id"],
                expected,
            )
        stored = {file.path for file in lineage.client.list_artifacts(expected["mlflow_run"], "provenance")}
        names = (
            "dvc.lock",
            "params.yaml",
            "provenance.json",
            "settings.json",
            "training_rows.parquet",
            "uncommitted.patch",
        )
        assert stored == {f"provenance/{name}" for name in names}


def test_rebuild_is_identical_and_leaves_nothing_behind(lineage: Lineage, tmp_path: Path) -> None:
    """The version has uncommitted code and a fitted temperature."""
    before = project_state(lineage)
    output = lineage.project.good("ratchet", "reproduce", "pets@champion", TMPDIR=str(tmp_path))
    assert output.splitlines()[-1] == "reproduced, bit for bit"
    assert f"{lineage.second['dvc']['data/packed']}, the same hash" in output
    assert "numbers, are identical" in output
    assert list(tmp_path.iterdir()) == []
    assert project_state(lineage) == before


def stored_weights(lineage: Lineage) -> Path:
    source = Path(lineage.client.get_model_version_download_uri("pets", "1").removeprefix("file://"))
    return next(source.rglob("model.safetensors"))


@contextmanager
def without_ledger(lineage: Lineage) -> Iterator[None]:
    """Use an empty ledger, which proves nothing."""
    path = lineage.project.workspace.params
    kept = path.read_bytes()
    settings.override(path, {"registry.ledger": "sqlite:///mlruns/empty.db"})
    try:
        yield
    finally:
        path.write_bytes(kept)


def test_edited_metrics_are_shown_only_as_warnings(lineage: Lineage) -> None:
    run, database = lineage.second["mlflow_run"], lineage.project.root / "mlruns" / "mlflow.db"
    assert "warnings" not in lineage.project.good("ratchet", "compare", "pets/1", "pets/2")
    edit = "UPDATE {} SET value = ? WHERE run_uuid = ? AND key = 'test/accuracy'"
    with closing(sqlite3.connect(database)) as connection, connection:
        (kept,) = connection.execute(
            "SELECT value FROM latest_metrics WHERE run_uuid = ? AND key = 'test/accuracy'", [run]
        ).fetchone()
        for table in ("metrics", "latest_metrics"):
            connection.execute(edit.format(table), [0.9999, run])
    try:
        for command in (("compare", "pets/1", "pets/2"), ("trace", "pets/2")):
            output = lineage.project.good("ratchet", *command)
            shown = [line for line in output.splitlines() if ".9999" in line]
            assert len(shown) == 1, output
            assert f"MLflow has metric test/accuracy = 0.9999, and the sealed value is {kept}" in shown[0]
        audit = lineage.project.refused("ratchet", "audit")
        assert f"pets version 2: MLflow has metric test/accuracy = 0.9999, and the sealed value is {kept}" in audit
    finally:
        with closing(sqlite3.connect(database)) as connection, connection:
            for table in ("metrics", "latest_metrics"):
                connection.execute(edit.format(table), [kept, run])
    lineage.project.good("ratchet", "audit")


@contextmanager
def changed_record(lineage: Lineage, **changed: Any) -> Iterator[None]:
    """Change the first version's record in MLflow, without a ledger that has the correct one."""
    tags = lineage.client.get_model_version("pets", "1").tags
    name = "ratchet.provenance_record"
    lineage.client.set_model_version_tag("pets", "1", name, json.dumps({**lineage.first, **changed}))
    try:
        with without_ledger(lineage):
            yield
    finally:
        lineage.client.set_model_version_tag("pets", "1", name, tags[name])


def test_unknown_commit_is_reported_before_training(lineage: Lineage) -> None:
    with changed_record(lineage, git_commit="0" * 40, git_origin="https://example.org/pets.git"):
        output = lineage.project.refused("ratchet", "reproduce", "pets/1")
    assert f"its commit {'0' * 40} is unknown" in output
    assert "fetch it from https://example.org/pets.git" in output
    assert len(output.strip().splitlines()) == 1


def packed_index(lineage: Lineage) -> list[Path]:
    """Return where DVC's cache and remote have the index of the first version's data."""
    root, value = lineage.project.root, lineage.first["dvc"]["data/packed"]
    listing = json.loads((root / ".dvc/cache/files/md5" / value[:2] / value[2:]).read_text())
    md5 = next(entry["md5"] for entry in listing if entry["relpath"] == "index.parquet")
    return [root / store / "files/md5" / md5[:2] / md5[2:] for store in (".dvc/cache", ".ratchet/remote")]


@contextmanager
def lost(*paths: Path, aside: Path) -> Iterator[None]:
    """Move files away, and back again."""
    for number, path in enumerate(paths):
        shutil.move(path, aside / str(number))
    try:
        yield
    finally:
        for number, path in enumerate(paths):
            path.unlink(missing_ok=True)  # DVC may have fetched it again
            shutil.move(aside / str(number), path)


def test_other_libraries_are_refused_or_named_as_reasons(lineage: Lineage, tmp_path: Path) -> None:
    """Without a ledger: with one, the evidence names the changed weights first.

    The rebuild takes data that the cache has lost from the remote; the folder has the second version's data.
    """
    from safetensors.torch import load_file, save_file

    path, again = stored_weights(lineage), tmp_path / "again"
    kept = path.read_bytes()
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 4 and name.endswith("weight"))
    tensors[name].view(-1)[3] += 0.5
    packages = {**lineage.first["packages"], "torch": "2.14.0"}
    with changed_record(lineage, packages=packages, python="3.10.1"):
        output = lineage.project.refused("ratchet", "reproduce", "pets/1")
        assert "was made with Python 3.10.1 (installed: " in output
        assert "torch 2.14.0 (installed: " in output
        assert len(output.strip().splitlines()) == 1
        save_file(tensors, path)
        (tmp_path / "aside").mkdir()
        try:
            with lost(packed_index(lineage)[0], aside=tmp_path / "aside"):
                command = ("ratchet", "reproduce", "models:/pets/1", "--anyway", "--into", str(again))
                output = lineage.project.refused(*command)
        finally:
            path.write_bytes(kept)
    assert "the ledger does not know this version" in output
    assert "from DVC's cache and remote local" in output
    assert f"{lineage.first['dvc']['data/packed']}, the same hash" in output
    assert f"numbers differ, by up to 0.5, in {name}" in output
    assert "python was 3.10.1, is " in output
    assert (again / "data" / "model" / "model.safetensors").exists()
    assert (again / "nets" / "small.py").read_text().count("Dropout(0.2)") == 1
    assert "is not empty" in lineage.project.refused("ratchet", "reproduce", "pets/1", "--into", str(again))


def test_lost_data_is_reported_before_training(lineage: Lineage, tmp_path: Path) -> None:
    value = lineage.first["dvc"]["data/packed"]
    with lost(*packed_index(lineage), aside=tmp_path):
        output = lineage.project.refused("ratchet", "reproduce", "pets/1")
        assert f"its data {value} is gone: neither DVC's cache nor remote local has all of it" in output
        assert len(output.strip().splitlines()) == 1
        assert f"its data {value} is gone" in lineage.project.good("ratchet", "compare", "pets/1", "pets/2")
        assert f"{value} is gone" in lineage.project.good("ratchet", "trace", "pets/1")


def test_unknown_and_foreign_versions_are_refused(lineage: Lineage) -> None:
    output = lineage.project.refused("ratchet", "reproduce", "models:/pets/9")
    assert "no such version" in output
    assert "there are pets/1, pets/2" in output
    state = random.getstate()
    run = lineage.client.create_run(lineage.client.get_experiment_by_name("ratchet").experiment_id)
    lineage.client.create_registered_model("strange")
    lineage.client.create_model_version("strange", "somewhere", run.info.run_id)
    try:
        output = lineage.project.refused("ratchet", "reproduce", "strange/1")
    finally:
        lineage.client.delete_registered_model("strange")
        lineage.client.delete_run(run.info.run_id)
        random.setstate(state)  # from which MLflow draws the name of a run
    assert "has no provenance record, so it cannot be rebuilt" in output


def test_compare_lists_all_differences_of_two_versions(lineage: Lineage) -> None:
    output = lineage.project.good("ratchet", "compare", "models:/pets/1", "pets@champion", "--most", "0")
    lines = [line.strip() for line in output.splitlines()]
    assert f"{lineage.first['git_commit']} -> {lineage.second['git_commit']}" in lines
    assert any(line.startswith("params.yaml") and "|" in line for line in lines)
    assert "uncommitted: nets/small.py: A and B, not the same" in lines
    assert any(line.split() == ["training.epochs", "3", "6"] for line in lines)
    # A sample at a border of the splits of its class may move.
    summary = re.compile("240 samples before, 239 after: 1 removed, 1 renamed, 1 relabelled(, [1-4] moved)?")
    assert any(map(summary.fullmatch, lines))
    assert "- removed    dog/1001.png: dog, " in output
    assert "> renamed    dog/1002.png -> cat/1002.png" in output
    assert "the same, or not recorded for both" in lines

    before, after = lineage.predictions(lineage.first), lineage.predictions(lineage.second)
    both = before.join(after, on=["id", "label"], suffix="_after")
    worse = both.filter(pl.col("right") & ~pl.col("right_after"))["id"].to_list()
    better = both.filter(~pl.col("right") & pl.col("right_after"))["id"].to_list()
    assert worse or better
    heads = [line.split(":")[0] for line in lines]
    for title, flipped in (("right -> wrong", worse), ("wrong -> right", better)):
        if flipped:
            start = heads.index(title) + 1
            assert sorted(heads[start : start + len(flipped)]) == sorted(flipped)
    difference = 100 * (both["right_after"].mean() - both["right"].mean())
    assert f"On the {both.height} test samples in common, B is {difference:+.2f} points" in output


def test_trace_prints_a_tree_and_refuses_unknown_names(lineage: Lineage) -> None:
    output = lineage.project.good("ratchet", "trace", "pets/1")
    assert output.splitlines()[0] == "pets version 1 (no alias)"
    order = ["source", "data version", f"run {lineage.first['mlflow_run']}", "evaluation", "verdict", "versions"]
    places = [output.index(f"── {title}\n") if title != "source" else output.index(title) for title in order]
    assert places == sorted(places)
    for name in ("nothing", "f" * 32, "f" * 16, "params.yaml"):
        refused = lineage.project.refused("ratchet", "trace", name)
        assert "nothing known here has this name. Allowed: a version" in refused
        assert len(refused.strip().splitlines()) == 1
