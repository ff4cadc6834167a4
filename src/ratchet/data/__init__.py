"""Data in: a source is read, checked, split and packed; what is bad goes to the quarantine table, never into an array.

sources/       what a source holds, in id order
storage.py     where its files lie: a folder of this machine, or a URL
privacy.py     columns that must not be kept; spelling.py: labels that only look like others
pictures.py    one picture: its header facts, its pixels as packed
survey.py      all of them read, by workers; reading.py: what one does; pool.py: how they share it; scratch.py: where
               their pixels go
contract.py    what is allowed in (pandera), and what of it holds for serving and for watching
quarantine.py  what was kept out, and why; releases.py: what was let in by hand all the same
split.py       which split a sample belongs to
pack.py        typed arrays in shards
memo.py        what is known from before, so that only what changed is read
profile.py     what the packed set looks like; likeness.py: near copies; telling.py: what gives the class away
labels.py      labels that are likely wrong
manifest.py    the packed set's own description
ingest.py      all of it, in order
unpacked.py    all of it for a user's own Dataset, whose pixels are not packed
card.py        the data card; difference.py: what differs between two versions
"""
