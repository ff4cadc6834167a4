"""Checks for faults that break no rule. Except for exact duplicates, they only report; they never drop a sample.

exact_duplicates.py        equal ids, and equal pixels in several splits or under several labels
near_duplicates.py         images that look the same
transformed_duplicates.py  images that are mirrored, turned or cropped copies
leakage.py                 columns that reveal the class
label_errors.py            labels that are likely wrong
label_spelling.py          labels that differ only in spelling
"""
