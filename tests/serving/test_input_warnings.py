"""Requests unlike the training samples: refused by the limits of ingest, or answered with warnings, in every format.

The facts come from a real ingest of a small table, images, texts and an own kind; the models are not trained.
"""

import io
import json
import logging
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from asgi import exchange
from mlflow.exceptions import MlflowException
from PIL import Image

from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.kinds import Column, ImageInput, Input, ModelSpec, TableInput, TextInput, input_from_json, to_json
from ratchet.kinds.input_warnings import input_warnings
from ratchet.kinds.registry import kind_of
from ratchet.problems import Classes
from ratchet.registry.pyfunc import ServedModel
from ratchet.serving.app import ModelServer
from ratchet.serving.batch.row_reader import Batch
from ratchet.serving.openapi import document
from ratchet.serving.scoring import score
from ratchet.serving.versions.alias_watcher import PinnedVersion
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.settings.model import DataSettings, ServingSettings
from ratchet.tokens.tokenizers import fit_tokenizer
from ratchet.training import build, save_model
from ratchet.training.models import load_model

DEFAULTS = {name: field.default for name, field in DataSettings.model_fields.items()}
GOOD = {"age": 30, "fare": 12.5, "sex": "male", "town": "Orléans", "born": "1990-05-01"}
FAR_AGE = "far from the training values 20 to 59"
OWN_KIND = """
import numpy as np


class Windows:
    def __init__(self, path):
        pass

    def __len__(self):
        return 60

    def __getitem__(self, place):
        return {"value": [place, place + 1], "label": "ab"[place % 2]}

    @staticmethod
    def arrays(value):
        return {"load": np.asarray(value, np.float32)}
"""


def ingested(root: Path, **changes: Any) -> Manifest:
    return ingest(
        IngestTask(
            DataSettings(**{**DEFAULTS, **changes}),
            packed=root / "packed",
            quarantine=root / "quarantine.parquet",
            root=root,
        )
    )


def served(root: Path, described: Input, target: Any, name: str) -> LoadedVersion:
    """Store an untrained model, and load it for the server."""
    spec = ModelSpec(name, described, target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_model(root / "model", build(spec).state_dict(), spec, about={"training": {}})
    return LoadedVersion(Identity("model", "1", "run", None), root / "model")


def ask(server: ModelServer, path: str, content: Any, *, method: str = "POST") -> tuple[int, Any]:
    """Return status and answer of a server in this process; content: JSON, its text, or an image file."""
    is_file = isinstance(content, bytes)
    body = content if is_file else (content if isinstance(content, str) else json.dumps(content)).encode()
    kind = b"image/png" if is_file else b"application/json"
    status, _, text = exchange(server, path, body, kind=kind, method=method)
    return status, text.decode() if method == "GET" else json.loads(text)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LoadedVersion:
    """A model of a table: 40 ages from 20 to 59, fares, two sexes, three towns, dates, some fares missing."""
    root = tmp_path_factory.mktemp("table")
    towns = ("Orléans", "Köln", "Oslo")
    rows = [
        f"{20 + place % 40},{'' if place % 9 == 0 else place / 2},{('male', 'female')[place % 2]},"
        f"{unicodedata.normalize('NFD', towns[place % 3]) if place % 2 else towns[place % 3]},"
        f"19{60 + place % 40}-05-01,{'yes' if place % 3 else 'no'}"
        for place in range(400)
    ]
    (root / "rows.csv").write_text("\n".join(["age,fare,sex,town,born,label", *rows]), encoding="utf-8")
    manifest = ingested(root, kind="table", path="rows.csv")
    return served(root, manifest.input, manifest.target, "mlp")


@pytest.fixture
def server(table: LoadedVersion) -> ModelServer:
    return ModelServer(PinnedVersion(table), ServingSettings())


def test_both_unicode_forms_of_a_category_are_one(table: LoadedVersion) -> None:
    town = next(column for column in table.spec.table.columns if column.name == "town")
    assert sorted(town.categories) == ["Köln", "Orléans", "Oslo"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"fare": None}, []),
        ({"age": 5}, []),  # younger than in training, but by less than the width of the training ages
        ({"town": unicodedata.normalize("NFD", "Orléans")}, []),
        ({"age": "33", "born": "1931-01-01"}, []),
        ({"age": -1e38}, [f"age: found -1e+38, {FAR_AGE}"]),
        ({"age": 2**64 - 1}, [f"age: found 1.84467e+19, {FAR_AGE}"]),
        ({"age": 2**70}, [f"age: found 1.18059e+21, {FAR_AGE}"]),
        ({"age": None}, ["age: is missing; every training row has a value"]),
        ({"sex": "MALE"}, ["sex: found 'MALE', which no training row has. Fix: write 'male'"]),
        ({"sex": False}, ["sex: found 'false', which no training row has"]),
        (
            {"born": "2525-01-01"},
            ["born: found 2525-01-01, far from the training values 1960-05-01 to 1999-05-01"],
        ),
    ],
)
def test_three_formats_name_what_no_training_row_is_like(
    server: ModelServer, changed: dict[str, Any], expected: list[str]
) -> None:
    row = GOOD | changed
    warnings = [expected] if expected else None
    status, answer = ask(server, "/v1/predict", {"input": [row]})
    assert (status, answer.get("warnings"), len(answer["predictions"])) == (200, warnings, 1)
    status, answer = ask(server, "/invocations", {"dataframe_records": [row]})
    assert (status, answer.get("warnings")) == (200, warnings)
    kinds = {int: "UINT64", float: "FP64", bool: "BOOL", str: "BYTES", type(None): "FP64"}
    kind = {name: "FP64" if value == -1e38 or value == 2**70 else kinds[type(value)] for name, value in row.items()}
    tensors = [{"name": name, "shape": [1], "datatype": kind[name], "data": [row[name]]} for name in row]
    status, answer = ask(server, "/v2/models/model/infer", {"inputs": tensors})
    text = answer["parameters"].get("warnings")
    assert (status, text and json.loads(text)) == (200, warnings)


