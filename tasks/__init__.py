"""The stages: files in, files out. `dvc repro` runs `python -m tasks.NAME`; flows call the same functions."""
