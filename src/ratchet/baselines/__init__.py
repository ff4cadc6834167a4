"""Baselines: simple models that are fitted in seconds beside every network, with scikit-learn and NumPy.

A baseline becomes the tensors of a network of `ratchet.training.models.baseline_nets`, so that it is saved, exported,
judged and served like every other model.
"""

from ratchet.baselines.fitting import MOST_VALUES, FittedBaseline, fit_baseline

__all__ = ["MOST_VALUES", "FittedBaseline", "fit_baseline"]

NO_RESULT = {"evaluate": "it fits baselines; this stage reads the one of data/baseline"}
