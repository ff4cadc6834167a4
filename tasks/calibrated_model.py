"""The model as it is stored: with the temperature and the flips of the evaluation."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.kinds import ModelSpec

__all__ = ["calibrated"]


@contextmanager
def calibrated(workspace: Workspace) -> "Iterator[tuple[Path, ModelSpec]]":
    """Yield the folder and the spec of the model to store, with the temperature and flips of the evaluation."""
    from ratchet.training import load_model, save_model

    model, spec = load_model(workspace.model)
    metrics = files.read_json(workspace.reports / "metrics.json")
    if metrics["temperature"] == 1.0 and not metrics["flip_average"]:
        yield workspace.model, spec
        return
    model.temperature.fill_(metrics["temperature"])
    spec = replace(spec, flip_average=bool(metrics["flip_average"]))
    content = files.read_json(workspace.model / "model.json")
    about = {name: content[name] for name in ("training", "baseline") if name in content}
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), model.state_dict(), spec, about=about)
        yield Path(folder), spec
