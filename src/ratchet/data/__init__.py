"""Data: read a source, check it, split it and pack it. Bad samples go to the quarantine table, never into an array.

sources/           sources: their classes, their samples by id, and how a sample is read
reading/           image files, read by workers, and a cache of their facts
contract.py        rules about single samples (pandera), which serving and monitoring use too
table_contract.py  rules about tables that list samples; set_contract.py: rules about the whole set
privacy.py         columns that must not be kept
quarantine.py      the quarantine table; overrides.py: samples released by hand
depth.py           scaling of values of more than 8 bits to 0..255
split.py           assignment of samples to splits
pack.py            typed arrays in shards
profile.py         statistics of the packed set
checks/            faults that break no rule: duplicates, leakage, wrong labels
manifest.py        description of the packed set; versions.py: its version in DVC
ingest.py          the whole ingest; custom_dataset.py: the same for a user's own Dataset, which is not packed
difference.py      differences between two versions
"""
