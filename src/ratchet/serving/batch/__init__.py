"""Batch scoring: rows of files in, shards of answers out. Only the lists of files and of row ranges grow in memory.

row_reader.py    the rows of files: counted, and read in batches
answer_files.py  answers as CSV, JSON Lines or Parquet
job.py           the manifest of a job, and its shards: plan them, begin or continue it, write one
"""
