"""Ratchet: a PyTorch training pipeline whose champion only ever moves forward."""

__all__ = ["__version__"]

__version__ = "0.1.0"
