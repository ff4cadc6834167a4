"""The doctor reports planted faults of data, own Datasets and settings, and is silent about sound ones."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.doctor import Finding, check_samples, describe_finding, settings_checks
from ratchet.doctor.findings import RULES
from ratchet.doctor.settings_checks import check_memory
from ratchet.errors import TrainingError
from ratchet.training import ImageSplit
from ratchet.training.custom_dataset import DatasetSplit, _Stack
from ratchet.training.custom_samples import Factory
from ratchet.training.sample_reader import SampleReader
from tests.doctor.test_models import CPU, PLAN, SPEC, TRAIN, VALIDATION, Net, look, split


@pytest.mark.parametrize(
    ("changes", "rule", "values"),
    [
        ({"warmup_epochs": 20.0}, "long-warmup", {"warmup": 20.0, "steps": 40, "epochs": 10.0}),
        ({"warmup_epochs": 8.0}, "long-warmup", {"warmup": 8.0}),
        ({"max_steps": 3}, "long-warmup", {"steps": 3, "epochs": 0.75}),
        ({"schedule": "step", "step_epochs": 10}, "late-decay", {"value": 10}),
        ({"schedule": "plateau", "plateau_patience": 9}, "late-decay", {"value": 10}),
        ({"schedule": "step", "step_epochs": 1}, "low-learning-rate", {}),
        ({"accumulation": 16}, "small-micro-batch", {"samples": 4, "norms": 2}),
        ({"batch_size": 2}, "small-micro-batch", {"batch_size": 2}),
        ({"keep_last": 10**9}, "disk-space", {"count": 10**9 + 2}),
    ],
)
def test_setting_that_is_hardly_intended_is_reported(
    tmp_path: Path, changes: dict[str, Any], rule: str, values: dict[str, object]
) -> None:
    torch.manual_seed(0)
    (finding,) = look(Net(), tmp_path, plan=replace(PLAN, **changes))
    assert finding.rule == rule
    assert values.items() <= finding.values.items()


def test_batch_larger_than_memory_is_reported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    findings = look(Net(), tmp_path, plan=replace(PLAN, batch_size=10**9), rows=10**9)
    (finding,) = [each for each in findings if each.rule == "memory"]
    assert finding.values["samples"] == 10**9
    full, half = (
        next(check_memory(Net(), PLAN, device=CPU, precision=name, rows=64, activations=10**12)).values["batch"]
        for name in ("fp32", "bf16")
    )
    assert full == pytest.approx(2 * half, rel=1e-3)


def test_memory_includes_four_copies_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot, its bytes, the file read back, and the next snapshot, which waits; and the best weights."""
    monkeypatch.setattr(settings_checks, "available_memory", lambda: 0)
    model = torch.nn.Linear(2**14, 2**12, bias=False)  # 256 MiB
    plan = replace(PLAN, optimizer="sgd")  # a checkpoint is 3 times the weights: their best copy, and the momentum
    (finding,) = check_memory(model, plan, device=CPU, precision="fp32", rows=16, activations=0)
    # weights, gradients and momentum on the device: 2; best weights: 1; copies: 4 of 3
    assert finding.values["need"] == 0.25 * (2 + 1 + 4 * 3)


COPIES = """
import sys, threading
from pathlib import Path
import torch
from ratchet.training.checkpoint import CheckpointStore, Snapshot

SIZE = 64 << 20

def used():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def snapshot(step):
    return Snapshot(step=step, tensors={"weights": torch.full((SIZE // 4,), float(step))}, state={})

snapshot(0)
before, highest, over = used(), 0, threading.Event()

def watch():
    global highest
    while not over.wait(0.001):
        highest = max(highest, used())

watcher = threading.Thread(target=watch)
watcher.start()
with CheckpointStore(Path(sys.argv[1])) as store:
    for step in (1, 2):
        store.put(snapshot(step))
over.set()
watcher.join()
print((highest - before) / SIZE)
"""


