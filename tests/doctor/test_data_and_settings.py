"""The doctor reports planted faults of data and settings, and is silent about sound ones."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.doctor import check_samples, describe_finding, settings_checks
from ratchet.doctor.findings import RULES
from ratchet.doctor.settings_checks import check_memory
from ratchet.training import ImageSplit
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


def test_memory_includes_two_copies_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot, and the next one, which waits; and the best weights."""
    monkeypatch.setattr(settings_checks, "available_memory", lambda: 0)
    model = torch.nn.Linear(2**14, 2**12, bias=False)  # 256 MiB
    plan = replace(PLAN, optimizer="sgd")  # a checkpoint is 3 times the weights: their best copy, and the momentum
    (finding,) = check_memory(model, plan, device=CPU, precision="fp32", rows=16, activations=0)
    # weights, gradients and momentum on the device: 2; best weights: 1; copies: 2 of 3
    assert finding.values["need"] == 0.25 * (2 + 1 + 2 * 3)


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
second_waits = threading.Event()
with CheckpointStore(Path(sys.argv[1]), before_write=second_waits.wait) as store:
    for step in (1, 2):
        store.put(snapshot(step))
    second_waits.set()
over.set()
watcher.join()
assert not store.problems, store.problems
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
    assert 1.9 < float(measured) < settings_checks._HOST_COPIES + 0.3


def test_labels_outside_the_classes_are_reported(tmp_path: Path) -> None:
    labels = TRAIN.targets.copy()
    labels[[5, 50]] = 10, -1
    (finding,) = look(Net(), tmp_path, splits=(replace(TRAIN, targets=labels), VALIDATION))
    assert describe_finding(finding).problem == "2 labels in train are not 0 to 9 (10 classes): -1, 10"
    labels[[5, 50]] = -100
    assert list(check_samples(replace(TRAIN, targets=labels), VALIDATION, SPEC, PLAN)) == []


def test_training_samples_of_a_single_class_are_reported() -> None:
    (finding,) = check_samples(replace(TRAIN, targets=np.full_like(TRAIN.targets, 3)), VALIDATION, SPEC, PLAN)
    assert (finding.rule, finding.subject, finding.values["count"]) == (
        "one-class",
        (SPEC.target.names[3],),
        len(TRAIN),
    )


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


def scaled(split: ImageSplit, factor: float) -> ImageSplit:
    """Return the split with other pixels."""
    pixels = split.arrays[0].gather(np.arange(len(split))) * factor
    return ImageSplit.of(split.name, [pixels.clip(0, 255).astype(np.uint8)], split.targets, split.keys)


def test_validation_that_is_scaled_by_itself_is_reported() -> None:
    (finding,) = check_samples(TRAIN, scaled(VALIDATION, 0.25), SPEC, PLAN)
    assert finding.rule == "rescaled-split"


def test_brighter_validation_is_not_reported() -> None:
    assert list(check_samples(TRAIN, scaled(VALIDATION, 1.1), SPEC, PLAN)) == []


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
        limit = f"{rule.limit:g}" if rule.limit else ""
        warning = " (warning)" if rule.severity == "warning" else ""
        row = f"| [`{name}`]({link(rule.source)}) | {rule.measures}{warning} | {limit} |"
        assert row in page, row
        assert f'"{name}"' in source


def link(source: str) -> str:
    """Return the address of the first report."""
    first = source.split(", ")[0]
    if first.startswith("["):
        return first.partition("](")[2].rstrip(")")
    repository, number = first.split("#")
    return f"https://github.com/{repository}/issues/{number}"
