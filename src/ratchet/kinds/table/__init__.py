"""Rows of a table as a kind of samples."""
