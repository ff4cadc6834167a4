"""The judgement with a real registry: the champion's samples, its answers, and each try in the ledger."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, RegistryError
from ratchet.evaluation.predictions import read_predictions
from ratchet.gate.case import LeftOut
from ratchet.gate.rules import ChampionResult
from ratchet.gate.verdict import Verdict
from ratchet.gate.verdict_text import message, rule_text
from ratchet.kinds import ModelSpec
from ratchet.registry.promotion import Promotions
from ratchet.registry.runs import Run
from ratchet.registry.sample_digests import TRAINING_SAMPLES, read_samples, split_samples, write_samples
from ratchet.registry.versions import Version
from ratchet.settings.model import DataSettings, EvaluationSettings, GateSettings, Params, RegistrySettings
from ratchet.training import build, save_model
from ratchet.training.models import default_name
from ratchet.workspace import Workspace
from tasks.evaluate import evaluate
from tasks.gate_inputs import judge_model
from tasks.progress import Terminal

pytestmark = [pytest.mark.usefixtures("mlflows_own"), pytest.mark.system]

EVERYTHING = EvaluationSettings(slices=[], robustness_rows=0, explained_errors=0, resamples=100)
GATE = GateSettings(
    minimum=0.0,
    latency_factor=0.0,
    size_factor=0.0,
    calibration_error=1.0,
    minimum_rows=10,
    classes="may-grow",
)


@dataclass
class Pets:
    """A project without flows: numbered images, untrained models, and a registry."""

    workspace: Workspace
    params: Params
    runs: int = 0

    @property
    def promotions(self) -> Promotions:
        return Promotions(self.workspace, self.params, "pets")

    def pack(
        self, split: Callable[[int], str], *, classes: int = 2, size: int = 8, names: str = "{}.png", group: int = 0
    ) -> None:
        """Ingest 60 images. The number decides the content; `names` the file names; `group`: images of each group."""
        folder = self.workspace.root / f"images-{self.runs}-{size}-{classes}"
        folder.mkdir()
        lines = ["path,label,split,group" if group else "path,label,split"]
        for number in range(60):
            pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / names.format(number))
            line = f"{names.format(number)},kind{number % classes},{split(number)}"
            lines.append(f"{line},{number // group}" if group else line)
        (folder / "labels.csv").write_text("\n".join(lines))
        ingest(
            IngestTask(
                DataSettings(source="image-manifest", path=folder.name, manifest="labels.csv", image_size=size),
                packed=self.workspace.packed,
                quarantine=self.workspace.quarantine,
                root=self.workspace.root,
            )
        )

    def pack_table(self, *, extra: bool = False, aged: float = 0.0, group: bool = False) -> None:
        """Ingest 600 rows with two rare labels: an untrained model that predicts both from 0.5 on is rarely right.

        `extra`: they have one more column. `aged` is added to a value of each row. `group`: a column identifies them.
        """
        numbers = np.random.default_rng(0).normal(size=(600, 4)).round(3)
        frame = pl.DataFrame(numbers, schema=list("abcd")).with_columns(
            (pl.col("a") > 1.2).alias("high"), (pl.col("b") < -1.2).alias("low")
        )
        frame = frame.with_columns(pl.col("c") + aged, *([pl.lit(1.5).alias("more") + pl.col("d")] if extra else []))
        if group:
            frame = frame.with_columns(pl.Series("group", [f"row {number}" for number in range(600)]))
        frame.write_csv(self.workspace.root / "rows.csv")
        ingest(
            IngestTask(
                DataSettings(kind="table", path="rows.csv", label_column=["high", "low"], test_fraction=0.4),
                packed=self.workspace.packed,
                quarantine=self.workspace.quarantine,
                root=self.workspace.root,
            )
        )

    def train(self, *, seed: int) -> tuple[str, str]:
        """Evaluate and store an untrained model. Return the run id and the model URI."""
        self.runs += 1
        packed = Manifest.read(self.workspace.packed)
        name = default_name(packed.input.kind)
        spec = ModelSpec(name, packed.input, packed.target)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            save_model(self.workspace.model, build(spec).state_dict(), spec, about={"training": {}})
        evaluate(self.params, self.workspace, progress=Terminal("evaluate", unit="rows"))
        run = Run(self.workspace, self.params, f"run-{self.runs}")
        run.settings({"seed": seed})
        run_id = run.send()
        run.journal.close()
        return run_id, self.promotions.registry.log_model(run_id, self.workspace.model, spec)

    def champion(self, *, with_record: bool = True) -> Version:
        """Make a version champion, with the record of samples that the register stage stores."""
        run_id, model_uri = self.train(seed=1)
        registry, folder = self.promotions.registry, self.workspace.root
        record = folder / "provenance.json"
        record.write_text(json.dumps({"dvc": {}}))
        kept = {record: "provenance"}
        if with_record:
            write_samples(folder / TRAINING_SAMPLES, split_samples(self.workspace.packed, "train", "validation"))
            kept[folder / TRAINING_SAMPLES] = "provenance"
        registry.log_files(run_id, kept)
        version = registry.add_version("pets", run_id, model_uri, tags={"ratchet.verdict": "{}"})
        self.promotions.register(version, why="good", over=None)
        self.promotions.promote_automatically(version, over=None)
        return version

    def judge(self, run: tuple[str, str]) -> Verdict:
        """Judge a run's model as the register stage does."""
        over = self.promotions.synchronize().champion
        return judge_model(self.promotions, *run, self.params, self.workspace, over=over)

    def judgements(self) -> list[dict[str, object]]:
        return [dict(entry.content) for entry in self.promotions.entries() if entry.what == "judge"]


