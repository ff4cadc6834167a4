"""Data in: a source is read, checked, split and packed; what is bad goes to the quarantine table, never into an array.

sources/           what a source holds, by id
reading/           files and pictures, read by workers, and what is remembered of them
contract.py        what is allowed in (pandera), and what of it holds for serving and for watching
table_contract.py  what is allowed in a table that lists samples; privacy.py: columns that must not be kept
quarantine.py      what was kept out, and why; releases.py: what was let in by hand all the same
depth.py           how values of more than 8 bits become 0..255
split.py           which split a sample belongs to
pack.py            typed arrays in shards
profile.py         what the packed set looks like
trouble/           what is wrong with it though no rule is broken
manifest.py        the packed set's own description; versions.py: its name in a registry
ingest.py          all of it, in order
unpacked.py        all of it for a user's own Dataset, whose pixels are not packed
difference.py      what differs between two versions; card.py: the data card
"""
