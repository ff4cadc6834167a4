"""preflight: the whole pipeline on a few samples, down to an answer of the registered model; nothing of it stays.

The project is the real one (its settings, code, data source and pretrained weights); what the stages write, MLflow's
store included, lies in a temporary folder.
"""

import contextlib
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import settings
from ratchet.data.manifest import Manifest
from ratchet.data.reading.subset import PER_CLASS
from ratchet.errors import DataError, RatchetError, RegistryError
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.scratch_project import Scratch
from tasks.stopping import TrainingStopped

if TYPE_CHECKING:
    from rich.console import Console

    from ratchet.training.doctor import Finding

__all__ = ["Preflight", "preflight"]

_STEPS = 2
_TINY = {
    "data.max_bad_fraction": 1.0,  # of a few samples, one bad one is a large share
    "data.download": False,
    "training.epochs": 2,
    "training.max_steps": _STEPS,
    "training.checkpoint_steps": 1,
    "training.log_every": 1,
    "training.profile": 0,
    "training.doctor": "never",  # it is asked here, about the real settings
    "evaluation.resamples": 100,
    "evaluation.robustness_rows": 4,
    "evaluation.explained_errors": 1,
    "gate.minimum_accuracy": 0.0,
    "gate.calibration_error": 1.0,
    "tracking.tensorboard": False,
}