@pytest.fixture
def pets(tmp_path: Path) -> Pets:
    registry = RegistrySettings(export="none", ledger=f"sqlite:///{tmp_path}/ledger.db")
    return Pets(Workspace(tmp_path), Params(registry=registry, gate=GATE, evaluation=EVERYTHING))


def champion_rule(verdict: Verdict) -> ChampionResult:
    return next(rule for rule in verdict.rules if isinstance(rule, ChampionResult))


def by_position(number: int) -> str:
    return "train" if number < 30 else "validation" if number < 36 else "test"


def shifted(number: int) -> str:
    """Other splits: of the 24 test images, 12 were training images of the champion and 4 validation images."""
    return "test" if 18 <= number < 34 or number >= 52 else "validation" if number < 6 else "train"


def test_images_that_the_champion_saw_are_left_out(pets: Pets) -> None:
    """Files are renamed and splits are changed; the 16 images are recognised by their content."""
    pets.pack(by_position)
    pets.champion()
    pets.pack(shifted, names="renamed-{}.png")
    verdict = pets.judge(pets.train(seed=2))
    result = champion_rule(verdict)
    assert not result.passed
    assert "only 8 of 24 test images can be compared (16 were used to train or select" in rule_text(result).measured
    pets.params = pets.params.model_copy(update={"gate": GATE.model_copy(update={"minimum_rows": 5})})
    verdict = pets.judge(pets.train(seed=2))
    assert verdict.comparison is not None
    assert (verdict.comparison.rows, champion_rule(verdict).test_images) == (8, 24)


def rows_of(pets: Pets, *splits: str) -> set[str]:
    """Rows of some splits, by their numbers in the file."""
    index = pl.read_parquet(pets.workspace.packed / "index.parquet")
    return set(index.filter(pl.col("split").is_in(splits))["id"])


def test_rows_with_another_column_are_recognised_by_the_others(pets: Pets) -> None:
    """Another column draws other splits, so rows that the champion was trained on are test rows now."""
    pets.pack_table()
    pets.champion()
    learned = rows_of(pets, "train", "validation")
    pets.judge(pets.train(seed=2))
    pets.pack_table(extra=True)
    result = champion_rule(pets.judge(pets.train(seed=3)))
    test = rows_of(pets, "test")
    assert result.comparison is not None
    assert (result.test_images, result.comparison.rows) == (len(test), len(test - learned))
    assert 0 < len(test - learned) < len(test)
    assert result.comparison.number == 2  # no try is restored
    assert result.new_share == 0.0


@pytest.mark.parametrize("changed", ["extra", "aged"])
def test_rows_with_other_values_are_recognised_by_group_alone(pets: Pets, changed: str) -> None:
    """The rows are those of the champion."""
    pets.pack_table(group=True)
    pets.champion()
    pets.judge(pets.train(seed=2))
    pets.pack_table(group=True, extra=changed == "extra", aged=1.0 if changed == "aged" else 0.0)
    result = champion_rule(pets.judge(pets.train(seed=3)))
    assert result.comparison is not None
    assert (result.comparison.number, result.comparison.rows) == (2, result.test_images)  # no try is restored
    assert result.new_share == 0.0


def test_candidate_with_new_class_and_size_is_compared(pets: Pets) -> None:
    pets.pack(by_position)
    pets.champion()
    pets.pack(by_position, classes=3, size=16)
    verdict = pets.judge(pets.train(seed=2))
    assert verdict.comparison is not None
    result = champion_rule(verdict)
    assert (verdict.comparison.rows, result.test_images) == (16, 24)
    assert result.input_shapes == ((16, 16, 3), (8, 8, 3))
    assert result.left_out == LeftOut(unknown=8)


def test_a_champion_of_labels_has_thresholds_of_its_own(pets: Pets) -> None:
    pets.pack_table()
    pets.champion()
    own = read_predictions(pets.workspace.reports / "predictions.parquet")
    verdict = pets.judge(pets.train(seed=2))
    other = read_predictions(pets.workspace.reports / "predictions.parquet")
    assert len({0.5, *own.thresholds, *other.thresholds}) == 5
    scores = champion_rule(verdict).scores
    assert scores is not None
    assert scores.champion.interval.value == pytest.approx(own.score.mean())
    assert replace(own, thresholds=other.thresholds).score.mean() != pytest.approx(own.score.mean())


