"""Prefect's server: its process, and every use of its API by the project."""