def test_warnings_are_counted_by_reason(server: ModelServer) -> None:
    ask(server, "/v1/predict", {"input": [GOOD | {"age": -1e38, "sex": "MALE"}, GOOD | {"age": 1e9}, GOOD]})
    _, metrics = ask(server, "/metrics", {}, method="GET")
    assert 'ratchet_input_warnings_total{model="model",reason="range",version="1"} 2.0' in metrics
    assert 'ratchet_input_warnings_total{model="model",reason="category",version="1"} 1.0' in metrics


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fare": False}, "input: column 'fare': found a boolean; allowed: a number, or an empty value"),
        ({"born": True}, "input: column 'born': found a boolean; allowed: a date, or an empty value"),
        ({"age": "old"}, "input: column 'age': 'old' is no number. Fix: correct it, or leave it empty"),
        ({"fare": 3, "age": True}, "input: column 'age': found a boolean; allowed: a number, or an empty value"),
        ({"age": 1e39}, "input: column 'age' has an infinite number. Fix: correct it, or leave it empty"),
    ],
)
def test_a_value_of_another_type_is_refused(server: ModelServer, changed: dict[str, Any], message: str) -> None:
    assert ask(server, "/v1/predict", {"input": [GOOD | changed]}) == (400, {"error": message})
    status, answer = ask(server, "/v1/predict", {"input": [GOOD, GOOD | changed]})
    assert (status, answer["error"].startswith("input: column ")) == (400, True)


def test_loader_refuses_booleans_and_logs_warnings(table: LoadedVersion, caplog: pytest.LogCaptureFixture) -> None:
    model = ServedModel(*load_model(table._folder))
    with caplog.at_level(logging.WARNING):
        model.predict(pd.DataFrame([GOOD]))
        assert not caplog.records
        model.predict(pd.DataFrame([GOOD, GOOD | {"sex": "MALE"}]))
    assert [record.message for record in caplog.records] == [
        "1 of 2 rows are unlike the training samples; row 1: sex: found 'MALE', which no training row has. "
        "Fix: write 'male'"
    ]
    for fares in ([1.0, True], [True, 1.0], [True, None]):
        rows = [GOOD | {"fare": fare} for fare in fares]
        with pytest.raises(MlflowException, match=r"fare.*bool"):
            model.predict(pd.DataFrame(rows))


