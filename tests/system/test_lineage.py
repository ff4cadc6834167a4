"""Reproduce, compare and trace on one project with two versions, made of other settings, other code and other data.

The model's code is never committed: what rebuilds it is the recorded patch.
"""

import hashlib
import json
import random
import shutil
import sqlite3
import sys
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
    "gate.minimum_accuracy": 0.0,
    "gate.champion": "not-worse",
    "gate.tolerance": 0.99,
    "gate.slice_tolerance": 0.99,
    "registry.export": "onnx",
}


@dataclass(frozen=True)
class Lineage:
    """The project, and the records of its two versions."""

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
def lineage(new_project: Callable[[str], Any], use_small_net: Callable[[Any], None]) -> Lineage:
    project = new_project("lineage")
    folder = project.root / "data" / "raw" / "pets"
    for label, first, shade in (("cat", 0, 110), ("dog", 1000, 140)):
        (folder / label).mkdir(parents=True)
        for number in range(first, first + 120):
            pixels = np.random.default_rng(number).normal(shade, 60, (12, 12, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number:04d}.png")
    settings.override(project.workspace.params, PETS)
    use_small_net(project)
    project.good("dvc", "add", "--quiet", "data/raw/pets")
    project.good("ratchet", "train")
    first = record(project)

    project.good("git", "add", "params.yaml", "dvc.lock", "data/raw")
    project.good("git", "commit", "--quiet", "--message=first")
    (folder / "dog" / "1001.png").unlink()
    (folder / "dog" / "1002.png").rename(folder / "cat" / "1002.png")
    code = project.root / "nets" / "small.py"
    code.write_text(code.read_text().replace("Dropout(0.2)", "Dropout(0.1)"))
    project.good("ratchet", "train", "--set", "training.epochs=12")
    return Lineage(project, first, record(project))


def versions(lineage: Lineage) -> list[str]:
    return [one.version for one in lineage.client.search_model_versions("name = 'pets'")]


def outside(lineage: Lineage) -> dict[str, str]:
    """All that a command which only reads must leave as it is."""
    project = lineage.project
    with sqlite3.connect(project.root / "mlruns" / "mlflow.db") as database:
        dumped = "\n".join(database.iterdump())
    database.close()
    status = project.good("git", "status", "--porcelain")
    return {**project.digests("data", "mlruns/artifacts", ".dvc/cache", ".ratchet/remote"), "db": dumped, "git": status}


def test_the_record_is_whole_and_the_same_in_all_its_places(lineage: Lineage) -> None:
    assert sorted(map(str, versions(lineage))) == ["1", "2"]
    for number, told in (("1", lineage.first), ("2", lineage.second)):
        missing = [name for name, value in told.items() if value is None and name != "git_origin"]
        assert not missing
        assert told["dvc_inputs"]["data/raw/pets"].endswith(".dir")
        tags = lineage.client.get_model_version("pets", number).tags
        run = lineage.client.get_run(told["mlflow_run"])
        for place in (tags, run.data.tags):
            assert (place["ratchet.provenance"], json.loads(place["ratchet.provenance_record"])) == (told["id"], told)
        stored = {file.path for file in lineage.client.list_artifacts(told["mlflow_run"], "provenance")}
        names = ("dvc.lock", "params.yaml", "provenance.json", "training_rows.parquet", "uncommitted.patch")
        assert stored == {f"provenance/{name}" for name in names}


@pytest.mark.parametrize("reference", ["models:/pets/1", "pets@champion"])
def test_a_version_is_rebuilt_bit_for_bit_and_nothing_is_left_behind(
    lineage: Lineage, reference: str, tmp_path: Path
) -> None:
    """Both were made with uncommitted code and a fitted temperature; the first, of data that is no longer there."""
    before = outside(lineage)
    told = lineage.project.good("ratchet", "reproduce", reference, TMPDIR=str(tmp_path))
    assert told.splitlines()[-1] == "reproduced, bit for bit"
    assert f"{lineage.first['dvc']['data/packed']}, the same hash" in told or reference != "models:/pets/1"
    assert "are the same to the bit" in told
    assert list(tmp_path.iterdir()) == []
    assert outside(lineage) == before


def stored_weights(lineage: Lineage) -> Path:
    source = Path(lineage.client.get_model_version_download_uri("pets", "1").removeprefix("file://"))
    return next(source.rglob("model.safetensors"))


@contextmanager
def unsealed(lineage: Lineage) -> Iterator[None]:
    """An empty ledger for a while, which vouches for nothing."""
    path = lineage.project.workspace.params
    kept = path.read_bytes()
    settings.override(path, {"registry.ledger": "sqlite:///mlruns/empty.db"})
    try:
        yield
    finally:
        path.write_bytes(kept)


def test_a_flipped_bit_is_named_before_anything_is_rebuilt(lineage: Lineage, tmp_path: Path) -> None:
    path = stored_weights(lineage)
    kept = path.read_bytes()
    flipped = bytearray(kept)
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    try:
        told = lineage.project.refused("ratchet", "reproduce", "pets/1", "--into", str(tmp_path / "again"))
    finally:
        path.write_bytes(kept)
    expected, found = (hashlib.sha256(content).hexdigest() for content in (kept, flipped))
    assert f"model/data/model/model.safetensors: expected SHA-256 {expected}, found {found}" in told
    assert "Nothing was rebuilt" in told
    assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "again").exists()


