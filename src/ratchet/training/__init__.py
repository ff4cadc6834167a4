"""Training with torch, NumPy, safetensors and the standard library, and nothing else.

`fit` is a generator of events. Progress bars, trackers and tests read the same events.
"""

from ratchet.training.batches import Split, run_steps
from ratchet.training.checkpoint import CheckpointStore
from ratchet.training.events import Checkpointed, Epoch, Event, Finished, Notice, Points, Started, Stopped, Trouble
from ratchet.training.inputs import TrainingInputs, initial_model, open_split
from ratchet.training.loop import fit
from ratchet.training.models import (
    Classifier,
    ModelSpec,
    build,
    code_digests,
    find_pretrained,
    keep_code,
    load_model,
    require,
    save_model,
    seal,
    verify,
)
from ratchet.training.plan import Plan
from ratchet.training.predict import predict_logits

__all__ = [
    "CheckpointStore",
    "Checkpointed",
    "Classifier",
    "Epoch",
    "Event",
    "Finished",
    "ModelSpec",
    "Notice",
    "Plan",
    "Points",
    "Split",
    "Started",
    "Stopped",
    "TrainingInputs",
    "Trouble",
    "build",
    "code_digests",
    "find_pretrained",
    "fit",
    "initial_model",
    "keep_code",
    "load_model",
    "open_split",
    "predict_logits",
    "require",
    "run_steps",
    "save_model",
    "seal",
    "verify",
]
