"""`ratchet generate`: continue texts with a language model, on the terminal as they grow."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import cast

from commands.app import project_folder
from ratchet.errors import TrainingError
from ratchet.training.generate import Generator, Sampling
from ratchet.training.models import load_model

__all__ = ["generate"]


def generate(
    model: str, prompts: Sequence[str], sampling: Sampling, *, cached: bool = True, on_piece: Callable[[], None]
) -> None:
    """Print each prompt and the text that follows it.

    Args:
        model: folder with model.json, or a version: NAME/VERSION or NAME@ALIAS, with or without `models:/` before it.
        on_piece: called after each piece; raises an interruption that other code has swallowed.
    """
    generator = _generator(model)
    for prompt in prompts:
        generator.prompt_ids(prompt)  # all are checked before the first text
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="replace")  # a terminal may lack characters of the text
    for number, prompt in enumerate(prompts):
        sys.stdout.write("\n" * (number > 0) + prompt)
        for piece in generator(prompt, sampling, cached=cached):
            sys.stdout.write(piece)
            sys.stdout.flush()
            on_piece()
        sys.stdout.write("\n")


def _generator(model: str) -> Generator:
    if (Path(model) / "model.json").is_file():
        return _loaded(Path(model), called=model)
    if Path(model).is_dir():
        raise TrainingError(f"{model}: this folder has no model.json. Fix: train a model first (`ratchet train`)")
    from ratchet import settings
    from ratchet.registry.models import ModelRegistry

    with project_folder() as workspace, tempfile.TemporaryDirectory() as folder:
        registry = ModelRegistry(workspace, settings.load(workspace.params))
        return _loaded(registry.copy_files(registry.find(model), Path(folder)), called=model)


def _loaded(folder: Path, *, called: str) -> Generator:
    model, spec = load_model(folder)
    try:
        return Generator(model, spec.input)
    except TrainingError as error:
        raise TrainingError(f"{called}: {error}") from None
