"""Data: read a source, check it, split it and pack it. Bad samples go to the quarantine table, never into an array.

ingest.py           ingest of every kind of data; packed_set.py writes the packed set of all of them
image_set.py        images; custom.py: a user's own kind
sample_table.py         what texts and own kinds share; token_streams.py: text for language models
refusal_reasons.py  every reason why a sample is refused, with its fix
image_rules.py      rules about single images; sample_rules.py: how pandera checks such rules
listing_rules.py    rules about tables that list samples; set_rules.py: rules about the whole set
quarantine.py       the quarantine table; overrides.py: samples released by hand
privacy.py          columns that must not be kept
split.py            assignment of samples to splits
pack.py             typed arrays in shards; depth.py: scaling of values of more than 8 bits to 0..255
manifest.py         description of the packed set; profile.py: parts of its statistics; versions.py: its version in DVC
difference.py       differences between two versions
sources/            sources: their classes, their samples by id, and how a sample is read
reading/            each sample is read once, and not at all if the cache still knows it
checks/             faults that break no rule: duplicates, leakage, wrong labels
"""
