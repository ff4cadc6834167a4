"""The command line: `ratchet ...`."""
