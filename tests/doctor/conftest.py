"""The fixtures of tests that draw random numbers with PyTorch."""

from tests.training.conftest import _one_thread, _random_state_of_its_own

__all__ = ["_one_thread", "_random_state_of_its_own"]