def test_measured_checkpoint_copies_are_those_expected(tmp_path: Path) -> None:
    """Measured in another process: one checkpoint is written while the next waits."""
    measured = subprocess.run(
        [sys.executable, "-c", COPIES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    ).stdout
    assert 3.5 < float(measured) < settings_checks._HOST_COPIES + 0.3


def test_labels_outside_the_classes_are_reported(tmp_path: Path) -> None:
    labels = TRAIN.targets.copy()
    labels[[5, 50]] = 10, -1
    (finding,) = look(Net(), tmp_path, splits=(replace(TRAIN, targets=labels), VALIDATION))
    assert describe_finding(finding).problem == "2 labels in train are not 0 to 9 (10 classes): -1, 10"
    labels[[5, 50]] = -100
    assert list(check_samples(replace(TRAIN, targets=labels), VALIDATION, SPEC, PLAN)) == []


def test_sample_in_both_splits_is_reported() -> None:
    keys = VALIDATION.keys.copy()
    keys[3] = TRAIN.keys[7]
    (finding,) = check_samples(TRAIN, replace(VALIDATION, keys=keys), SPEC, PLAN)
    assert (finding.rule, finding.values["count"], finding.values["of"]) == ("leak-by-id", 1, 80)
    images = VALIDATION.arrays[0].shards[0].copy()
    images[:5] = TRAIN.arrays[0].shards[0][10:15]
    leaking = ImageSplit.of("validation", [images], VALIDATION.targets, VALIDATION.keys)
    (finding,) = check_samples(TRAIN, leaking, SPEC, PLAN)
    assert (finding.rule, finding.values["count"], finding.severity) == ("leak-by-content", 5, "error")


DATASET = """
import random
import numpy as np
import torch
from torch.utils.data import Dataset

PATTERNS = np.random.default_rng(7).uniform(0, 1, (10, 3, 16, 16)).astype(np.float32)


class Images(Dataset):
    classes = [f"class {number}" for number in range(10)]

    def __init__(self, split):
        self.split = split
        self.generator = generator = np.random.default_rng(["train", "validation"].index(split))
        self.labels = generator.integers(0, 10, 120).tolist()
        noise = generator.normal(0, 0.25, (120, 3, 16, 16))
        self.images = torch.from_numpy(np.clip(0.5 * PATTERNS[self.labels] + 0.25 + noise, 0, 1).astype(np.float32))
        self.buffer = torch.empty(3, 16, 16)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image, label = self.images[index].clone(), self.labels[index]
        CHANGE
        return image, label


def make(split):
    return Images(split)
"""
_IN_TRAIN, _IN_VALIDATION = 'if self.split == "train": ', 'if self.split == "validation": '
_FLIP = "image = image.flip(2) if {} < 0.5 else image"
DATASETS: dict[str, tuple[str, str]] = {  # code that changes a sample, the rule
    "augmented validation": (_FLIP.format("torch.rand(())"), "augmented-validation"),
    "noise in validation": ("image = image + 0.1 * torch.randn_like(image)", "augmented-validation"),
    "own generator": (_FLIP.format("self.generator.random()"), "unseeded-dataset"),
    "new generator": (_FLIP.format("np.random.default_rng().random()"), "unseeded-dataset"),
    "validation not divided": (_IN_VALIDATION + "image = image * 255", "rescaled-split"),
    "validation standardised alone": (_IN_VALIDATION + "image = (image - 0.5) / 0.25", "rescaled-split"),
    "one buffer for all": ("image = self.buffer.copy_(image)", "reused-buffer"),
    "in-place change": ("image = self.images[index].mul_(0.5)", "in-place-change"),
    "in-place change, a copy returned": ("image = self.images[index].add_(0.1).clone()", "in-place-change"),
    "channels last": ("image = image[:, :, :12].transpose(0, 2).contiguous()", "channels-last"),
    "six images repeated": (_IN_TRAIN + "image = self.images[index % 6].clone()", "repeated-images"),
}
SOUND_DATASETS = {
    "plain": "",
    **{f"flipped by {draw}": _IN_TRAIN + _FLIP.format(draw) for draw in ("torch.rand(())", "random.random()")},
    "noise in train": _IN_TRAIN + "image = image + 0.2 * torch.randn_like(image)",
    "a view of its data": "image = self.images[index]",
    "standardised": "image = (image - 0.5) / 0.25",
    "brighter validation": _IN_VALIDATION + "image = image * 1.1",
    "value that is not finite": "image[0, 0, 0] = float('inf') if index == 3 else image[0, 0, 0]",
}
Check = Callable[[str], list[Finding]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Return the findings about a Dataset with a piece of code, opened as after ingest."""

    def check(change: str) -> list[Finding]:
        module = f"own_{abs(hash(change))}"
        (tmp_path / f"{module}.py").write_text(DATASET.replace("CHANGE", change or "pass"))
        factory = Factory(f"{module}:make", tmp_path, f"{module}.py")
        return list(check_samples(opened(factory, "train", 0), opened(factory, "validation", 10**6), SPEC, PLAN))

    return check


def opened(factory: Factory, name: str, first: int) -> DatasetSplit:
    """A split of a Dataset without ingest, which takes seconds."""
    dataset = factory.open(name)
    read = [dataset[place] for place in range(len(dataset))]
    channels, height, width = read[0][0].shape
    return DatasetSplit(
        name, (), np.array([label for _, label in read], np.int64),
        np.arange(first, first + len(read), dtype=np.uint64),
        reader=SampleReader(factory, _Stack((height, width, channels), "float32"), workers=0),
        places=np.arange(len(read)), low=np.zeros(channels, np.float32), high=np.ones(channels, np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("name", DATASETS)
def test_planted_fault_of_a_dataset_is_named(check: Check, name: str) -> None:
    change, rule = DATASETS[name]
    findings = check(change)
    assert [finding.rule for finding in findings if describe_finding(finding).fix] == [rule], findings


@pytest.mark.parametrize("name", SOUND_DATASETS)
def test_sound_dataset_gets_no_finding(check: Check, name: str) -> None:
    assert check(SOUND_DATASETS[name]) == []


def test_sample_that_cannot_be_read_is_one_clear_error(check: Check) -> None:
    with pytest.raises(TrainingError, match=r"data\.factory: sample \d+ cannot be read \(AssertionError"):
        check("self.reads = getattr(self, 'reads', 0) + 1; assert self.reads < 130")


def test_repeated_images_are_reported_with_their_number() -> None:
    image = split("train", 1, 5).arrays[0].shards[0]
    repeated = ImageSplit.of(
        "train", [np.broadcast_to(image, (60, 16, 16, 3))], np.arange(60) % 10, np.arange(60, dtype=np.uint64)
    )
    (finding,) = check_samples(repeated, VALIDATION, SPEC, PLAN)
    assert (finding.rule, finding.values["count"], finding.values["different"]) == ("repeated-images", 60, 1)


def test_every_rule_is_documented_as_in_the_table() -> None:
    """The rows of the page are those of rules.toml, and every rule is used."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "preflight.md").read_text()
    source = "".join(path.read_text() for path in (root / "src" / "ratchet" / "doctor").glob("*.py"))
    for name, rule in RULES.items():
        sources = [each if each.startswith("[") else link(each) for each in rule.source.split(", ")]
        limit = f"{rule.limit:g}" if rule.limit else ""
        row = f"| `{name}` | {rule.measures} | {limit} | {rule.severity} | {', '.join(sources)} |"
        assert row in page, row
        assert f'"{name}"' in source


def link(issue: str) -> str:
    repository, number = issue.split("#")
    return f"[{issue}](https://github.com/{repository}/issues/{number})"
