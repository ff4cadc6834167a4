"""What each stage does: files in, files out. `dvc repro` runs `python -m tasks.NAME`, the flows call the same functions."""
