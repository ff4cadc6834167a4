"""Ingest of texts with a class each.

samples.py  sources: a folder of classes, files with one text per line, or a table
ingest.py   rules, splits and the packed set
"""

from ratchet.data.texts.ingest import ingest_texts

__all__ = ["ingest_texts"]
