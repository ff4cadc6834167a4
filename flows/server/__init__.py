"""Prefect's server: its process, and everything that the project tells it or asks it through its API."""
