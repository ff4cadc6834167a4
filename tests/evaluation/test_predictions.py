"""Predictions survive their file, and the plots agree with them."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measured import measure_classes as measure

from ratchet.errors import DataError
from ratchet.evaluation.plots import write_confusion, write_reliability
from ratchet.evaluation.predictions import Predictions, read_predictions, write_predictions
from ratchet.problems import Classes
from ratchet.settings.model import EvaluationSettings


@pytest.fixture
def predictions() -> Predictions:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(50, 3)).astype(np.float32)
    ids = tuple(f"photo/{number}.jpg" for number in range(50))
    return Predictions(logits, generator.integers(3, size=50), ids, Classes(("cat", 'dog, "big"', "Fuß")))


def test_predictions_survive_the_file(tmp_path: Path, predictions: Predictions) -> None:
    write_predictions(tmp_path / "predictions.parquet", predictions)
    back = read_predictions(tmp_path / "predictions.parquet")
    assert (back.ids, back.target.names) == (predictions.ids, predictions.target.names)
    assert np.array_equal(back.targets, predictions.targets)
    assert np.array_equal(back.outputs, predictions.outputs)
    table = pq.read_table(tmp_path / "predictions.parquet")
    assert table.column_names == ["id", "label", "predicted", "probability", "logits"]
    assert table.schema.field("logits").type.value_type == pa.float32()


def test_same_predictions_give_the_same_bytes(tmp_path: Path, predictions: Predictions) -> None:
    for name in ("a", "b"):
        write_predictions(tmp_path / name, predictions)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_worst_errors_are_wrong_and_most_confident_first(predictions: Predictions) -> None:
    worst = predictions.worst_errors(10)
    assert not predictions.score[worst].any()
    assert (np.diff(predictions.answers.sureness[worst]) <= 0).all()
    left_out = np.setdiff1d(np.flatnonzero(predictions.score == 0), worst)
    assert predictions.answers.sureness[left_out].max() <= predictions.answers.sureness[worst].min()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "file not found"), (b"", "cannot be read"), (b"PAR1 no table", "cannot be read")]
)
def test_damaged_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "predictions.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_predictions(path)
    assert str(path) in str(caught.value)


def test_other_parquet_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "label": [1]}), tmp_path / "index.parquet")
    with pytest.raises(DataError, match="lacks the columns logits"):
        read_predictions(tmp_path / "index.parquet")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": ["x"]}, ": damaged"),
        ({"label": [2]}, r"row 0 has label 2\. Allowed: 0 to 1\."),
        ({"logits": [1.0]}, ": damaged"),
        ({"logits": [[1.0]]}, ": damaged"),
    ],
)
def test_columns_of_another_kind_are_refused(tmp_path: Path, changed: dict[str, list[object]], message: str) -> None:
    columns = {"id": ["a"], "label": [1], "predicted": [1], "probability": [0.5], "logits": [[0.0, 1.0]], **changed}
    table = pa.table(columns).replace_schema_metadata({"ratchet.classes": '["x", "y"]'})
    pq.write_table(table, tmp_path / "predictions.parquet")
    with pytest.raises(DataError, match=message):
        read_predictions(tmp_path / "predictions.parquet")


def test_duplicate_id_is_refused() -> None:
    with pytest.raises(DataError, match="1 ids occur twice"):
        Predictions(np.zeros((2, 2), np.float32), np.zeros(2, np.int64), ("a", "a"), Classes(("x", "y")))


def test_confusion_has_a_line_for_each_image(tmp_path: Path, predictions: Predictions) -> None:
    write_confusion(tmp_path / "confusion.csv", predictions)
    with (tmp_path / "confusion.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 50
    rows = range(50)
    assert [line["actual"] for line in lines] == [predictions.truth(row) for row in rows]
    assert [line["predicted"] for line in lines] == [predictions.answer(row) for row in rows]


def test_reliability_lines_add_up_to_the_images(tmp_path: Path, predictions: Predictions) -> None:
    metrics = measure(
        predictions.outputs,
        predictions.targets,
        classes=predictions.target.names,
        settings=EvaluationSettings(resamples=100),
    )
    write_reliability(tmp_path / "reliability.csv", metrics.reliability)
    with (tmp_path / "reliability.csv").open(newline="", encoding="utf-8") as file:
        assert sum(int(line["count"]) for line in csv.DictReader(file)) == 50
