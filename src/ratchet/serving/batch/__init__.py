"""Batch scoring: rows of files in, shards of answers out, in memory that grows with neither.

input_files.py   list, open and read input files, local or on S3
row_reader.py    the rows of files in batches
answer_files.py  answers as CSV, JSON Lines or Parquet
output.py        an output folder, local or on S3, and its lock
job.py           the manifest of a job, and its shards: begin it, or continue it
"""
