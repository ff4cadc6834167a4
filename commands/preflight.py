"""preflight: run the whole pipeline on a few samples, up to a prediction of the registered model.

It uses the project's settings, code, data source and pretrained weights. All outputs, MLflow's store included, are in a
temporary folder, which is removed at the end.
"""

import contextlib
import multiprocessing.util
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import settings
from ratchet.checksums import verify
from ratchet.counts import count_of
from ratchet.data.manifest import Manifest
from ratchet.data.reading.subset import PER_CLASS
from ratchet.errors import DataError, RatchetError, RegistryError, SettingsError, TrainingError
from ratchet.kinds.registry import kind_chosen
from ratchet.references import canary_fault, packed_before, require_measurable, require_references
from ratchet.registry.alias_sync import require_agreement
from ratchet.registry.parents import continued_model
from ratchet.registry.runs import SENDER
from ratchet.settings.model import Params
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace
from tasks.scratch_project import ScratchProject
from tasks.stopping import TrainingStopped

if TYPE_CHECKING:
    from ratchet.doctor import Finding

__all__ = ["preflight", "temporary_folder"]

_STEPS = 2
_REMOVALS = 50  # attempts to remove the temporary folder, over five seconds
_WRITTEN = 8  # tokens that a language model writes
_TINY = {
    "data.max_bad_fraction": 1.0,  # one bad sample is a large share of a few
    "data.download": False,
    "training.epochs": 2,
    "training.max_steps": _STEPS,
    "training.checkpoint_steps": 1,
    "training.log_every": 1,
    "training.profile": 0,
    "training.hooks": [],
    "training.doctor": "never",  # preflight runs it itself, with the real settings
    "evaluation.resamples": 100,
    "evaluation.robustness_rows": 4,
    "evaluation.explained_errors": 1,
    "gate.minimum_metric": "none",
    "gate.baseline": "report",
    "gate.constant": "off",
    "gate.calibration_error": 1.0,
    "tracking.tensorboard": False,
}


