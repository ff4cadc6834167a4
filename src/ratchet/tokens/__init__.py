"""Texts as token ids, with NumPy alone, so that a server needs no PyTorch for them."""

CHOSEN_BY = {"kind": ("text", "tokens")}
