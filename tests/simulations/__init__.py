"""Simulations with known truth, shared by tests and bench."""