@dataclass
class _Preflight:
    """One preflight and its findings. It watches the stages and prints their messages below the step."""

    workspace: Workspace
    findings: "list[Finding]" = field(default_factory=list)
    has_misfit: bool = False  # the sample does not fit the weights of a stored model
    _messages: list[str] = field(default_factory=list)

    def run(self, params: Params, scratch: ScratchProject) -> bool:
        """Run every step until one fails. Return whether all succeeded."""
        from tasks.export import export

        tiny = self._tiny(params, scratch)
        steps = {
            "ingest": lambda: self._ingest(params, tiny, scratch),
            "doctor": lambda: self._examine(self._fitting(params), scratch),
            "train": lambda: self._train(params, self._fitting(tiny), scratch),
            "evaluate": lambda: self._evaluate(tiny, scratch),
            "export": lambda: export(tiny, scratch, progress=self).summary,
            "register": lambda: self._register(self._fitting(tiny), scratch),
            "predict": lambda: self._predict(tiny, scratch),
        }
        return all(self._step(name, act) for name, act in steps.items())

    def _step(self, name: str, act: Callable[[], str]) -> bool:
        """Run one step, print its result and time, and return whether it succeeded."""
        from rich.console import Console

        self._messages.clear()
        begun, before = time.perf_counter(), len(self.findings)
        try:
            with Console().status(f"{name} ..."):
                summary = act()
        except TrainingStopped:
            raise KeyboardInterrupt from None  # the training loop has handled Ctrl-C
        except RatchetError as error:
            self._show("red", "✗", name, str(error), begun)
            return False
        except Exception:  # a bug in the user's code or ours; the doctor's findings are printed nevertheless
            self._show("red", "✗", name, "unexpected error", begun)
            traceback.print_exc()
            return False
        wrong = len(self.findings) > before
        self._show("yellow" if wrong else "green", "!" if wrong else "✓", name, summary, begun)
        return True

    def update(self, done: int, total: int, note: str = "") -> None:
        """Show nothing: steps are short, and their time is printed at the end."""

    def say(self, text: str) -> None:
        """Collect a message of the stage."""
        self._messages.append(text)

    def _show(self, colour: str, mark: str, name: str, summary: str, begun: float) -> None:
        caption = f"  {mark} {name:<9} {time.perf_counter() - begun:5.1f} s  "
        echo(summary, caption=caption, style=colour)
        for message in self._messages:
            echo(message, caption=" " * len(caption))

    def _tiny(self, params: Params, scratch: ScratchProject) -> Params:
        shutil.copyfile(self.workspace.params, scratch.params)
        ledger = {"registry.ledger": f"sqlite:///{scratch.mlruns / 'ledger.db'}"}
        tiny = settings.override(scratch.params, {**_TINY, **ledger, **scratch.own})
        # The file does not allow 0, but a few samples may miss a class by chance.
        return tiny.model_copy(update={"data": tiny.data.model_copy(update={"min_per_class": 0})})

    def _ingest(self, params: Params, tiny: Params, scratch: ScratchProject) -> str:
        from tasks.ingest import ingest

        try:
            summary = ingest(tiny, scratch, progress=self, sample=True).summary
        except DataError as error:
            if params.data.download and "no usable copy" in str(error):
                raise DataError(
                    f"data.source: {params.data.source} is not in {params.data.path} yet, and preflight downloads "
                    "nothing. Fix: download it with `python -m tasks.ingest`"
                ) from error
            raise
        require_measurable(params, scratch.packed)
        self._compare_weights(params, scratch)
        return summary

    def _compare_weights(self, params: Params, scratch: ScratchProject) -> None:
        """Find out whether the sample fits the weights of a stored model. Few rows of a table can lack categories.

        Raises:
            TrainingError: all rows of the packed set do not fit them, either; or something else is wrong.
        """
        from tasks.training_job import TrainingJob

        if continued_model(self.workspace, params) is None:
            return
        verify(self.workspace.pretrained / params.model.pretrained)
        manifest, full = Manifest.read(scratch.packed), packed_before(params, self.workspace)
        try:
            TrainingJob.of(params, self.workspace, manifest, packed=scratch.packed)
        except TrainingError:
            if full is not None:
                TrainingJob.of(params, self.workspace, full)
            self.has_misfit = True
            TrainingJob.of(self._fitting(params), self.workspace, manifest, packed=scratch.packed)  # other faults
            name = params.model.pretrained
            self.say(f"{name}: takes other columns or categories than the sample has, so its weights are left out here")

    def _fitting(self, params: Params) -> Params:
        """Return the settings, without weights that the sample does not fit."""
        model = params.model.model_copy(update={"pretrained": "none"})
        return params.model_copy(update={"model": model}) if self.has_misfit else params

    def _examine(self, params: Params, scratch: ScratchProject) -> str:
        """The doctor, on the sample, with the real settings. A baseline has no network that could be examined."""
        from ratchet.doctor import check_samples, examine
        from ratchet.training import initial_model
        from ratchet.training.device import choose_device, reproducible
        from ratchet.training.precision import choose_precision
        from tasks.training_job import TrainingJob

        job = TrainingJob.of(params, self.workspace, Manifest.read(scratch.packed), packed=scratch.packed)
        plan = replace(job.plan, workers=0)
        inputs = replace(job, plan=plan).inputs(scratch.packed)
        train, validation = inputs.train, inputs.validation
        if job.variant == "baseline":
            self.findings += check_samples(train, validation, job.spec, plan)
            return self._found("the baseline is fitted in one step: only its data are checked")
        device = choose_device(plan.device)
        with reproducible(plan.seed, deterministic=plan.deterministic):
            model, _ = initial_model(inputs)
        self.findings += examine(
            train,
            validation,
            job.spec,
            plan,
            model=model.to(device),
            device=device,
            precision=choose_precision(plan.precision, device).name,
            pretrained=job.pretrained,
            checkpoints=self.workspace.running,
            rows=self._rows(params, len(train), plan.batch_size),
        )
        return self._found("no findings")

    def _found(self, otherwise: str) -> str:
        count = len(self.findings)
        return f"{count_of(count, 'finding')}, see below" if count else otherwise

    def _rows(self, params: Params, sampled: int, batch_size: int) -> int:
        """Return the number of training samples of the packed set; enough for a batch where it has another source."""
        manifest = packed_before(params, self.workspace)
        return manifest.splits["train"].rows if manifest else max(sampled, batch_size)

    def _train(self, params: Params, tiny: Params, scratch: ScratchProject) -> str:
        from tasks.hooks import Hooks
        from tasks.train import train

        Hooks.load(params.training.hooks, self.workspace)
        trained = train(tiny, scratch, progress=self)
        return f"{trained.name}: {count_of(trained.steps, 'step')}, checkpoints and best model saved"

    def _evaluate(self, tiny: Params, scratch: ScratchProject) -> str:
        from tasks.evaluate import evaluate

        return f"{count_of(evaluate(tiny, scratch, progress=self).rows, 'test sample')} predicted and measured"

    def _register(self, tiny: Params, scratch: ScratchProject) -> str:
        from tasks.register import register

        registered = register(tiny, scratch, progress=self)
        if registered.version is None:  # the gate is open: only a fault of the stored model can be the reason
            raise RegistryError(registered.summary)
        return f"{registered.model} version {registered.version}, with the gate's limits off"

    def _predict(self, tiny: Params, scratch: ScratchProject) -> str:
        """Load the registered model as any MLflow user does, and predict one test image."""
        import numpy as np

        from ratchet.kinds.registry import kind_of
        from ratchet.registry.models import ModelRegistry
        from ratchet.tokens.token_ids import decode
        from ratchet.training import load_model, open_split
        from tasks.register import Registration

        registered = Registration.load(scratch)
        uri = f"models:/{registered.model}/{registered.version}"
        manifest = Manifest.read(scratch.packed)
        _, spec = load_model(scratch.model)
        kind = kind_of(spec.input)
        if kind.generates:
            with ModelRegistry(scratch, tiny).opened(uri) as (model, _):
                answers: list[str] = list(model.predict([decode([0], spec.stream)], {"max_tokens": _WRITTEN}))
            return f"{uri}, loaded by mlflow.pyfunc, writes {answers[0]!r}"
        raw = kind.samples(open_split(scratch.packed, "test", spec.input), np.arange(1), manifest.input)
        with ModelRegistry(scratch, tiny).opened(uri) as (model, _):
            prediction = np.asarray(model.predict(raw))[0]
        answer = f"{', '.join(f'{number:.4g}' for number in prediction)}"
        if manifest.target.classes:
            best = int(prediction.argmax())
            answer = f"{manifest.target.names[best]!r} ({100 * prediction[best]:.0f} %)"
        return f"{uri}, loaded by mlflow.pyfunc, predicts {answer} for a test {manifest.input.sample}"


