"""Token streams as a kind of samples."""

CHOSEN_BY = {"kind": ("tokens",)}
