"""A client asks for an error rate: unsure rows have no class, in each format and in files; others say why not."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from asgi import exchange

from ratchet import files
from ratchet.errors import RegistryError
from ratchet.kinds import Column, ModelSpec, TableInput
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.problems.abstention import ABSTENTION, Abstention
from ratchet.problems.novelty import NOVELTY, Novelty
from ratchet.serving.app import ModelServer
from ratchet.serving.batch.row_reader import Batch
from ratchet.serving.canary import Canary
from ratchet.serving.openapi import document
from ratchet.serving.scoring import score
from ratchet.serving.versions.additions import AnswerOptions
from ratchet.serving.versions.alias_watcher import PinnedVersion
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.settings.model import ServingSettings
from ratchet.training import build, save_model
from ratchet.typed_json import to_plain

INPUT = TableInput((Column("age", "numeric", 30.0, 14.0),))
ANIMALS = Classes(("ant", "unknown", "null"))
ROWS = [{"age": age} for age in (5, 20, 41, 60)]
AGES = {"name": "age", "shape": [4], "datatype": "FP32", "data": [float(row["age"]) for row in ROWS]}


def version(folder: Path, target: Target, threshold: float | None = None) -> LoadedVersion:
    """Store a model of random weights with thresholds: this one for an error rate from 0.0312345, and 0 for 0.3."""
    spec = ModelSpec("mlp", INPUT, target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = {name: value + 0.03 * torch.rand_like(value) for name, value in build(spec).state_dict().items()}
        save_model(folder, state, spec, about={"training": {}})
    if threshold is not None:
        thresholds = Abstention(400, 0.95, (threshold, 0.0), (0.0312345, 0.3))
        files.write_json(folder / ABSTENTION, to_plain(thresholds))
    return LoadedVersion(Identity("model", "1", "run", None), folder)


def ask(loaded: LoadedVersion, path: str, content: Any) -> tuple[int, Any]:
    """Return status and answer of a server in this process."""
    status, _, text = exchange(
        ModelServer(PinnedVersion(loaded), ServingSettings()), path, json.dumps(content).encode()
    )
    return status, json.loads(text)


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> LoadedVersion:
    """A version that abstains from two of the four rows at 0.05."""
    folder = tmp_path_factory.mktemp("animals")
    plain = version(folder, ANIMALS)
    confidences = sorted(row["probability"] for row in ask(plain, "/v1/predict", {"input": ROWS})[1]["predictions"])
    return version(folder, ANIMALS, sum(confidences[1:3]) / 2)


def test_own_format_has_no_class_for_unsure_rows(animals: LoadedVersion) -> None:
    _, plain = ask(animals, "/v1/predict", {"input": ROWS})
    status, answer = ask(animals, "/v1/predict", {"input": ROWS, "options": {"abstain": 0.05}})
    assert (status, answer["abstain"]) == (200, 0.05)
    assert sum(row["abstained"] for row in answer["predictions"]) == 2
    for before, row in zip(plain["predictions"], answer["predictions"], strict=True):
        assert row["class"] == (None if row["abstained"] else before["class"])
        assert row["probability"] == before["probability"]
    _, lenient = ask(animals, "/v1/predict", {"input": ROWS, "options": {"abstain": 0.3}})
    assert [row["class"] for row in lenient["predictions"]] == [row["class"] for row in plain["predictions"]]


def test_numeric_formats_have_the_same_flags_beside_all_probabilities(animals: LoadedVersion) -> None:
    _, own = ask(animals, "/v1/predict", {"input": ROWS, "options": {"abstain": 0.05}})
    flags = [row["abstained"] for row in own["predictions"]]
    _, mlflow = ask(animals, "/invocations", {"dataframe_records": ROWS, "params": {"abstain": 0.05}})
    assert (mlflow["abstained"], len(mlflow["predictions"][0])) == (flags, 3)
    _, answer = ask(animals, "/v2/models/model/infer", {"inputs": [AGES], "parameters": {"abstain": 0.05}})
    _, tensor = answer["outputs"]
    assert (tensor["name"], tensor["datatype"], tensor["data"]) == ("abstained", "BOOL", flags)


def test_files_have_no_class_for_unsure_rows(animals: LoadedVersion) -> None:
    batch = Batch(["rows.csv"] * 5, [1, 2, 3, 4, 5], pl.DataFrame({"age": ["5", "20", "x", "41", "60"]}), [""] * 5)
    frame, plain = score(animals, batch, AnswerOptions(abstain=0.05)), score(animals, batch)
    assert frame["abstained"].to_list().count(True) == 2
    assert (frame["abstained"][2], frame["class"][2]) == (None, None)  # refused
    for unsure, name, before in zip(frame["abstained"], frame["class"], plain["class"], strict=True):
        assert name == (None if unsure else before)
    assert "abstained" not in plain.columns
    empty = score(animals, Batch([], [], pl.DataFrame({"age": []}), []), AnswerOptions(abstain=0.05))
    assert pl.concat([empty, frame]).height == 5


def test_a_rate_below_what_validation_rows_support_is_refused(animals: LoadedVersion) -> None:
    status, answer = ask(animals, "/v1/predict", {"input": ROWS, "options": {"abstain": 0.02}})
    assert (status, answer["error"]) == (
        400,
        "options.abstain: found 0.02; allowed: from 0.0313, because 400 validation samples of model version 1 show no "
        "lower error rate with 95 % confidence. Fix: a higher rate, or a version with more validation samples "
        "(data.validation_fraction)",
    )
    assert ask(animals, "/v1/predict", {"input": ROWS, "options": {"abstain": 0.0313}})[0] == 200


@pytest.mark.parametrize("rate", [0, 1, 2, -0.1, True, "0.1", [0.1], 1e400])
def test_a_rate_that_is_none_is_refused(animals: LoadedVersion, rate: Any) -> None:
    with pytest.raises(ValueError, match=r"^options\.abstain: found .*; allowed: an error rate above 0 and below 1"):
        animals.additions.read({"abstain": rate}, "options.")


@pytest.mark.parametrize("target", [Numbers(("price",), (100.0,), (20.0,)), Labels(("red", "round"))])
def test_problems_without_classes_do_not_abstain(tmp_path: Path, target: Target) -> None:
    other = version(tmp_path, target)
    status, answer = ask(other, "/v1/predict", {"input": ROWS, "options": {"abstain": 0.05}})
    assert status == 400
    assert answer["error"] == (
        f"options.abstain: model version 1 predicts {target.description}; allowed for versions that predict one of "
        "several classes. Fix: leave it out"
    )


def test_an_older_version_says_that_it_has_no_thresholds(tmp_path: Path) -> None:
    older = version(tmp_path, ANIMALS)
    status, answer = ask(older, "/invocations", {"dataframe_records": ROWS, "params": {"abstain": 0.05}})
    assert status == 400
    assert answer["error"].startswith(
        "params.abstain: model version 1 was registered without thresholds for abstention. Fix: train a new version"
    )
    assert "abstain" not in str(document(older))


def test_openapi_has_abstention(animals: LoadedVersion) -> None:
    schemas = document(animals)["components"]["schemas"]
    assert schemas["Request"]["properties"]["options"]["properties"]["abstain"]["minimum"] == 0.0312345
    assert schemas["Prediction"]["properties"]["class"]["enum"] == [*ANIMALS.names, None]
    assert "abstained" in schemas["Predictions"]["properties"]


def test_novelty_is_the_share_of_rows_that_are_less_unusual(tmp_path: Path, animals: LoadedVersion) -> None:
    plain = version(tmp_path, ANIMALS)
    wanted = {"input": ROWS, "options": {"novelty": True}}
    status, refused = ask(plain, "/v1/predict", wanted)
    assert status == 400
    assert refused["error"].startswith("options.novelty: model version 1 was registered without novelty scores.")
    assert ask(plain, "/v1/predict", {"input": ROWS, "options": {"novelty": False}})[0] == 200
    files.write_json(tmp_path / NOVELTY, to_plain(Novelty.of(plain.predict(plain.kind.decode(ROWS[:1], INPUT)))))
    names = "/v1/predict", "/invocations", "/v2/models/model/infer"
    numeric = {"dataframe_records": ROWS, "params": {"novelty": True}}
    tensors = {"inputs": [AGES], "parameters": {"novelty": True, "interval": None}}
    loaded = LoadedVersion(Identity("model", "1", "run", None), tmp_path)
    own, mlflow, v2 = (
        ask(loaded, path, content)[1] for path, content in zip(names, (wanted, numeric, tensors), strict=True)
    )
    assert own["novelty"] is True
    shares = [row["novelty"] for row in own["predictions"]]
    assert set(shares) <= {0.0, 1.0}
    assert mlflow["novelty"] == v2["outputs"][1]["data"] == shares
    batch = Batch(["rows.csv"] * 4, [1, 2, 3, 4], pl.DataFrame({"age": ["5", "20", "41", "60"]}), [""] * 4)
    assert score(loaded, batch, AnswerOptions(novelty=True))["novelty"].to_list() == shares
    assert ask(loaded, "/v1/predict", {"input": ROWS, "options": {"novelty": 1}})[0] == 400
    assert "novelty" not in ask(loaded, "/v1/predict", {"input": ROWS, "options": {"novelty": False}})[1]


def test_flat_answers_are_unusual_beside_sure_ones() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(5000, 10)) + 6.0 * np.eye(10)[random.integers(0, 10, 5000)]
    sure, flat = (np.exp(each) / np.exp(each).sum(axis=1, keepdims=True) for each in (logits, logits / 5))
    novelty = Novelty.of(sure[:2500].astype(np.float32))
    assert (novelty.rows, len(novelty.quantiles)) == (2500, 1000)
    usual = novelty.shares(sure[2500:].astype(np.float32))
    assert np.quantile(usual, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)
    assert novelty.shares(flat.astype(np.float32)).mean() > 0.95
    certain = np.tile(np.array([[1.0, 0.0]], np.float32), (3, 1))
    assert Novelty.of(certain).shares(certain).tolist() == [0.0] * 3
    assert Novelty.of(certain).shares(np.array([[np.nan, np.nan], [0.5, 0.5]], np.float32)).tolist() == [1.0, 1.0]
    assert Novelty.of(np.empty((0, 2), np.float32)).shares(certain).tolist() == [0.0] * 3


@pytest.mark.parametrize("classes", [2, 7, 10, 100])
def test_novelty_of_a_row_is_equal_in_any_batch(classes: int) -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(classes, 0.2), 500).astype(np.float32)
    novelty = Novelty.of(shares)
    together = novelty.shares(shares)
    for size in (1, 2, 3, 32):
        apart = [novelty.shares(shares[start : start + size]) for start in range(0, len(shares), size)]
        assert np.array_equal(np.concatenate(apart), together)
    assert np.array_equal(novelty.shares(np.asfortranarray(shares)), together)


def test_thresholds_of_another_format_are_named(tmp_path: Path) -> None:
    version(tmp_path, ANIMALS, 0.5)
    files.write_json(tmp_path / ABSTENTION, files.read_json(tmp_path / ABSTENTION) | {"format": 2})
    with pytest.raises(RegistryError, match=r"^model version 1: abstention\.json: format: "):
        LoadedVersion(Identity("model", "1", "run", None), tmp_path)


def test_saturated_confidence_is_answered() -> None:
    certain = np.tile(np.array([[1.0, 0.0]], np.float32), (400, 1))
    thresholds = Abstention.of(certain.max(axis=1).astype(float), np.ones(400, bool), confidence=0.95)
    assert not thresholds.abstains(certain, 0.02).any()


def without_thresholds(folder: Path) -> Canary:
    """Return a canary that answers all requests but those that ask for an error rate."""
    older = version(folder, ANIMALS)
    older.identity = Identity("model", "2", "other run", None)
    watcher: Any = PinnedVersion(older)
    watcher.is_named = True
    return Canary(watcher, ServingSettings(canary_share=1.0), folder / "withdrawn.json")


def test_the_served_version_answers_what_the_canary_cannot(tmp_path: Path, animals: LoadedVersion) -> None:
    canary = without_thresholds(tmp_path / "older")
    server = ModelServer(PinnedVersion(animals), ServingSettings(), canary=canary)
    answers, state = [], random.getstate()
    for path, rate in (("predict", None), ("predict", 0.05), ("explain", 0.05), ("predict", 0.001)):
        content = {"input": ROWS[:1], "options": {} if rate is None else {"abstain": rate}}
        status, _, text = exchange(server, f"/v1/{path}", json.dumps(content).encode())
        answers.append((status, json.loads(text).get("version"), json.loads(text).get("error", "")[:30]))
    canary.close()
    random.setstate(state)
    assert answers == [(200, "2", ""), (200, "1", ""), (200, "1", ""), (400, None, "options.abstain: found 0.001; ")]
    assert canary.withdrawn == ""


def test_a_fault_of_the_served_version_is_not_the_canarys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arrays: Any) -> Any:
        raise RuntimeError("no memory")

    served, failed = version(tmp_path / "served", ANIMALS, 0.5), list[str]()
    monkeypatch.setattr(served, "predict", fail)
    canary, state = without_thresholds(tmp_path / "older"), random.getstate()
    monkeypatch.setattr(canary, "failed", lambda loaded, client: failed.append(loaded.identity.version))
    server = ModelServer(PinnedVersion(served), ServingSettings(), canary=canary)
    content = {"input": ROWS, "options": {"abstain": 0.05}}
    status, _, _ = exchange(server, "/v1/predict", json.dumps(content).encode())
    canary.close()
    random.setstate(state)
    assert (status, failed) == (500, ["1"])
