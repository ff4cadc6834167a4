"""Versions that answer requests.

loaded.py         a version in memory, tried
alias_watcher.py  follow an alias: load, check, change over
batching.py       the queue, and the thread that computes batches
"""
