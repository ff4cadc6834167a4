"""The request log of the model server: what was asked and answered, for monitoring and for `ratchet trace`.

schema.py   columns of the log, and the rows of its requests
writing.py  write rows to Parquet files, beside the server's work
reading.py  read them back
labels.py   labels that arrive after the answers
summary.py  requests by hour and version, with their labels
"""

NO_RESULT = {"register": "it is read when a user promotes a version, which the stage does not"}
