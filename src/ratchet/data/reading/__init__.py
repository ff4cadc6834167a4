"""Samples read, each once, and not even once where it is known from before.

storage.py   where files lie: a folder of this machine, or a URL
pictures.py  one picture: its header facts, its pixels as packed
survey.py    all samples of a source, by workers
worker.py    what one of them does; pool.py: how they share the work; scratch.py: where their pixels go
memo.py      what is known from before
sample.py    a few samples in place of all
"""
