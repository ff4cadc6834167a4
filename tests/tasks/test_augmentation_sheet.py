"""The sheet of augmented images in the data card, by the images that the training makes of the real digits."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet import files, settings
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.reports.data_card import card, shows
from ratchet.reports.inline_images import inline
from ratchet.training.augment import epoch_rows
from ratchet.workspace import Workspace
from tasks.augmentation_sheet import show_augmentation
from tasks.training_job import TrainingJob


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """The digits with their data card."""
    workspace = Workspace(tmp_path)
    workspace.params.write_text(settings.template())
    places = {"packed": workspace.packed, "quarantine": workspace.quarantine, "root": workspace.root}
    ingest(IngestTask(settings.load(workspace.params).data, **places))
    files.write_text(workspace.card, card(workspace.packed, workspace.quarantine, changed=None))
    return workspace


def shown(workspace: Workspace, **training: object) -> tuple[TrainingJob, str]:
    """Begin a training with these settings, and return the section of the card."""
    settings.override(workspace.params, {f"training.{name}": value for name, value in training.items()})
    job = TrainingJob.of(settings.load(workspace.params), workspace, Manifest.read(workspace.packed))
    show_augmentation(workspace, job, job.open(workspace.packed, "train"))
    text = workspace.card.read_text()
    assert shows(workspace.card, Manifest.read(workspace.packed))
    return job, text.partition("<!-- augmentation -->")[2].partition("<!-- end of augmentation -->")[0]


@pytest.mark.parametrize("sampling", ["as-is", "balanced"])
def test_the_card_shows_the_images_that_training_makes(workspace: Workspace, sampling: str) -> None:
    job, section = shown(workspace, augment=[{"flip": 1.0}, {"rotate": 20}], ignore_index=-100, sampling=sampling)
    train = job.open(workspace.packed, "train")
    rows = epoch_rows(job.plan, len(train), train.targets, epoch=0)[: job.plan.batch_size]
    (images,), targets = train.batch(rows, torch.device("cpu"), plan=job.plan, epoch=0)  # the first batch
    expected = [inline(each).url for each in images[:8].permute(0, 2, 3, 1).numpy()]
    urls = re.findall(r'src="([^"]+)"', section)
    assert len(urls) == 16
    assert urls[8:] == expected
    assert urls[:8] == [inline(each).url for each in train.images(rows[:8])]
    assert "flip 1.0, rotate 20" in section
    assert f"From left to right: {', '.join(str(target) for target in targets[:8].tolist())}." in section


def test_balanced_samples_without_a_class_are_left_to_the_training(workspace: Workspace) -> None:
    """Its message says that all labels are ignored."""
    job, _ = shown(workspace, augment=[{"rotate": 20}], sampling="balanced")
    train = job.open(workspace.packed, "train")
    ignored = replace(train, targets=np.full(len(train), -100))
    assert sorted(epoch_rows(job.plan, len(train), ignored.targets, epoch=0)) == list(range(len(train)))
    show_augmentation(workspace, job, ignored)
    assert "ignored" in workspace.card.read_text()


def test_another_training_replaces_the_sheet(workspace: Workspace) -> None:
    shown(workspace, augment=[{"rotate": 20}])
    _, section = shown(workspace, augment=[{"mixup": 0.4}], progressive_sizes=[4, 8], epochs=2)
    assert "rotate" not in section
    assert len(re.findall("<img", section)) == 16


def test_a_card_of_an_earlier_release_stays_as_it_is(workspace: Workspace) -> None:
    older = workspace.card.read_text().replace("<!-- augmentation -->\n", "")
    workspace.card.write_text(older)
    shown(workspace, augment=[{"rotate": 20}])
    assert workspace.card.read_text() == older


def test_without_augmentation_the_card_has_no_sheet(workspace: Workspace) -> None:
    """Also in place of that of an earlier training."""
    shown(workspace, augment=[{"rotate": 20}])
    assert shown(workspace, augment=[])[1].strip() == ""
