"""The record of where a model came from."""
