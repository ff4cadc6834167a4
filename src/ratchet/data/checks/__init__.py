"""What is wrong with data though no rule is broken. It is reported, never dropped unasked.

likeness.py  pictures that look the same
telling.py   columns that give the class away, or tell nothing
labels.py    labels that are likely wrong
spelling.py  labels that only look like others
"""