def test_other_weights_are_told_with_the_largest_difference_and_the_rebuild_is_kept_where_asked(
    lineage: Lineage, tmp_path: Path
) -> None:
    """Of a version that the ledger does not know: of another one the evidence names the file first."""
    from safetensors.torch import load_file, save_file

    path = stored_weights(lineage)
    kept = path.read_bytes()
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 4 and name.endswith("weight"))
    tensors[name].view(-1)[3] += 0.5
    save_file(tensors, path)
    try:
        with unsealed(lineage):
            told = lineage.project.refused("ratchet", "reproduce", "pets/1", "--into", str(tmp_path / "again"))
    finally:
        path.write_bytes(kept)
    assert "the ledger does not know this version" in told
    assert f"numbers differ, by up to 0.5, in {name}" in told
    assert "no reason is known" in told
    assert (tmp_path / "again" / "data" / "model" / "model.safetensors").exists()
    assert (tmp_path / "again" / "nets" / "small.py").read_text().count("Dropout(0.2)") == 1
    told = lineage.project.refused("ratchet", "reproduce", "pets/1", "--into", str(tmp_path / "again"))
    assert "is not empty" in told


def test_edited_metrics_are_warnings_and_never_figures(lineage: Lineage) -> None:
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
            told = lineage.project.good("ratchet", *command)
            shown = [line for line in told.splitlines() if ".9999" in line]
            assert len(shown) == 1, told
            assert f"MLflow has metric test/accuracy = 0.9999, and the sealed value is {kept}" in shown[0]
        audit = lineage.project.refused("ratchet", "audit")
        assert f"pets version 2: MLflow has metric test/accuracy = 0.9999, and the sealed value is {kept}" in audit
    finally:
        with closing(sqlite3.connect(database)) as connection, connection:
            for table in ("metrics", "latest_metrics"):
                connection.execute(edit.format(table), [kept, run])
    lineage.project.good("ratchet", "audit")


@contextmanager
def retold(lineage: Lineage, **changed: Any) -> Iterator[None]:
    """The first version's record says something else for a while, and no ledger knows the right one."""
    tags = lineage.client.get_model_version("pets", "1").tags
    name = "ratchet.provenance_record"
    lineage.client.set_model_version_tag("pets", "1", name, json.dumps({**lineage.first, **changed}))
    try:
        with unsealed(lineage):
            yield
    finally:
        lineage.client.set_model_version_tag("pets", "1", name, tags[name])


def test_an_unknown_commit_is_said_before_anything_is_trained(lineage: Lineage) -> None:
    with retold(lineage, git_commit="0" * 40, git_origin="https://example.org/pets.git"):
        told = lineage.project.refused("ratchet", "reproduce", "pets/1")
    assert f"its commit {'0' * 40} is unknown" in told
    assert "fetch it from https://example.org/pets.git" in told
    assert len(told.strip().splitlines()) == 1


