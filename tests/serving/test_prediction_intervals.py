"""A client asks for prediction intervals or sets, in each format and for files; a version without them says so."""

import json
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
from ratchet.kinds.protocol import InputError
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.problems.regions import CALIBRATION, Calibration
from ratchet.serving.app import ModelServer
from ratchet.serving.batch.row_reader import Batch
from ratchet.serving.formats.request_formats import Answer
from ratchet.serving.formats.v2 import V2Format
from ratchet.serving.openapi import document
from ratchet.serving.scoring import score
from ratchet.serving.versions.additions import AnswerOptions
from ratchet.serving.versions.alias_watcher import PinnedVersion
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.settings.model import ServingSettings
from ratchet.training import build, save_model
from ratchet.typed_json import to_plain

INPUT = TableInput((Column("age", "numeric", 30.0, 14.0),))
PRICE, PAIR = Numbers(("price",), (100.0,), (20.0,)), Numbers(("lower", "area"), (100.0, 5.0), (20.0, 2.0))
ANIMALS = Classes(("ant", "bee", "cat"))
ROWS = [{"age": 20}, {"age": 41}]


def version(folder: Path, target: Target, *scores: list[float]) -> LoadedVersion:
    """Store an untrained model with the calibration of these scores of validation rows, one list for each output."""
    spec = ModelSpec("mlp", INPUT, target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_model(folder, build(spec).state_dict(), spec, about={"training": {}})
    if scores:
        files.write_json(folder / CALIBRATION, to_plain(Calibration.of(np.array(scores).T)))
    return LoadedVersion(Identity("model", "1", "run", None), folder)


def ask(loaded: LoadedVersion, path: str, content: Any) -> tuple[int, Any]:
    """Return status and answer of a server in this process."""
    server = ModelServer(PinnedVersion(loaded), ServingSettings())
    status, headers, text = exchange(server, path, json.dumps(content).encode())
    if (length := headers.get(b"inference-header-content-length")) is None:
        return status, json.loads(text)
    return status, (json.loads(text[: int(length)]), text[int(length) :])


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> LoadedVersion:
    """A version with errors from 1 to 39 on validation rows: 36 of 40 is the rank of the 90 % interval."""
    return version(tmp_path_factory.mktemp("priced"), PRICE, [float(error) for error in range(1, 40)])


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> LoadedVersion:
    return version(tmp_path_factory.mktemp("animals"), ANIMALS, [0.0] * 5 + [0.6] * 4 + [0.99] * 10)


def test_own_format_has_the_ends_beside_the_values(priced: LoadedVersion) -> None:
    status, answer = ask(priced, "/v1/predict", {"input": ROWS, "options": {"interval": 0.9}})
    assert (status, answer["interval"]) == (200, 0.9)
    for row in answer["predictions"]:
        middle = row["values"]["price"]
        assert (row["lower"]["price"], row["upper"]["price"]) == pytest.approx((middle - 36, middle + 36), abs=1e-4)
    _, plain = ask(priced, "/v1/predict", {"input": ROWS})
    assert [set(row) for row in plain["predictions"]] == [{"values"}] * 2
    assert "interval" not in plain


def test_three_formats_have_the_same_ends(priced: LoadedVersion) -> None:
    _, own = ask(priced, "/v1/predict", {"input": ROWS, "options": {"interval": 0.8}})
    ends = [{"lower": row["lower"], "upper": row["upper"]} for row in own["predictions"]]
    _, mlflow = ask(priced, "/invocations", {"dataframe_records": ROWS, "params": {"interval": 0.8}})
    assert mlflow["intervals"] == ends
    tensor = {"name": "age", "shape": [2], "datatype": "FP32", "data": [20.0, 41.0]}
    request = {"inputs": [tensor], "parameters": {"interval": 0.8}}
    _, open_inference = ask(priced, "/v2/models/model/infer", request)
    outputs = {output["name"]: output for output in open_inference["outputs"]}
    assert list(outputs)[1:] == ["lower", "upper"]
    for end in ("lower", "upper"):
        assert (outputs[end]["datatype"], outputs[end]["shape"]) == ("FP32", [2, 1])
        assert outputs[end]["data"] == [row[end]["price"] for row in ends]
    request["parameters"]["binary_data_output"] = True
    _, (head, tail) = ask(priced, "/v2/models/model/infer", request)
    assert [output["parameters"]["binary_data_size"] for output in head["outputs"]] == [8, 8, 8]
    assert np.frombuffer(tail, "<f4")[2:4].tolist() == pytest.approx(outputs["lower"]["data"])


def test_a_client_may_name_the_tensors_of_an_answer(priced: LoadedVersion) -> None:
    tensor = {"name": "age", "shape": [2], "datatype": "FP32", "data": [20.0, 41.0]}
    request: dict[str, Any] = {"inputs": [tensor], "parameters": {"interval": 0.8}}
    _, whole = ask(priced, "/v2/models/model/infer", request)
    everything = {output["name"]: output["data"] for output in whole["outputs"]}
    wanted = {"name": "upper", "parameters": {"binary_data": True}}, {"name": "lower"}
    _, (head, tail) = ask(priced, "/v2/models/model/infer", {**request, "outputs": wanted})
    assert [output["name"] for output in head["outputs"]] == ["upper", "lower"]
    assert np.frombuffer(tail, "<f4").tolist() == pytest.approx(everything["upper"])
    assert head["outputs"][1]["data"] == everything["lower"]
    faults = (
        ({"outputs": wanted}, "outputs[0].name: found 'upper'; allowed: 'probabilities', each once"),
        (
            {**request, "outputs": [wanted[1]] * 2},
            "outputs[1].name: found 'lower'; allowed: 'probabilities', 'lower', 'upper', each once",
        ),
        ({**request, "outputs": "lower"}, "outputs: allowed: a list with 'probabilities', 'lower', 'upper'"),
        (
            {**request, "outputs": ["lower"]},
            "outputs[0].name: found 'lower'; allowed: 'probabilities', 'lower', 'upper', each once",
        ),
    )
    for changed, message in faults:
        status, answer = ask(priced, "/v2/models/model/infer", {"inputs": [tensor], **changed})
        assert (status, answer["error"]) == (400, message)


def test_predictions_of_a_double_model_are_float32(priced: LoadedVersion) -> None:
    tensor = {"name": "age", "shape": [1], "datatype": "FP32", "data": [20.0]}
    request = V2Format(1).read(json.dumps({"inputs": [tensor]}).encode(), {}, priced)
    doubles: Any = np.array([[0.1]])
    body, _ = V2Format(1).write(Answer("id", priced, doubles), request)
    (output,) = json.loads(body)["outputs"]
    assert (output["datatype"], output["data"]) == ("FP32", [pytest.approx(0.1)])


def test_sets_of_classes_are_named_or_a_mask(animals: LoadedVersion) -> None:
    _, own = ask(animals, "/v1/predict", {"input": ROWS, "options": {"interval": 0.95, "top_k": 3}})
    assert [sorted(row["set"]) for row in own["predictions"]] == [["ant", "bee", "cat"]] * 2
    assert [row["set"] for row in own["predictions"]] == [
        [top["class"] for top in row["top"]] for row in own["predictions"]
    ]
    _, mlflow = ask(animals, "/invocations", {"dataframe_records": ROWS, "params": {"interval": 0.5}})
    sets = [row["set"] for row in mlflow["intervals"]]
    tensor = {"name": "age", "shape": [2], "datatype": "FP32", "data": [20.0, 41.0]}
    for binary in (False, True):
        parameters = {"interval": 0.5, "binary_data_output": binary}
        _, answer = ask(animals, "/v2/models/model/infer", {"inputs": [tensor], "parameters": parameters})
        head = answer[0] if binary else answer
        assert (head["outputs"][1]["datatype"], head["outputs"][1]["shape"]) == ("BOOL", [2, 3])
        mask = np.frombuffer(answer[1][-6:], bool).tolist() if binary else head["outputs"][1]["data"]
        assert [sum(mask[:3]), sum(mask[3:])] == [len(names) for names in sets]


@pytest.mark.parametrize("level", [0.49, 0.995, 1, 90, -0.9, True, "0.9", [0.9], 1e400])
def test_a_level_that_is_none_is_refused(priced: LoadedVersion, level: Any) -> None:
    with pytest.raises(InputError, match=r"^options\.interval: found .*; allowed: 0.5 to 0.99 in steps of 0.01$"):
        priced.additions.read({"interval": level}, "options.")


def test_a_level_beyond_the_validation_rows_is_refused(priced: LoadedVersion) -> None:
    status, answer = ask(priced, "/v1/predict", {"input": ROWS, "options": {"interval": 0.98}})
    assert (status, answer["error"]) == (
        400,
        "options.interval: found 0.98; allowed: up to 0.97, because 39 validation samples calibrate model version 1. "
        "Fix: a lower level, or a version with more validation samples (data.validation_fraction)",
    )
    assert ask(priced, "/v1/predict", {"input": ROWS, "options": {"interval": 0.97}})[0] == 200


def test_an_older_version_is_served_and_has_no_intervals(tmp_path: Path) -> None:
    older = version(tmp_path, PRICE)
    assert ask(older, "/v1/predict", {"input": ROWS})[0] == 200
    status, answer = ask(older, "/invocations", {"dataframe_records": ROWS, "params": {"interval": 0.9}})
    assert status == 400
    assert answer["error"].startswith("params.interval: model version 1 was registered without prediction intervals.")
    assert "interval" not in document(older)["components"]["schemas"]["Request"]["properties"]["options"]["properties"]


def test_labels_have_no_intervals(tmp_path: Path) -> None:
    several = version(tmp_path, Labels(("red", "round")))
    status, answer = ask(several, "/v1/predict", {"input": ROWS, "options": {"interval": 0.9}})
    assert (status, answer["error"]) == (
        400,
        "options.interval: model version 1 predicts 2 labels; allowed for versions that predict numbers or one of "
        "several classes. Fix: leave it out",
    )


def test_a_calibration_of_another_format_is_named(tmp_path: Path) -> None:
    version(tmp_path, PRICE, [1.0] * 20)
    files.write_json(tmp_path / CALIBRATION, files.read_json(tmp_path / CALIBRATION) | {"format": 2})
    with pytest.raises(RegistryError, match=r"^model version 1: intervals\.json: format: "):
        LoadedVersion(Identity("model", "1", "run", None), tmp_path)


def test_openapi_has_the_option_and_the_fields(priced: LoadedVersion, animals: LoadedVersion) -> None:
    for loaded, highest, fields in ((priced, 0.97, {"values", "lower", "upper"}), (animals, 0.95, {"class", "set"})):
        schemas = document(loaded)["components"]["schemas"]
        for options in (schemas["Request"]["properties"]["options"], schemas["Invocation"]["properties"]["params"]):
            assert options["properties"]["interval"]["maximum"] == highest
        assert fields <= set(schemas["Prediction"]["properties"])
        assert fields - set(schemas["Predictions"]["properties"]["intervals"]["items"]["properties"]) <= {
            "values", "class",
        }  # fmt: skip
        assert "interval" in schemas["Answer"]["properties"]


def test_files_have_columns_of_the_ends_or_the_set(tmp_path: Path, animals: LoadedVersion) -> None:
    batch = Batch(["rows.csv"] * 3, [1, 2, 3], pl.DataFrame({"age": ["20", "x", "41"]}), [""] * 3)
    pair = version(tmp_path, PAIR, [1.0] * 19, [2.0] * 19)
    frame = score(pair, batch, AnswerOptions(90))
    assert frame.columns[2:8] == ["lower", "area", "lower lower", "upper lower", "lower area", "upper area"]
    assert (frame["upper area"] - frame["area"]).to_list() == pytest.approx([2.0, None, 2.0], abs=1e-5)
    sets = score(animals, batch, AnswerOptions(95))["set"].to_list()
    assert (sets[1], sorted(json.loads(sets[0]))) == (None, ["ant", "bee", "cat"])
    empty = score(animals, Batch([], [], pl.DataFrame({"age": []}), []), AnswerOptions(95))  # no file could be read
    assert pl.concat([empty, score(animals, batch, AnswerOptions(95))]).height == 3
    clash = score(version(tmp_path / "one", Numbers(("lower",), (1.0,), (1.0,)), [1.0] * 19), batch, AnswerOptions(90))
    assert clash.columns[2:5] == ["predicted lower", "lower", "upper"]
