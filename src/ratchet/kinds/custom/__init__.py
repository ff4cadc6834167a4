"""Samples of a user's own kind as a kind of samples."""

CHOSEN_BY = {"kind": ("arrays",)}