def test_other_library_versions_are_named_and_gone_on_with_only_when_asked(lineage: Lineage) -> None:
    packages = {**lineage.first["packages"], "torch": "2.14.0"}
    with retold(lineage, packages=packages, python="3.10.1"):
        told = lineage.project.refused("ratchet", "reproduce", "pets/1")
        assert "was made with Python 3.10.1 (installed: " in told
        assert "torch 2.14.0 (installed: " in told
        assert len(told.strip().splitlines()) == 1
        assert "reproduced, bit for bit" in lineage.project.good("ratchet", "reproduce", "pets/1", "--anyway")


def test_gone_data_is_said_before_anything_is_trained(lineage: Lineage, tmp_path: Path) -> None:
    root, value = lineage.project.root, lineage.first["dvc"]["data/packed"]
    listing = json.loads((root / ".dvc/cache/files/md5" / value[:2] / value[2:]).read_text())
    lost = next(one["md5"] for one in listing if one["relpath"] == "index.parquet")
    places = [root / at / "files/md5" / lost[:2] / lost[2:] for at in (".dvc/cache", ".ratchet/remote")]
    shutil.move(places[0], tmp_path / "cached")
    try:
        assert "from DVC's cache and remote local" in lineage.project.good("ratchet", "reproduce", "pets/1")
        shutil.move(places[1], tmp_path / "remote")
        told = lineage.project.refused("ratchet", "reproduce", "pets/1")
        assert f"its data {value} is gone: neither DVC's cache nor remote local has all of it" in told
        assert len(told.strip().splitlines()) == 1
        assert f"its data {value} is gone" in lineage.project.good("ratchet", "compare", "pets/1", "pets/2")
        assert f"{value} is gone" in lineage.project.good("ratchet", "trace", "pets/1")
    finally:
        for kept, place in zip(("cached", "remote"), places, strict=True):
            if (tmp_path / kept).exists():
                shutil.move(tmp_path / kept, place)


def test_a_version_that_is_not_there_or_not_ours_is_said(lineage: Lineage) -> None:
    told = lineage.project.refused("ratchet", "reproduce", "models:/pets/9")
    assert "no such version" in told
    assert "there are pets/1, pets/2" in told
    state = random.getstate()
    run = lineage.client.create_run(lineage.client.get_experiment_by_name("ratchet").experiment_id)
    lineage.client.create_registered_model("strange")
    lineage.client.create_model_version("strange", "somewhere", run.info.run_id)
    try:
        told = lineage.project.refused("ratchet", "reproduce", "strange/1")
    finally:
        lineage.client.delete_registered_model("strange")
        lineage.client.delete_run(run.info.run_id)
        random.setstate(state)  # from which MLflow draws the name of a run
    assert "has no provenance record, so it cannot be rebuilt" in told


def test_compare_says_why_two_versions_differ(lineage: Lineage) -> None:
    told = lineage.project.good("ratchet", "compare", "models:/pets/1", "pets@champion", "--most", "0")
    lines = [line.strip() for line in told.splitlines()]
    assert f"{lineage.first['git_commit']} -> {lineage.second['git_commit']}" in lines
    assert any(line.startswith("params.yaml") and "|" in line for line in lines)
    assert "uncommitted: nets/small.py: A and B, not the same" in lines
    assert any(line.split() == ["training.epochs", "3", "12"] for line in lines)
    assert "240 samples before, 239 after: 1 removed, 1 renamed, 1 relabelled" in lines
    assert "- removed    dog/1001.png: dog, " in told
    assert "> renamed    dog/1002.png -> cat/1002.png" in told
    assert "the same, or not recorded of both" in lines

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
    assert f"On the {both.height} test samples in common, B is {difference:+.2f} points" in told
    page = lineage.project.root / "data" / "reports" / "compare-pets-1-pets-champion.html"
    assert f"{difference:+.2f} points" in page.read_text()


def test_compare_takes_runs_too_and_finds_no_difference_of_one_and_itself(lineage: Lineage, tmp_path: Path) -> None:
    run = lineage.second["mlflow_run"]
    told = lineage.project.good("ratchet", "compare", run, "pets/2", "--html", str(tmp_path / "page.html"))
    for words in ("the same commit", "nothing uncommitted differs", "settings\n  the same", "data\n  the same, "):
        assert words in told
    assert "not compared" not in told
    assert (tmp_path / "page.html").exists()
    assert "neither a version" in lineage.project.refused("ratchet", "compare", "f" * 32, "pets/2")