@dataclass
class Preflight:
    """One preflight and what it found. As a watch of the stages it shows what they say, below their step."""

    workspace: Workspace
    console: "Console"
    findings: "list[Finding]" = field(default_factory=list)
    _said: list[str] = field(default_factory=list)

    def run(self, params: Params, scratch: Scratch) -> bool:
        """Every step; False where one fails and the rest is left out."""
        tiny = self._tiny(params, scratch)
        steps = {
            "ingest": lambda: self._ingest(params, tiny, scratch),
            "doctor": lambda: self._examine(params, scratch),
            "train": lambda: self._train(tiny, scratch),
            "evaluate": lambda: self._evaluate(tiny, scratch),
            "register": lambda: self._register(tiny, scratch),
            "predict": lambda: self._predict(tiny, scratch),
        }
        return all(self.step(name, act) for name, act in steps.items())

    def step(self, name: str, act: Callable[[], str]) -> bool:
        """Do it, and show how it went."""
        self._said.clear()
        begun, before = time.perf_counter(), len(self.findings)
        try:
            with self.console.status(f"{name} ..."):
                words = act()
        except TrainingStopped:
            raise KeyboardInterrupt from None  # the loop takes Ctrl-C for itself
        except RatchetError as error:
            self._show("red", "✗", name, str(error), begun)
            return False
        except Exception:  # of the user's own code, or ours: what the doctor found is told all the same
            self._show("red", "✗", name, "an error that was not foreseen", begun)
            traceback.print_exc()
            return False
        wrong = len(self.findings) > before
        self._show("yellow" if wrong else "green", "!" if wrong else "✓", name, words, begun)
        return True

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Steps are short: the time of each is shown when it is over."""

    def say(self, text: str) -> None:
        self._said.append(text)

    def _show(self, colour: str, mark: str, name: str, words: str, begun: float) -> None:
        self.console.print(f"  [{colour}]{mark}[/] [bold]{name:<9}[/] {time.perf_counter() - begun:5.1f} s  ", end="")
        self.console.print(words, markup=False)
        for sentence in self._said:
            self.console.print(f"{'':23}{sentence}", markup=False, style="dim")

    def _tiny(self, params: Params, scratch: Scratch) -> Params:
        shutil.copyfile(self.workspace.params, scratch.params)
        ledger = {"registry.ledger": f"sqlite:///{scratch.mlruns / 'ledger.db'}", "registry.ledger_keys": []}
        elsewhere = {**ledger, **scratch.own}
        tiny = settings.override(scratch.params, {**_TINY, **elsewhere})
        # Below what the file allows: which classes a few samples are of is chance.
        return tiny.model_copy(update={"data": tiny.data.model_copy(update={"min_per_class": 0})})

    def _ingest(self, params: Params, tiny: Params, scratch: Scratch) -> str:
        from tasks.ingest import ingest

        try:
            return ingest(tiny, scratch, watch=self, sample=True).summary
        except DataError as error:
            if params.data.download and "no usable copy" in str(error):
                raise DataError(
                    f"data.source: {params.data.source} is not in {params.data.path} yet, and preflight downloads "
                    "nothing: fetch it with `python -m tasks.ingest`"
                ) from error
            raise

    def _examine(self, params: Params, scratch: Scratch) -> str:
        """The doctor, on the sample, with the real settings."""
        from ratchet.training import TrainingInputs, initial_model, open_split
        from ratchet.training.device import choose_device, reproducible
        from ratchet.training.doctor import examine
        from ratchet.training.precision import choose_precision
        from tasks.training_job import TrainingJob

        course = TrainingJob.of(params, self.workspace, Manifest.read(scratch.packed))
        plan, spec, pretrained = course.plan, course.spec, course.pretrained
        train, validation = (
            open_split(scratch.packed, name, sample_timeout=plan.sample_timeout) for name in ("train", "validation")
        )
        device = choose_device(plan.device)
        with reproducible(plan.seed, deterministic=plan.deterministic):
            model, _ = initial_model(TrainingInputs(train, validation, spec, plan, pretrained))
        self.findings += examine(
            train,
            validation,
            spec,
            plan,
            model=model.to(device),
            device=device,
            precision=choose_precision(plan.precision, device).name,
            pretrained=pretrained,
            checkpoints=self.workspace.running,
            rows=self._rows(params, len(train), plan.batch_size),
        )
        return f"{len(self.findings)} findings, see below" if self.findings else "no silent bug found"

    def _rows(self, params: Params, sampled: int, batch_size: int) -> int:
        """Training rows of the whole set: of the packed one where it is of this source; else enough for a batch."""
        with contextlib.suppress(DataError):
            manifest = Manifest.read(self.workspace.packed)
            if manifest.source == params.data.source:
                return manifest.splits["train"].rows
        return max(sampled, batch_size)

    def _train(self, tiny: Params, scratch: Scratch) -> str:
        from tasks.train import train

        trained = train(tiny, scratch, watch=self)
        return f"{trained.name}: {trained.steps} steps, checkpoints, the best model saved"

    def _evaluate(self, tiny: Params, scratch: Scratch) -> str:
        from tasks.evaluate import evaluate

        return f"{evaluate(tiny, scratch, watch=self).rows} test pictures answered and measured"

    def _register(self, tiny: Params, scratch: Scratch) -> str:
        from tasks.register import register

        registered = register(tiny, scratch, watch=self)
        if registered.version is None:  # the gate stands open, so only the stored model can have been refused
            raise RegistryError(registered.summary)
        return f"{registered.model} version {registered.version}, through a gate that was held open"

    def _predict(self, tiny: Params, scratch: Scratch) -> str:
        """Load the registered model as any MLflow user does, and show it a test picture."""
        import numpy as np
        import torch

        from ratchet.data.depth import raw_values
        from ratchet.registry.models import ModelRegistry
        from ratchet.training import open_split
        from tasks.register import Registration

        registered = Registration.load(scratch)
        uri = f"models:/{registered.model}/{registered.version}"
        images, _ = open_split(scratch.packed, "test").batch(np.arange(1), torch.device("cpu"))
        picture = images.permute(0, 2, 3, 1).numpy()
        manifest = Manifest.read(scratch.packed)
        if manifest.depth is not None:
            picture = raw_values(picture, manifest.depth)
        with ModelRegistry(scratch, tiny).opened(uri) as (model, _):
            answer = np.asarray(model.predict(picture))[0]
        best = int(answer.argmax())
        name = manifest.classes[best]
        return f"{uri}, loaded by mlflow.pyfunc, sees {name!r} in a test picture ({answer[best]:.0%})"


def preflight(workspace: Workspace, console: "Console") -> int:
    """Try everything and report it; the exit code: 0 where there is no error, warnings or not, else 1.

    Raises:
        SettingsError: params.yaml is not sound.
    """
    params = settings.load(workspace.params)
    console.print(
        f"[bold]Preflight[/]: {params.data.source}, about {PER_CLASS} samples of each class; "
        f"{params.model.called}, {_STEPS} steps\n"
    )
    begun = time.perf_counter()
    flight = Preflight(workspace, console)
    with tempfile.TemporaryDirectory(prefix="ratchet-preflight-") as folder, _temporary_files_in(Path(folder)):
        works = flight.run(params, Scratch(workspace.root, Path(folder).resolve()))
    console.print()
    for number, finding in enumerate(flight.findings, 1):
        kind = " (warning)" if finding.severity == "warning" else ""
        console.print(f"  [yellow]{number}. {finding.check}{kind}[/]")
        console.print(f"     {finding.told}", markup=False)
        console.print(f"     -> {finding.way_out}\n", markup=False)
    took = f"{time.perf_counter() - begun:.0f} s; nothing of it was left behind"
    if not works or any(finding.severity == "error" for finding in flight.findings):
        told = "The pipeline works, and something is wrong all the same" if works else "The pipeline does not work yet"
        console.print(f"[red]{told}[/]: see above ({took})")
        return 1
    well = "All is well, but see the warnings above" if flight.findings else "All is well"
    console.print(f"[green]{well}[/] ({took}). Next: [bold]ratchet train[/]")
    return 0


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Let whatever any library makes as a temporary file be made, and removed, with the rest."""
    before = tempfile.tempdir
    (folder / "tmp").mkdir()
    tempfile.tempdir = str(folder / "tmp")
    try:
        yield
    finally:
        tempfile.tempdir = before
