"""Texts as a kind of samples."""
