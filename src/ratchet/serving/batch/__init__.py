"""Batch scoring: rows of files in, shards of answers out, in memory that grows with neither.

storage.py    list, open and read input files, local or on S3
reading.py    the rows of files in batches
manifest.py   the job of an output folder, as it began
output.py     an output folder, local or on S3, and its lock
shards.py     score the rows shard by shard, and continue a job
"""
