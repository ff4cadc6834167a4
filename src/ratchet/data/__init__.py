"""Data in: a source is read, checked, split and packed; what is bad goes to the quarantine table, never into an array.

sources/       what a source holds, in id order
pictures.py    one picture: its header facts, its pixels as packed
contract.py    what is allowed in (pandera)
quarantine.py  what was kept out, and why
split.py       which split a sample belongs to
pack.py        typed arrays in shards
profile.py     what the packed set looks like
manifest.py    the packed set's own description
ingest.py      all of it, in order
unpacked.py    all of it for a user's own Dataset, whose pixels are not packed
"""