def test_loader_answers_rows_that_lack_a_column(table: LoadedVersion, caplog: pytest.LogCaptureFixture) -> None:
    model, short = ServedModel(*load_model(table._folder)), {name: GOOD[name] for name in GOOD if name != "age"}
    assert model.predict(pd.DataFrame([GOOD, short])).shape == (2, 2)
    assert "row 1: age: is missing; every training row has a value" in caplog.text


def test_loader_refuses_a_column_that_is_given_twice(table: LoadedVersion) -> None:
    rows = pd.DataFrame([GOOD, GOOD])
    with pytest.raises(MlflowException, match=r"column 'sex' is given twice"):
        ServedModel(*load_model(table._folder)).predict(pd.concat([rows, rows[["sex"]]], axis=1))


def test_infinite_number_beside_nan_is_refused(server: ModelServer) -> None:
    content = json.dumps({"input": [GOOD | {"age": 123, "fare": float("nan")}]})
    status, answer = ask(server, "/v1/predict", content.replace("123", "-1e400"))
    assert (status, "found -1e400; allowed: finite numbers" in answer["error"]) == (400, True), answer
    assert ask(server, "/v1/predict", content)[0] == 200


def test_column_is_found_by_its_own_spelling_first() -> None:
    names = [unicodedata.normalize(form, "ville née") for form in ("NFC", "NFD")]
    described = TableInput(tuple(Column(name, "categorical", categories=("a",)) for name in names))
    row = {names[0]: "x", names[1]: "y"}
    warnings = input_warnings(
        kind_of(described).decode([row], described), described, {name: [row[name]] for name in reversed(names)}
    )
    assert [warning.text for warning in warnings] == [
        f"{name}: found {row[name]!r}, which no training row has" for name in names
    ]


def test_booleans_and_missing_dates_of_pandas_are_read() -> None:
    columns = (Column("born", "datetime", 0.0, 1e8), Column("member", "categorical", categories=("True", "False")))
    rows = pd.DataFrame({"born": pd.to_datetime(["1970-01-02", None]), "member": pd.Series([True, None], dtype=object)})
    numbers, codes = kind_of(TableInput(columns)).decode(rows, TableInput(columns))
    assert (numbers[0, 0], bool(np.isnan(numbers[1, 0])), codes.ravel().tolist()) == (86400.0, True, [2, 0])


def test_files_have_warnings_beside_their_answers(table: LoadedVersion) -> None:
    rows = pl.DataFrame([GOOD | {"age": -1e38, "sex": "MALE"}, GOOD, GOOD | {"born": "x"}], strict=False)
    frame = score(table, Batch(["rows.csv"] * 3, [1, 2, 3], rows, [""] * 3))
    assert frame["warnings"].to_list() == [
        f"age: found -1e+38, {FAR_AGE}; sex: found 'MALE', which no training row has. Fix: write 'male'", None, None,
    ]  # fmt: skip
    assert frame["refused"].to_list()[:2] == [None, None]
    assert "'x' is no date" in frame["refused"][2]


def test_a_model_without_the_facts_is_served(table: LoadedVersion, tmp_path: Path) -> None:
    """An earlier release wrote columns without `complete`, and categories in the form of the file."""
    content = to_json(table.spec.input)
    for column in content["columns"]:
        del column["complete"]
        column["categories"] = [unicodedata.normalize("NFD", name) for name in column["categories"]]
    older = served(tmp_path, input_from_json(content), table.spec.target, "mlp")
    server = ModelServer(PinnedVersion(older), ServingSettings())
    status, answer = ask(server, "/v1/predict", {"input": [GOOD | {"age": None}, GOOD | {"sex": "MALE"}]})
    assert (status, [len(row) for row in answer["warnings"]]) == (200, [0, 1])


