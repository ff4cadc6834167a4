"""What a person types: `ratchet ...`."""
