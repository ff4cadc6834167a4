"""A trial whose model gives one answer to nearly all validation samples is recognised, on the real digits."""

from pathlib import Path

import pytest
import torch

from ratchet import settings, training
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.workspace import Workspace
from tasks.search_trial import constant_answer
from tasks.training_job import TrainingJob


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.params.write_text(settings.template())
    ingest(
        IngestTask(
            settings.load(workspace.params).data,
            packed=workspace.packed,
            quarantine=workspace.quarantine,
            root=workspace.root,
        )
    )
    return workspace


def test_one_answer_to_all_validation_samples_is_named(workspace: Workspace) -> None:
    job = TrainingJob.of(settings.load(workspace.params), workspace, Manifest.read(workspace.packed))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights = training.build(job.spec).state_dict()
    constant = {name: torch.zeros_like(values) for name, values in weights.items()}
    assert constant_answer(job, workspace.packed, constant) == "'0'"  # all outputs are equal: the first class
    fitted = constant | {name: values for name, values in weights.items() if "bias" not in name}
    assert constant_answer(job, workspace.packed, fitted) == ""  # random weights give several answers
