"""Tables: rows of a CSV, TSV or Parquet file, from the file to the packed set.

reading.py         the file as a frame: header, names, rows that are no rows
number_formats.py  how numbers and dates are written
columns.py         the type of each column, and its values
targets.py         the problem, and the targets of each row
splits.py          train, validation and test: by content, group, order or as given
time_splits.py     the splits by order: the gap between them, groups that stay whole
special_columns.py the columns that decide the splits
rules.py           rules about single rows
digests.py         digests of rows
encode.py          raw rows to the model's arrays, at ingest and when a model is served
describe.py        statistics of the training rows, and profile.json
table_writer.py    splits, arrays and index of the good rows
ingest.py          all of it together
"""
