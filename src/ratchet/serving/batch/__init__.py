"""Batch scoring: rows of files in, shards of answers out, in memory that grows with neither.

storage.py    list, open and read input files, local or on S3
reading.py    the rows of files in batches
output.py     an output folder, local or on S3, and its lock
job.py        the manifest of a job, and its shards: begin it, or continue it
"""
