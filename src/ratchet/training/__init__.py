"""Training with torch, NumPy, safetensors and the standard library, and nothing else.

`fit` is a generator of events. Progress bars, trackers and tests read the same events.
"""

from ratchet.training.batches import ImageSplit, ShardedArray, Split, TableSplit, run_steps
from ratchet.training.checkpoint import CheckpointStore
from ratchet.training.events import Checkpointed, Epoch, Event, Finished, Notice, Points, Started, Stopped, Trouble
from ratchet.training.inputs import TrainingInputs, initial_model, model_input, model_target, open_split
from ratchet.training.loop import fit
from ratchet.training.losses import settled
from ratchet.training.models import (
    ImageModel,
    Model,
    ModelSpec,
    build,
    code_digests,
    default_name,
    find_pretrained,
    image_spec,
    keep_code,
    load_model,
    require,
    save_model,
    seal,
    verify,
)
from ratchet.training.plan import Plan
from ratchet.training.predict import answers, predict_outputs

__all__ = [
    "CheckpointStore",
    "Checkpointed",
    "Epoch",
    "Event",
    "Finished",
    "ImageModel",
    "ImageSplit",
    "Model",
    "ModelSpec",
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
    "fit",
    "image_spec",
    "initial_model",
    "keep_code",
    "load_model",
    "model_input",
    "model_target",
    "open_split",
    "predict_outputs",
    "require",
    "run_steps",
    "save_model",
    "seal",
    "settled",
    "verify",
]
