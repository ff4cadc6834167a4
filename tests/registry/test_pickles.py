"""Pickles are found by content: those of every library that writes them, under any name."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import warnings
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from ratchet.registry.pickles import find_pickles


def look(path: Path) -> list[str]:
    """Return what is found in the folder of one file."""
    assert all(name == path.name for name, _ in find_pickles(path.parent))
    return [finding for _, finding in find_pickles(path.parent)]


class Own:
    """Something that a pickle must import."""


PLAIN = [None, 1, "text", 2.5, [1, 2, 3], {"a": (1, 2)}, Own, len]
CALLS = [b"bytes", Own(), OrderedDict(a=1), np.arange(3)]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_pickle_of_any_protocol_is_found_under_any_name(tmp_path: Path, protocol: int, number: int) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(pickle.dumps(CALLS[number], protocol))
    assert look(path) == ["a pickle" if number == 0 and protocol > 2 else "a pickle with a call"]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_a_pickle_with_a_header_needs_no_call(tmp_path: Path, protocol: int, number: int) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(pickle.dumps(PLAIN[number], protocol))
    assert look(path) == ["a pickle"]


def model() -> Any:
    with torch.random.fork_rng():
        return torch.nn.Linear(3, 2)


def _numpy(path: Path, write: Callable[[Any], None]) -> None:
    with path.open("wb") as file:
        write(file)


def _zip(path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("data", pickle.dumps(Own()))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "nothing here")
        archive.writestr("inner", inner.getvalue())


WRITERS: dict[str, Callable[[Path], Any]] = {
    "torch.save of a state": lambda path: torch.save({"weight": torch.zeros(3)}, path),
    "torch.save of a model": lambda path: torch.save(model(), path),
    "torch.save as before 1.6": lambda path: torch.save(
        {"weight": torch.zeros(3)}, path, _use_new_zipfile_serialization=False
    ),
    "joblib": lambda path: joblib.dump({"weight": np.zeros(5), "name": "x"}, path),
    "joblib of a large array": lambda path: joblib.dump(np.zeros((500, 500)), path),
    "joblib with zlib": lambda path: joblib.dump(np.zeros(5), path, compress=("zlib", 3)),
    "joblib with gzip": lambda path: joblib.dump(np.zeros(5), path, compress=("gzip", 3)),
    "joblib with bz2": lambda path: joblib.dump(np.zeros(5), path, compress=("bz2", 3)),
    "joblib with xz": lambda path: joblib.dump(np.zeros(5), path, compress=("xz", 3)),
    "joblib with lzma": lambda path: joblib.dump(np.zeros(5), path, compress=("lzma", 3)),
    "cloudpickle": lambda path: path.write_bytes(cloudpickle.dumps(lambda images: images)),
    "an array of objects": lambda path: _numpy(path, lambda file: np.save(file, np.array([Own()]), allow_pickle=True)),
    "arrays of objects": lambda path: _numpy(
        path, lambda file: np.savez(file, fine=np.zeros(3), bad=np.array([Own()]))
    ),
    "compressed arrays": lambda path: _numpy(path, lambda file: np.savez_compressed(file, bad=np.array([Own()]))),
    "gzip": lambda path: path.write_bytes(gzip.compress(pickle.dumps(Own(), 0))),
    "a zip in a zip": _zip,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_pickles_of_libraries_are_found(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "model.json"
    WRITERS[writer](path)
    (finding,) = look(path)
    of_objects = writer in ("an array of objects", "arrays of objects", "compressed arrays")
    assert finding.startswith("a NumPy array of pickled objects" if of_objects else "a pickle")


def test_a_model_that_mlflow_pickles_is_found_in_its_folder(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, of type hints
        import mlflow.pyfunc

        class ImageModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
            def predict(self, context: Any, model_input: list[str]) -> list[str]:
                return model_input

        mlflow.pyfunc.save_model(str(tmp_path / "model"), python_model=ImageModel(), pip_requirements=["mlflow"])
    assert list(find_pickles(tmp_path)) == [("model/python_model.pkl", "a pickle with a call")]


def _sqlite(path: Path) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute("create table lines (text)")
        database.execute("insert into lines values ('It is.')")
    database.close()


FINE: dict[str, Callable[[Path], Any]] = {
    "safetensors": lambda path: save_file({"weight": torch.ones(300, 300)}, path),
    "json": lambda path: path.write_text(json.dumps({"a": [1, 2, {"b": None}]})),
    "a json list": lambda path: path.write_text("[]"),
    "parquet": lambda path: pl.DataFrame({"a": range(1000), "b": ["text"] * 1000}).write_parquet(path),
    "png": lambda path: Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(path, "PNG"),
    "html": lambda path: path.write_text("<!doctype html>\n<p>c</p>."),
    "yaml": lambda path: path.write_text("channels:\n- conda-forge\ndependencies:\n- pip\nname: ratchet\n"),
    "csv": lambda path: path.write_text("class,rows\nant,3\nbee,4\n.\n"),
    "words that are opcodes": lambda path: path.write_text("cat\ndog\nbird\nindigo\n.\n"),
    "sqlite": _sqlite,
    "text": lambda path: path.write_text("It was the best of times.\nI am.\n"),
    "nothing": lambda path: path.touch(),
    "an array": lambda path: _numpy(path, lambda file: np.save(file, np.zeros((3, 3)))),
    "arrays": lambda path: _numpy(path, lambda file: np.savez(file, a=np.zeros(3), b=np.array(["text"]))),
    "compressed text": lambda path: path.write_bytes(gzip.compress(b"It is.\n" * 1000)),
    "a broken archive": lambda path: path.write_bytes(b"PK\x03\x04 and no more"),
    "a broken array": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\xff\xff"),
    "broken gzip": lambda path: path.write_bytes(gzip.compress(b"text")[:-6]),
    "broken bz2": lambda path: path.write_bytes(bz2.compress(b"text")[:-6]),
    "broken xz": lambda path: path.write_bytes(lzma.compress(b"text")[:-6]),
    "broken zlib": lambda path: path.write_bytes(zlib.compress(b"text")[:-6]),
}


@pytest.mark.parametrize("kind", FINE)
def test_other_files_are_not_reported(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "python_model.pkl"
    FINE[kind](path)
    assert look(path) == []


def test_safetensors_that_begin_like_a_pickle_are_not_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for size in (0x0280, 0x0480, 0x0580):  # the file's first two bytes: 80 and the protocol
        header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).ljust(size)
        path.write_bytes(size.to_bytes(8, "little") + header.encode() + b"\0")
        assert look(path) == []


def test_no_file_of_this_repository_is_reported() -> None:
    root = Path(__file__).parents[2]
    assert [finding for folder in ("src", "tests", "docs") for finding in find_pickles(root / folder)] == []


@given(content=st.text(min_size=3))
def test_no_text_is_reported_as_a_call(content: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-text"
    folder.mkdir(exist_ok=True)
    path = folder / "any.txt"
    path.write_text(content, encoding="utf-8", errors="replace")
    assert look(path) == []


def test_pickles_that_are_too_long_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.registry import pickles

    monkeypatch.setattr(pickles, "_MAX_STREAM", 1000)
    path = tmp_path / "long"
    path.write_bytes(pickle.dumps(b"x" * 5000, 4))
    assert look(path) == ["a pickle, too long to be read to its end"]
    monkeypatch.setattr(pickles, "_MAX_OPCODES", 100)
    path.write_bytes(pickle.dumps(list(range(200)), 0))
    assert look(path) == ["a pickle, too long to be read to its end"]


def test_archives_that_are_too_large_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of nested archives that expand without end stops."""
    from ratchet.registry import pickles

    monkeypatch.setattr(pickles, "_MAX_TOTAL", 10_000)
    path = tmp_path / "bomb"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(100):
            archive.writestr(f"{number}.txt", b" " * 1000)
    assert look(path) == ["more than can be searched (10,000 bytes of its content were read), in its member 10.txt"]


def test_an_encrypted_member_hides_no_other_member(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("first", b"text")
        archive.writestr("data.pkl", pickle.dumps(Own()))
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag of encryption in the first member's own header,
    content[content.index(b"PK\x01\x02") + 8] |= 1  # and in the central directory
    path.write_bytes(content)
    assert look(path) == ["a pickle with a call, in its member data.pkl"]
