"""The judgement with a real registry: what the champion saw, what it can answer, and each try in the ledger."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from ratchet.data.ingest import ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import RegistryError
from ratchet.gate.verdict import Verdict
from ratchet.registry.promotion import Promotions
from ratchet.registry.runs import Run
from ratchet.registry.samples import TRAINING_SAMPLES, read_samples, split_samples, write_samples
from ratchet.registry.versions import Version
from ratchet.settings.model import DataSettings, EvaluationSettings, GateSettings, Params, RegistrySettings
from ratchet.training import ModelSpec, build, save_model
from ratchet.workspace import Workspace
from tasks.evaluate import evaluate
from tasks.gate_inputs import judge_model
from tasks.progress import Terminal

pytestmark = pytest.mark.usefixtures("mlflows_own")

EVERYTHING = EvaluationSettings(slices=[], robustness_rows=0, explained_errors=0)
GATE = GateSettings(
    minimum_accuracy=0.0,
    latency_factor=0.0,
    size_factor=0.0,
    calibration_error=1.0,
    minimum_rows=10,
    classes="may-grow",
)


@dataclass
class Pets:
    """A project without its flows: images of numbered animals, models that were never trained, a registry."""

    workspace: Workspace
    params: Params
    runs: int = 0

    @property
    def succession(self) -> Promotions:
        return Promotions(self.workspace, self.params, "pets")

    def pack(self, split: Callable[[int], str], *, classes: int = 2, size: int = 8, names: str = "{}.png") -> None:
        """Ingest 60 images; the same number is the same image, whatever its file is called."""
        folder = self.workspace.root / f"images-{self.runs}-{size}-{classes}"
        folder.mkdir()
        lines = ["path,label,split"]
        for number in range(60):
            pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / names.format(number))
            lines.append(f"{names.format(number)},kind{number % classes},{split(number)}")
        (folder / "labels.csv").write_text("\n".join(lines))
        ingest(
            DataSettings(source="image-manifest", path=folder.name, manifest="labels.csv", image_size=size),
            packed=self.workspace.packed, quarantine=self.workspace.quarantine, root=self.workspace.root,
            report=lambda *_: None,
        )  # fmt: skip

    def train(self, *, seed: int) -> tuple[str, str]:
        """A run with a model of these data, evaluated and stored; the run's id and its model's address."""
        self.runs += 1
        packed = Manifest.read(self.workspace.packed)
        shape = packed.channels, packed.height, packed.width
        spec = ModelSpec("convnet", packed.classes, *shape, packed.mean, packed.std)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            save_model(self.workspace.model, build(spec).state_dict(), spec, about={"training": {}})
        evaluate(self.params, self.workspace, watch=Terminal("evaluate", unit="rows"))
        run = Run(self.workspace, self.params, f"run-{self.runs}")
        run.settings({"seed": seed})
        run_id = run.send()
        run.journal.close()
        return run_id, self.succession.registry.log_model(run_id, self.workspace.model, spec)

    def champion(self, *, with_record: bool = True) -> Version:
        """Train a version and make it champion, with the record that the register stage keeps."""
        run_id, model_uri = self.train(seed=1)
        registry, folder = self.succession.registry, self.workspace.root
        record = folder / "provenance.json"
        record.write_text(json.dumps({"dvc": {}}))
        kept = {record: "provenance"}
        if with_record:
            write_samples(folder / TRAINING_SAMPLES, split_samples(self.workspace.packed, "train", "validation"))
            kept[folder / TRAINING_SAMPLES] = "provenance"
        registry.log_files(run_id, kept)
        version = registry.add_version("pets", run_id, model_uri, tags={"ratchet.verdict": "{}"})
        self.succession.register(version, why="good", over=None)
        self.succession.promote_automatically(version, over=None)
        return version

    def judge(self, run: tuple[str, str]) -> Verdict:
        """Judge a run's model as the register stage does."""
        over = self.succession.synchronize().champion
        return judge_model(self.succession, *run, self.params, self.workspace, over=over)

    def judgements(self) -> list[dict[str, object]]:
        return [dict(entry.content) for entry in self.succession.entries() if entry.what == "judge"]


@pytest.fixture
def pets(tmp_path: Path) -> Pets:
    registry = RegistrySettings(export="none", ledger=f"sqlite:///{tmp_path}/ledger.db")
    return Pets(Workspace(tmp_path), Params(registry=registry, gate=GATE, evaluation=EVERYTHING))


def by_position(number: int) -> str:
    return "train" if number < 30 else "validation" if number < 36 else "test"


