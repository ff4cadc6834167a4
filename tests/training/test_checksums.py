"""A sealed model loads as it was stored or not at all, and none of its code runs before that is known."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ratchet.checksums import seal, verify
from ratchet.errors import TrainingError
from ratchet.kinds import image_spec
from ratchet.training import build, load_model, save_model

OWN = """
from pathlib import Path

from torch import nn

Path(__file__).with_name("ran").touch()


def net(*, classes, channels, height, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))
"""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the user's own, saved and sealed; its code leaves a mark where it is imported."""
    root, folder = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("sealed")
    (root / "marking.py").write_text(OWN)
    spec = image_spec(
        "convnet", ("ant", "bee"), 1, 8, 8, (0.5,), (0.25,), factory="marking:net", code="marking.py", root=str(root)
    )
    with torch.random.fork_rng():
        save_model(folder, build(spec).state_dict(), spec, about={})
    seal(folder)
    return folder


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "model"))


def test_a_sealed_model_loads_and_its_checksums_name_every_file(copy: Path) -> None:
    checksums = verify(copy)
    assert checksums is not None
    assert sorted(checksums) == ["code/marking.py", "model.json", "model.safetensors"]
    load_model(copy)
    assert (copy / "code" / "ran").exists()


def _change_weights(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def _change_spec(folder: Path) -> None:
    (folder / "model.json").write_text((folder / "model.json").read_text().replace("ant", "ape"))


def _change_code(folder: Path) -> None:
    (folder / "code" / "marking.py").write_text(OWN + "\nHELLO = 1\n")


def _add_compiled_code(folder: Path) -> None:
    (folder / "code" / "__pycache__").mkdir()
    (folder / "code" / "__pycache__" / "marking.cpython-311.pyc").write_bytes(b"another's")


def _link_a_package_in(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "__init__.py").write_text("")
    (folder / "code" / "marking").symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("harm", "reported"),
    [
        (_change_weights, "changed: model.safetensors"),
        (_change_spec, "changed: model.json"),
        (_change_code, "changed: code/marking.py"),
        (lambda folder: (folder / "model.json").unlink(), "missing: model.json"),
        (_add_compiled_code, "added: code/__pycache__/marking.cpython-311.pyc"),
        (_link_a_package_in, "added: code/marking/__init__.py"),
    ],
)
def test_a_changed_file_is_reported_and_nothing_runs(copy: Path, harm: Callable[[Path], None], reported: str) -> None:
    harm(copy)
    with pytest.raises(TrainingError, match=reported) as refusal:
        load_model(copy)
    assert "nothing was loaded. Fix: restore" in str(refusal.value)
    assert not (copy / "code" / "ran").exists()


def test_many_differences_are_listed_in_one_short_sentence(copy: Path) -> None:
    for number in range(100):
        (copy / f"{number:03}.txt").touch()
    with pytest.raises(TrainingError, match=r"added: 000\.txt, 001\.txt, 002\.txt and 97 more\)"):
        verify(copy)


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"sha256": 3}), "\0"])
def test_checksums_that_cannot_be_read_are_refused(copy: Path, content: str) -> None:
    (copy / "checksums.json").write_text(content)
    with pytest.raises(TrainingError, match=r"checksums\.json: the checksums cannot be read"):
        load_model(copy)


def test_a_model_without_checksums_still_loads(copy: Path) -> None:
    (copy / "checksums.json").unlink()
    assert verify(copy) is None
    assert load_model(copy)[1].classes == ("ant", "bee")
