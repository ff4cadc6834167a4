"""Messages of a training that stops early."""

import pytest

from ratchet.cost import CostMeter, TrainingCost
from ratchet.settings.model import BudgetSettings
from tasks.stopping import Budget


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (None, "the same command continues there"),
        (6, "the checkpoint of this step could not be written, so the same command continues at step 6, its newest "),
        (0, "the same command continues from the beginning, because there is no checkpoint"),
    ],
)
def test_stop_names_the_checkpoint_that_exists(kept: int | None, text: str) -> None:
    request = Budget(BudgetSettings(), None, CostMeter()).stopped(9, 80, saved_step=kept)
    assert str(request).startswith("stopped at step 9 of 80: ")
    spent = Budget(BudgetSettings(wall_hours=0.001), TrainingCost(4.0, 0.0, 0.0), CostMeter())
    assert spent.is_spent()
    for refusal in (request, spent.stopped(9, 80, saved_step=kept)):
        assert text in str(refusal)
        assert ("Checkpoint saved" in str(refusal)) == (kept is None and refusal is not request)