def preflight(workspace: Workspace) -> int:
    """Run preflight and print its results. Return the exit code: 0 without errors (warnings allowed), else 1."""
    from ratchet.doctor import describe_finding

    params = settings.load(workspace.params)
    require_references(params, workspace)
    if fault := canary_fault(params.serving):
        raise SettingsError(f"params.yaml: {fault}")
    require_agreement(workspace, params)
    source = params.data.source if kind_chosen(params.data.kind).has_sources else params.data.path
    text = f"{source}, about {PER_CLASS} samples of each class; {params.model.called}, {_STEPS} steps\n"
    echo(text, caption="Preflight: ")
    begun = time.perf_counter()
    flight = _Preflight(workspace)
    with temporary_folder() as folder:
        works = flight.run(params, ScratchProject(workspace.root, folder))
    echo("")
    for number, finding in enumerate(flight.findings, 1):
        problem, fix = describe_finding(finding)
        echo(f"  {number}. {finding.severity}: {finding.rule}", style="yellow")
        echo(problem, caption="     ")
        echo(f"Fix: {fix}\n", caption="     ")
    took = f"{time.perf_counter() - begun:.0f} s; no files left behind"
    if not works or any(finding.severity == "error" for finding in flight.findings):
        result = "The pipeline runs, but the doctor has found errors" if works else "The pipeline does not run yet"
        echo(f": see above ({took})", caption=result, style="red")
        return 1
    result = "Preflight passed with warnings, see above" if flight.findings else "Preflight passed"
    echo(f"({took}). Next: ratchet train", caption=f"{result} ", style="green")
    return 0


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder for all files, those of libraries included, and remove it afterwards."""
    multiprocessing.util.get_temp_dir()  # Python removes it at its end: it must not be gone by then
    folder, before = Path(tempfile.mkdtemp(prefix="ratchet-preflight-")).resolve(), tempfile.tempdir
    (folder / "tmp").mkdir()
    tempfile.tempdir = str(folder / "tmp")
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        for thread in threading.enumerate():
            if thread.name == SENDER:  # of an interrupted run: it would create the folder again
                thread.join()
        for _ in range(_REMOVALS):  # a thread of an interrupted run may still write into it
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)
        else:
            shutil.rmtree(folder)
