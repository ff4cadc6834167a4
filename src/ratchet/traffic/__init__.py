"""The request log of the model server: what was asked and answered, for monitoring and for `ratchet trace`.

schema.py             columns of the log, and the rows of its requests
request_log.py        write rows to Parquet files, beside the server's work
log_reader.py         read them back
label_store.py        labels that arrive after the answers
log_summary.py        requests by hour and version, with their labels
shadow_comparison.py  answers of a shadow version beside those that were given
"""

NO_RESULT = {"register": "it is read when a user promotes a version, which the stage does not"}
