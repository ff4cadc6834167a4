"""Reading samples: each once, and not at all if the cache still knows it.

storage.py and identify.py are about files, images.py and pixels.py about one image, the others about many samples.
"""
