"""Detection of drift in the requests of served versions, from the request log.

sketch.py    bins of a feature, and counts of the rows of a window in them
rule.py      conformal test martingales over windows (W3): when there is an alarm
features.py  features of logged rows: answers, and inputs where the log keeps them
windows.py   rows of the log by version and window
state.py     windows, reference and verdict of each version, in one file
specs.py     specs of the served versions, from the registry
drift_text.py    verdicts for people
labelled_rows.py  logged rows with late labels, as samples
labelled_set.py   a data set of the packed samples and of these rows
to_label.py       rows that should be labelled next
"""

NO_RESULT = "it reads the requests of served versions"
