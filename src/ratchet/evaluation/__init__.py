"""Evaluation of a model on the test images: metrics with confidence intervals, predictions, slices and robustness.

Everything here is a function of arrays and files. Nothing depends on the training or on where results are recorded.
"""

NO_RESULT = {"ingest": "types and texts of the data card, which is no output"}
