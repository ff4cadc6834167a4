"""Detection of drift in the requests of served versions, which the server counts beside its request log.

sketch.py      bins of a feature, and counts of the requests of a window in them
features.py    features of answered rows: answers and inputs
reference.py   bins and counts of the test rows, stored with a version
sketch_log.py  sketches that the server makes, by version and window
rule.py        conformal test martingales over windows (W3): when there is an alarm
watch.py       reference, scores and verdict of each version, in one file
drift_text.py  verdicts for people
windows.py     rows of the log by version and window
specs.py       specs of the served versions, from the registry
labelled_rows.py  logged rows with late labels, as samples
labelled_set.py   a data set of the packed samples and of these rows
to_label.py       rows that should be labelled next
retraining.py     whether these rows are enough for a training
quality.py        quality from late labels, and from confidence
"""

NO_RESULT = "it decides how a served version is watched"