def shifted(number: int) -> str:
    """Other splits: of the 24 test rows 12 were the champion's training rows, 4 its validation rows."""
    return "test" if 18 <= number < 34 or number >= 52 else "validation" if number < 6 else "train"


def test_rows_that_the_champion_saw_are_left_out_whatever_their_names(pets: Pets) -> None:
    """The files are renamed and the splits are changed: 12 test rows were trained on, 4 selected on, by content."""
    pets.pack(by_position)
    pets.champion()
    pets.pack(shifted, names="renamed-{}.png")
    verdict = pets.judge(pets.train(seed=2))
    found = next(rule for rule in verdict.rules if rule.name == "champion")
    assert not found.passed
    assert "only 8 of 24 test rows can be compared (16 were used to train or select" in found.words
    pets.params = pets.params.model_copy(update={"gate": GATE.model_copy(update={"minimum_rows": 5})})
    verdict = pets.judge(pets.train(seed=2))
    assert verdict.comparison is not None
    assert (verdict.comparison.rows, verdict.comparison.test_rows) == (8, 24)


def test_a_candidate_with_a_new_class_and_image_size_is_compared(pets: Pets) -> None:
    pets.pack(by_position)
    pets.champion()
    pets.pack(by_position, classes=3, size=16)
    verdict = pets.judge(pets.train(seed=2))
    assert verdict.comparison is not None
    assert (verdict.comparison.rows, verdict.comparison.test_rows) == (16, 24)
    assert "16 x 16 x 3 images resized to 8 x 8 x 3" in verdict.words
    assert "8 are of classes that the champion does not know" in verdict.words


def test_every_candidate_is_a_try_and_the_same_one_only_once(pets: Pets) -> None:
    pets.pack(by_position)
    first = pets.train(seed=1)
    assert pets.judge(first).unused is not None  # without a champion nothing was compared
    pets.champion()
    second = pets.train(seed=2)
    verdict = pets.judge(second)
    assert pets.judge(second) == verdict
    third = pets.judge(pets.train(seed=3))
    assert [one["try"] for one in pets.judgements()] == [None, 1, 2]
    assert verdict.comparison is not None
    assert third.comparison is not None
    assert (verdict.comparison.number, third.comparison.number) == (1, 2)
    assert third.comparison.level < verdict.comparison.level
    assert ["sample" in one for one in pets.judgements()] == [True, False, False]  # the rows themselves are kept once
    assert pets.succession.ledger.read().faults == []
    assert pets.succession.fault() is None


def test_a_champion_without_a_record_is_refused_and_an_edited_record_too(pets: Pets) -> None:
    pets.pack(by_position)
    version = pets.champion(with_record=False)
    run = pets.train(seed=2)
    assert "there is no record of the samples" in pets.judge(run).words
    name = f"provenance/{TRAINING_SAMPLES}"
    write_samples(pets.workspace.root / TRAINING_SAMPLES, split_samples(pets.workspace.packed, "train"))
    pets.succession.registry.log_files(version.run_id, {pets.workspace.root / TRAINING_SAMPLES: "provenance"})
    assert "there is no record of the samples" in pets.judge(run).words  # nobody vouches for that one
    assert name not in (pets.succession.recorded_evidence(version) or {})


def test_a_record_that_was_replaced_is_not_believed(pets: Pets) -> None:
    pets.pack(by_position)
    version = pets.champion()
    run = pets.train(seed=2)
    write_samples(pets.workspace.root / TRAINING_SAMPLES, split_samples(pets.workspace.packed, "test"))
    pets.succession.registry.log_files(version.run_id, {pets.workspace.root / TRAINING_SAMPLES: "provenance"})
    with pytest.raises(
        RegistryError, match=rf"pets version 1: provenance/{TRAINING_SAMPLES} is not what was registered"
    ):
        pets.judge(run)


def test_samples_are_written_whatever_their_order_and_found_by_group(pets: Pets, tmp_path: Path) -> None:
    pets.pack(by_position)
    index = pl.read_parquet(pets.workspace.packed / "index.parquet")
    index.with_columns(group=pl.col("split")).write_parquet(pets.workspace.packed / "index.parquet")
    train, test = (split_samples(pets.workspace.packed, name) for name in ("train", "test"))
    assert not test.are_in(train).any()
    same_group = type(train)(train.content, train.pixels, np.full(len(train), test.groups[0]))
    assert test.are_in(same_group).all()
    write_samples(tmp_path / "a.parquet", train)
    order = np.random.default_rng(0).permutation(len(train))
    write_samples(tmp_path / "b.parquet", type(train)(*(values[order] for values in vars(train).values())))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert read_samples(tmp_path / "a.parquet").are_in(train).all()
