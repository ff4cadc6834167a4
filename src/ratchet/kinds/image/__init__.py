"""Images as a kind of samples."""

CHOSEN_BY = {"kind": ("image",)}
