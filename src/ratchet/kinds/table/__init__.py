"""Rows of a table as a kind of samples."""

CHOSEN_BY = {"kind": ("table",)}
