"""Names of flow runs: those that Prefect makes up are replaced, chosen ones are kept."""

from random import Random

import pytest
from coolname import RandomGenerator
from coolname.data import config

from flows.run_names import is_made_up


def test_every_name_that_prefect_makes_up_is_known() -> None:
    """Prefect joins two words of this generator."""
    names = RandomGenerator(config, Random(3))
    assert [name for name in (names.generate_slug(2) for _ in range(2_000)) if not is_made_up(name)] == []


@pytest.mark.parametrize("name", ["nightly-retrain", "baseline-large", "new-labels", "digits 2026-11-25", "otter", ""])
def test_name_that_somebody_chose_is_kept(name: str) -> None:
    assert not is_made_up(name)
