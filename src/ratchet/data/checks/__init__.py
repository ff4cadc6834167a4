"""Checks for faults that break no rule. Except for exact duplicates, they only report; they never drop a sample."""
