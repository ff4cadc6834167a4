"""Reading samples: each once, and not at all if the cache still knows it.

storage.py   places with files: a local folder or a URL
identify.py  the real kind of a file, by its first bytes
images.py    one image: facts of its header and its packed pixels; pixels.py: decoding to packed pixels
survey.py    all samples of a source, read by workers
worker.py    the work of one worker; pool.py: threads and processes
cache.py     facts and pixels of the ingest before
subset.py    a few samples, for a trial run
"""