def test_every_candidate_is_one_try(pets: Pets) -> None:
    """The champion's weights are nothing new, and the same answers of another run are the same try."""
    pets.pack(by_position)
    first = pets.train(seed=1)
    assert pets.judge(first).comparison is None  # without a champion nothing is compared
    pets.champion()
    verdict = pets.judge(pets.train(seed=1))
    result = champion_rule(verdict)
    assert result.obstacle is not None
    assert (result.passed, result.obstacle.kind, verdict.comparison) == (False, "same weights", None)
    assert rule_text(result).short == "nothing new: the weights of pets version 1"
    second = pets.train(seed=2)
    verdict = pets.judge(second)
    assert pets.judge(second) == verdict
    assert pets.judge(pets.train(seed=2)) == verdict
    third = pets.judge(pets.train(seed=3))
    judgements = [entry for entry in pets.judgements() if entry["try"] is not None]
    assert [entry["try"] for entry in judgements] == [1, 2]
    assert verdict.comparison is not None
    assert third.comparison is not None
    assert (verdict.comparison.number, third.comparison.number) == (1, 2)
    assert third.comparison.level < verdict.comparison.level
    assert ["sample" in entry for entry in pets.judgements()].count(True) == 1  # the digests are stored once
    assert pets.promotions.ledger.read().faults == []
    assert pets.promotions.fault() is None


def test_groups_are_units_of_the_verdict_and_the_try(pets: Pets) -> None:
    pets.pack(by_position)
    pets.champion()
    questions = []
    for group, count in ((0, None), (3, 8), (2, 12)):
        pets.pack(by_position, group=group)
        comparison = pets.judge(pets.train(seed=2)).comparison if count != 8 else None
        if count == 8:
            assert rule_text(champion_rule(pets.judge(pets.train(seed=2)))).measured.startswith(
                "not comparable with pets version 1: only 8 groups of 24 test images can be compared"
            )
        else:
            assert comparison is not None
            assert (comparison.votes and (comparison.votes.count, comparison.votes.by)) == (count and (count, "groups"))
        questions.append(pets.judgements()[-1]["question"])
    assert len(set(questions)) == 3


def test_champion_without_a_valid_record_is_refused(pets: Pets) -> None:
    pets.pack(by_position)
    version = pets.champion(with_record=False)
    run = pets.train(seed=2)
    assert "no record says which samples it was trained on" in message(pets.judge(run))
    name = f"provenance/{TRAINING_SAMPLES}"
    write_samples(pets.workspace.root / TRAINING_SAMPLES, split_samples(pets.workspace.packed, "train"))
    pets.promotions.registry.log_files(version.run_id, {pets.workspace.root / TRAINING_SAMPLES: "provenance"})
    assert "no record says which samples" in message(pets.judge(run))  # the ledger does not cover the new record
    assert name not in (pets.promotions.recorded_evidence(version) or {})


def test_replaced_record_is_refused(pets: Pets) -> None:
    pets.pack(by_position)
    version = pets.champion()
    run = pets.train(seed=2)
    write_samples(pets.workspace.root / TRAINING_SAMPLES, split_samples(pets.workspace.packed, "test"))
    pets.promotions.registry.log_files(version.run_id, {pets.workspace.root / TRAINING_SAMPLES: "provenance"})
    with pytest.raises(
        RegistryError, match=rf"pets version 1: provenance/{TRAINING_SAMPLES} is not what was registered"
    ):
        pets.judge(run)


def test_samples_are_matched_by_group_in_any_order(pets: Pets, tmp_path: Path) -> None:
    pets.pack(by_position)
    index = pl.read_parquet(pets.workspace.packed / "index.parquet")
    index.with_columns(group=pl.col("split")).write_parquet(pets.workspace.packed / "index.parquet")
    train, test = (split_samples(pets.workspace.packed, name) for name in ("train", "test"))
    assert not test.are_in(train).any()
    same_group = type(train)(train.content, train.pixels, np.full(len(train), test.groups[0]))
    assert test.are_in(same_group).all()
    write_samples(tmp_path / "a.parquet", train)
    order = np.random.default_rng(0).permutation(len(train))
    write_samples(tmp_path / "b.parquet", type(train)(train.content[order], train.pixels[order], train.groups[order]))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert read_samples(tmp_path / "a.parquet").are_in(train).all()


def test_predictions_of_other_images_are_refused(pets: Pets) -> None:
    """The order counts too: scores are compared with the champion's row by row."""
    pets.pack(by_position)
    run = pets.train(seed=2)
    path = pets.workspace.reports / "predictions.parquet"
    pl.read_parquet(path).reverse().write_parquet(path, metadata=pl.read_parquet_metadata(path))
    with pytest.raises(
        DataError, match=r"its samples are not the test samples of data/packed\. Fix: `dvc repro evaluate`"
    ):
        pets.judge(run)
    assert pets.judgements() == []