TRACE = """
import json, sys
from ratchet.workspace import Workspace
from commands.trace import trace

def titles(link):
    return [[link.title, list(link.lines)], *(one for below in link.children for one in titles(below))]

found = {name: trace(Workspace.find(), name) for name in sys.argv[1:]}
print(json.dumps({name: [one.words, [titles(chain) for chain in one.chains]] for name, one in found.items()}))
"""


def test_trace_reaches_the_version_and_the_data_from_each_kind_of_name(lineage: Lineage) -> None:
    told = lineage.second
    picture, moved = "data/raw/pets/dog/1003.png", "data/raw/pets/cat/1002.png"
    names = {
        "models:/pets/2": ["pets version 2 (champion)"],
        "pets/2": ["pets version 2 (champion)"],
        "pets@champion": ["pets version 2 (champion)"],
        told["mlflow_run"]: [f"the MLflow run {told['mlflow_run']}"],
        f"run {told['mlflow_run'][:8]}": [f"the MLflow run {told['mlflow_run']}"],
        told["id"]: [f"the provenance record {told['id']}"],
        told["weights"]: [f"the SHA-256 of the weights {told['weights']}"],
        told["settings"]: [f"the digest of the settings {told['settings']}"],
        told["git_commit"]: [f"the commit {told['git_commit']}"],
        told["prefect_flow_run"]: [f"the Prefect flow run {told['prefect_flow_run']}"],
        "dog/1003.png": None,
        told["dvc"]["data/packed"]: [f"{told['dvc']['data/packed']} is data/packed"],
        told["dvc"]["data/reports/metrics.json"]: [
            f"{told['dvc']['data/reports/metrics.json']} is data/reports/metrics.json"
        ],
        "data/packed": ["data/packed is data/packed"],
        "data/model/model.safetensors": ["data/model/model.safetensors is data/model/model.safetensors"],
        "data/reports/predictions.parquet": ["data/reports/predictions.parquet is data/reports/predictions.parquet"],
        picture: None,
        moved: None,
    }
    found = json.loads(lineage.project.good(sys.executable, "-c", TRACE, *names).splitlines()[-1])
    for name, words in names.items():
        said, chains = found[name]
        links = {title: lines for chain in chains for title, lines in chain}
        assert words is None or said == words, name
        acts = [line.partition(": ")[2] for line in links["pets version 2 (champion)"]]
        assert acts == ["register", "promote: passed the gate"], name
        run = links[f"run {told['mlflow_run']}"]
        for value in (told["prefect_flow_run"], told["git_commit"], told["settings"], told["weights"], told["id"]):
            assert any(value in line for line in run), (name, value)
        everything = [line for chain in chains for _, lines in chain for line in lines]
        assert not any(line.startswith(("none", "no ")) or "unknown" in line for line in everything), name
        assert f"DVC hash {told['dvc']['data/packed']}" in everything
        assert f"DVC hash {told['dvc_inputs']['data/raw/pets']}" in everything
    # The picture that both versions have is of both; the one that was renamed kept its content.
    assert len(found[picture][1]) == len(found[moved][1]) == 2
    assert f"{picture} is sample dog/1003.png of data version {told['dvc']['data/packed']}" in found[picture][0][1]
    assert "sample dog/1002.png" in found[moved][0][0]
    assert "sample cat/1002.png" in found[moved][0][1]


def test_trace_prints_the_tree_and_refuses_what_names_nothing(lineage: Lineage) -> None:
    page = lineage.project.home / "trace.html"
    told = lineage.project.good("ratchet", "trace", "pets/1", "--html", str(page))
    assert str(lineage.first["mlflow_run"]) in page.read_text()
    assert told.splitlines()[0] == "pets version 1 (no alias)"
    order = ["source", "data version", f"run {lineage.first['mlflow_run']}", "evaluation", "verdict", "versions"]
    places = [told.index(f"── {title}\n") if title != "source" else told.index(title) for title in order]
    assert places == sorted(places)
    for name in ("nothing", "f" * 32, "f" * 16, "params.yaml"):
        refused = lineage.project.refused("ratchet", "trace", name)
        assert "nothing known here has this name; accepted: a version" in refused
        assert len(refused.strip().splitlines()) == 1
