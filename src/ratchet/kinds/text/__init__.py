"""Texts as a kind of samples."""

CHOSEN_BY = {"kind": ("text",)}
