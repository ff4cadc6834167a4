"""Training with torch, NumPy, safetensors and the standard library, and nothing else.

`fit` is a generator of events. Progress bars, trackers and tests read the same events.
"""

from ratchet.training.batches import ImageSplit, ShardedArray, Split, TableSplit, run_steps
from ratchet.training.checkpoint import CheckpointStore
from ratchet.training.events import Checkpointed, Epoch, Event, Finished, Notice, Points, Started, Stopped, Trouble
from ratchet.training.inputs import TrainingInputs, initial_model, model_input, model_target, open_split
from ratchet.training.loop import fit
from ratchet.training.losses import resolve_auto
from ratchet.training.models import (
    ImageModel,
    Model,
    build,
    code_digests,
    default_name,
    find_pretrained,
    keep_code,
    load_model,
    require,
    save_model,
)
from ratchet.training.own_loss import own_loss
from ratchet.training.plan import Plan
from ratchet.training.predict import answers, predict_outputs, token_shares
from ratchet.training.processes import fit_in_processes
from ratchet.training.pruning import pruned_spec
from ratchet.training.teacher import find_teacher

__all__ = [
    "CheckpointStore",
    "Checkpointed",
    "Epoch",
    "Event",
    "Finished",
    "ImageModel",
    "ImageSplit",
    "Model",
    "Notice",
    "Plan",
    "Points",
    "ShardedArray",
    "Split",
    "Started",
    "Stopped",
    "TableSplit",
    "TrainingInputs",
    "Trouble",
    "answers",
    "build",
    "code_digests",
    "default_name",
    "find_pretrained",
    "find_teacher",
    "fit",
    "fit_in_processes",
    "initial_model",
    "keep_code",
    "load_model",
    "model_input",
    "model_target",
    "open_split",
    "own_loss",
    "predict_outputs",
    "pruned_spec",
    "require",
    "resolve_auto",
    "run_steps",
    "save_model",
    "token_shares",
]
