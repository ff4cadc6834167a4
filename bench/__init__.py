"""Measurements of what the README and docs claim: `python -m bench.run` makes them all, each script one of them."""
