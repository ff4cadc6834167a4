"""A version in memory gives a row the same bits in every batch, and answers as the model that was registered."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.errors import RegistryError
from ratchet.exports.example_rows import EXAMPLES, write_examples
from ratchet.exports.onnx_export import export
from ratchet.kinds import Column, ImageInput, ModelSpec, TableInput, TextInput
from ratchet.kinds.registry import kind_of
from ratchet.problems import Classes, Numbers
from ratchet.registry.pyfunc import ServedModel
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.training import build, save_model
from ratchet.training.models import load_model

CLASSES = Classes(("a", "b", "c"))
WORDS = tuple(f"word{number}" for number in range(100))
IDENTITY = Identity("model", "1", "run", None)


def store(folder: Path, spec: ModelSpec, *, scale: float = 1.0) -> None:
    """Store an untrained model with its program. `scale`: of its weights."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        weights = {name: tensor * scale for name, tensor in build(spec).state_dict().items()}
        save_model(folder, weights, spec, about={"training": {}})
        export(*load_model(folder), folder)


def test_a_text_has_the_same_bits_beside_longer_ones(tmp_path: Path) -> None:
    spec = ModelSpec("transformer", TextInput("words", vocabulary=WORDS, longest=64), CLASSES)
    store(tmp_path, spec)
    loaded = LoadedVersion(IDENTITY, tmp_path)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 60))) for _ in range(120)] + ["", "unknown"]
    alone = [loaded.predict(kind_of(spec.input).decode([text], spec.input))[0].tobytes() for text in texts]
    for rows in (2, 8, 31):
        for start in range(0, len(texts), rows):
            together = loaded.predict(kind_of(spec.input).decode(texts[start : start + rows], spec.input))
            assert [row.tobytes() for row in together] == alone[start : start + rows]


def test_a_version_that_answers_differently_is_refused(tmp_path: Path) -> None:
    spec = ModelSpec("convnet", ImageInput(8, 8, 3, (120.0,) * 3, (60.0,) * 3), CLASSES)
    store(tmp_path, spec)
    arrays = kind_of(spec.input).example(spec.input, 8, seed=0)
    answers = ServedModel(*load_model(tmp_path)).answers_to_arrays(arrays)
    write_examples(tmp_path, arrays, answers, limit=1e-4)
    assert np.abs(LoadedVersion(IDENTITY, tmp_path).predict(arrays) - answers).max() < 1e-5
    write_examples(tmp_path, arrays, answers[::-1], limit=1e-4)
    with pytest.raises(RegistryError, match=r"^model version 1: its answers to 8 example rows differ from those"):
        LoadedVersion(IDENTITY, tmp_path)
    (tmp_path / EXAMPLES).unlink()
    LoadedVersion(IDENTITY, tmp_path)
    store(tmp_path, spec, scale=float("nan"))
    with pytest.raises(RegistryError, match="its answers to example rows are not finite numbers"):
        LoadedVersion(IDENTITY, tmp_path)


def test_a_table_row_has_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    columns = (
        Column("age", "numeric", 40.0, 10.0, tuple(np.linspace(20.0, 60.0, 9).tolist())),
        Column("fare", "numeric", 10.0, 5.0, tuple(np.linspace(0.0, 30.0, 9).tolist())),
        Column("class", "categorical", categories=("first", "second")),
    )
    spec = ModelSpec("tabm", TableInput(columns), Numbers(("price",), (50.0,), (7.0,)))
    store(tmp_path, spec)
    loaded = LoadedVersion(IDENTITY, tmp_path)
    arrays = kind_of(spec.input).example(spec.input, 5040, seed=1000)
    together = loaded.predict(arrays)
    for rows in (3, 5, 6, 7):
        parts = [tuple(array[start : start + rows] for array in arrays) for start in range(0, 5040, rows)]
        assert np.concatenate([loaded.predict(part) for part in parts]).tobytes() == together.tobytes()