def test_facts_are_no_part_of_a_models_identity(table: LoadedVersion) -> None:
    other = replace(table.spec.table, columns=tuple(replace(each, complete=False) for each in table.spec.table.columns))
    spec = replace(table.spec, input=other)
    assert spec.to_json() != table.spec.to_json()
    assert (spec.identity, spec.input) == (table.spec.identity, table.spec.input)


def png(width: int, height: int, *, frames: int = 1) -> bytes:
    file = io.BytesIO()
    images = [Image.new("RGB", (width, height), (place, 0, 0)) for place in range(frames)]
    images[0].save(file, "PNG", save_all=frames > 1, append_images=images[1:])
    return file.getvalue()


def test_image_files_have_the_limits_of_ingest(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for place in range(40):
        path = tmp_path / "images" / "ab"[place % 2] / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    manifest = ingested(tmp_path, source="image-folder", path="images", min_side=6, max_aspect=3.0, max_pixels=5000)
    server = ModelServer(PinnedVersion(served(tmp_path, manifest.input, manifest.target, "convnet")), ServingSettings())
    for file, message in (
        (png(1, 1), "found 1 x 1 pixels; allowed, as in the training data: sides of 6 or more"),
        (png(5, 8), "found 5 x 8 pixels; allowed, as in the training data: sides of 6 or more"),
        (png(40, 10), "found 40 x 10 pixels; allowed, as in the training data: a long side of 3 short sides"),
        (png(80, 80), "found 80 x 80 pixels; allowed, as in the training data: 5,000 pixels"),
        (png(16, 16, frames=2), "has several frames; allowed, as in the training data: one. Fix: keep one"),
    ):
        status, answer = ask(server, "/v1/predict", file)
        assert (status, message in answer["error"]) == (400, True), answer
    assert ask(server, "/v1/predict", png(16, 16))[0] == 200
    pixels = np.zeros((1, 16, 16, 3), int).tolist()
    assert ask(server, "/v1/predict", {"input": pixels})[0] == 200
    pixels[0][3][3][1] = False
    assert ask(server, "/v1/predict", {"input": pixels})[0] == 400


@pytest.mark.parametrize(("depth", "largest"), [(None, 255), (12, 4095)])
def test_images_scaled_to_one_have_a_warning(tmp_path: Path, depth: int | None, largest: int) -> None:
    """Whole floats are allowed, so 0.0 and 1.0 alone are pixels: nearly black ones."""
    described = ImageInput(8, 8, 1, (100.0,), (50.0,), depth=depth)
    rows = np.eye(8)[None, ..., None] * np.array([1.0, 0.0, 2.0, 1.0]).reshape(4, 1, 1, 1)
    target, warning = Classes(("a", "b")), "pixels: found only 0 and 1, and the training images have larger values. "
    server = ModelServer(PinnedVersion(served(tmp_path, described, target, "convnet")), ServingSettings())
    for values in (rows.tolist(), rows.astype(int).tolist()):
        status, answer = ask(server, "/v1/predict", {"input": values})
        fix = f"{warning}Fix: if they are scaled to 0..1, multiply by {largest}"
        assert (status, answer["warnings"]) == (200, [[fix], [], [], [fix]])
    tensor = {"name": "pixels", "datatype": "UINT8" if depth is None else "UINT16", "shape": [4, 8, 8, 1]}
    status, answer = ask(
        server, "/v2/models/model/infer", {"inputs": [tensor | {"data": rows.ravel().astype(int).tolist()}]}
    )
    assert json.loads(answer["parameters"]["warnings"]) == [[fix], [], [], [fix]]
    _, page = ask(server, "/metrics", "", method="GET")
    assert 'ratchet_input_warnings_total{model="model",reason="scale",version="1"} 6.0' in page
    masks = replace(described, mean=(0.4,), std=(0.5,))
    assert input_warnings((rows.astype(masks.raw_dtype),), masks, None) == ()


def test_limits_of_images_have_the_defaults_of_ingest() -> None:
    described = ImageInput(8, 8, 3, (0.0,) * 3, (1.0,) * 3)
    for name in ("min_side", "max_aspect", "max_pixels"):
        assert getattr(described, name) == DEFAULTS[name]


@pytest.mark.parametrize("kind", ["hashed", "words"])
def test_texts_unlike_the_training_texts_have_warnings(tmp_path: Path, kind: str) -> None:
    texts = ["a good film, though long", "a bad film with a plot", "the café scene is good, the film is long"] * 2
    described = fit_tokenizer(texts, kind)
    model = {"hashed": "bag", "words": "transformer"}[kind]
    server = ModelServer(PinnedVersion(served(tmp_path, described, Classes(("bad", "good")), model)), ServingSettings())
    rows = ["A GOOD café!", "", "  ", "очень хороший фильм", "映画はとても良い", "good фильм 7 film"]
    status, answer = ask(server, "/v1/predict", {"input": rows})
    assert status == 200
    none = {"hashed": [], "words": ["the text has no word that the model knows"]}[kind]
    strange = [*none, "the text has mostly characters that no training text has"]
    assert answer["warnings"] == [[], ["the text has no words"], ["the text has no words"], strange, strange, []]
    half = 1 << 15  # characters; the first two halves are judged
    _, answer = ask(server, "/v1/predict", {"input": ["a " * half + "ф" * half * 9, "a" * (half - 9) + "ф" * half]})
    assert [texts[-1:] for texts in answer["warnings"]] == [[], strange[-1:]]
    assert ask(server, "/v1/predict", {"input": [5]})[0] == 400
    older = replace(described, characters="")
    assert isinstance(input_from_json(to_json(older)), TextInput)


def test_own_arrays_far_from_training_have_warnings(tmp_path: Path) -> None:
    (tmp_path / "windows.py").write_text(OWN_KIND)
    (tmp_path / "data").mkdir()
    manifest = ingested(tmp_path, kind="windows:Windows", code="windows.py", path="data")
    described = replace(manifest.input, root=str(tmp_path))
    server = ModelServer(PinnedVersion(served(tmp_path, described, manifest.target, "mlp")), ServingSettings())
    status, answer = ask(server, "/v1/predict", {"input": [[30, 31], [-1e30, 31]]})
    assert status == 200
    assert answer["warnings"][0] == []
    assert answer["warnings"][1][0].startswith("load: found -1e+30, far from the training values ")
    assert ask(server, "/v1/predict", {"input": {"load": [[30, 31]]}})[0] == 200
    for wrong in (["30", 31], [True, 31], [None, 31]):
        status, answer = ask(server, "/v1/predict", {"input": {"load": [wrong]}})
        assert (status, "load has values that are no finite float32" in answer["error"]) == (400, True)


def test_loader_takes_series_tuples_and_numpy_numbers(tmp_path: Path) -> None:
    (tmp_path / "windows.py").write_text(OWN_KIND)
    (tmp_path / "data").mkdir()
    manifest = ingested(tmp_path, kind="windows:Windows", code="windows.py", path="data")
    version = served(tmp_path, replace(manifest.input, root=str(tmp_path)), manifest.target, "mlp")
    model, values = ServedModel(*load_model(version._folder)), [[30, 31], [32, 33]]
    expected = model.predict(values)
    scalars = {"load": [[np.float32(30), np.int64(31)], [np.float64(32), 33]]}
    for same in (pd.Series(values), tuple(values), pl.Series(values), scalars):
        assert np.array_equal(model.predict(same), expected)
    with pytest.raises(MlflowException, match="load has values that are no finite float32"):
        model.predict({"load": [[np.True_, 31]]})


def test_openapi_describes_the_warnings(table: LoadedVersion) -> None:
    schemas = document(table)["components"]["schemas"]
    for name in ("Answer", "Predictions"):
        assert schemas[name]["properties"]["warnings"] == {"$ref": "#/components/schemas/Warnings"}
    assert schemas["Warnings"]["items"] == {"type": "array", "items": {"type": "string"}}
    assert schemas["Tensors"]["properties"]["parameters"]["properties"]["warnings"]["type"] == "string"
