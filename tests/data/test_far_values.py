"""Far values, such as fill values, are named with a fix that works, and spoil neither network nor baseline.

Expected values are computed from the numbers without the far ones, and by scikit-learn from the raw numbers.
"""

import datetime

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from ratchet.baselines import fit_baseline
from ratchet.data.checks.far_values import moments
from ratchet.kinds import Array, ArraysInput, ModelSpec, TableInput
from ratchet.problems import Numbers
from ratchet.settings.file import parse_assignments
from ratchet.training import build
from ratchet.training.losses import Objective
from ratchet.training.models.tabular import TableFront
from tests.training.conftest import make_plan

DRAW = np.random.default_rng(3)
TEMPERATURES = DRAW.normal(15, 5, 1500)


def spoiled(values: np.ndarray, far: float, count: int) -> np.ndarray:
    return np.concatenate([values[count:], np.full(count, far)])


@pytest.mark.parametrize(
    ("far", "count"),
    [
        (9.96921e36, 25),
        (-9999.0, 25),
        (9999.0, 400),
        (1e12, 2),
        (3.4e38, 1),
        (-999.0, 30),
        (1e20, 600),
        (9.96921e36, 900),
        (-999.0, 1200),
    ],
)
def test_moments_are_those_of_the_usual_values(far: float, count: int) -> None:
    usual, result = TEMPERATURES[count:], moments(spoiled(TEMPERATURES, far, count))
    assert (result.mean, result.std) == pytest.approx((usual.mean(), usual.std()))
    assert result.range == (usual.min(), usual.max())


@pytest.mark.parametrize("other", [1e30, -1e30])
@pytest.mark.parametrize("fill", [9.96921e36, -999.0])
def test_a_far_value_beside_a_frequent_fill_value(fill: float, other: float) -> None:
    values = spoiled(TEMPERATURES, fill, 900)
    values[0] = other
    assert moments(values).range == (TEMPERATURES[901:].min(), TEMPERATURES[901:].max())


@pytest.mark.parametrize(
    ("codes", "fill"),
    [
        ((-999.0, -998.0, -997.0, -996.0), 0),
        ((9990.0, 9991.0, 9992.0, 9993.0, 9994.0, 9995.0, 9996.0, 9997.0), 0),
        ((1e9,), 900),
        ((-9999.0,), 900),
        ((-998.0, -997.0, 1e9), 900),
    ],
)
def test_several_codes_and_codes_beside_a_fill_are_far(codes: tuple[float, ...], fill: int) -> None:
    values = spoiled(TEMPERATURES, -999.0, fill)
    values[fill - 1500 : fill - 1500 + 3 * len(codes) : 1] = np.tile(codes, 3)
    usual = values[np.abs(values) < 100]
    result = moments(values)
    assert result.range == (usual.min(), usual.max())
    assert (result.mean, result.std) == pytest.approx((usual.mean(), usual.std()))


def test_nine_repeated_values_beyond_a_gap_are_a_cluster() -> None:
    values = np.concatenate([TEMPERATURES, np.tile(9000.0 + np.arange(9), 20)])
    assert moments(values).range is None


@pytest.mark.parametrize(
    "values",
    [
        TEMPERATURES, DRAW.lognormal(0, 2, 20_000), (DRAW.random(5000) < 0.02).astype(float), np.full(50, 0.1),
        np.where(DRAW.random(5000) < 0.95, 0.0, DRAW.lognormal(5, 1, 5000)), DRAW.standard_t(3, 5000),
        DRAW.integers(0, 50, 1000).astype(float), np.array([1.0]), np.array([0.0, 1.0, 1e6]),
        np.where(DRAW.random(3000) < 0.5, 1.0, 1000.0) + DRAW.normal(0, 0.1, 3000),
        np.where(DRAW.random(3000) < 0.6, DRAW.integers(1, 4, 3000), DRAW.choice([100.0, 200.0, 300.0, 500.0], 3000)),
        np.where(DRAW.random(3000) < 0.6, 1.0, 1.0 + DRAW.random(3000)), np.where(DRAW.random(900) < 0.6, 0.0, 1e6),
    ],
    ids=range(13),
)  # fmt: skip
def test_skewed_numbers_flags_and_clusters_have_no_far_values(values: np.ndarray) -> None:
    result = moments(values)
    assert result.range is None
    assert result.mean == pytest.approx(values.mean())
    assert result.std == pytest.approx(values.std() if np.ptp(values) else 1.0)


def test_large_arrays_have_the_same_moments() -> None:
    values = np.tile(TEMPERATURES, 1000).astype(np.float32).reshape(1000, 1500)
    values[3, 5] = 1e30
    assert moments(values).range == (values.min(), np.delete(values.ravel(), 3 * 1500 + 5).max())


def rows(fill: str = "9.96921e+36", label: str = "") -> str:
    lines = ["temp,hum,flow"]
    for place, (temperature, humidity) in enumerate(zip(TEMPERATURES, DRAW.random(1500), strict=True)):
        temp = fill if place % 60 == 0 else f"{temperature:.3f}"
        flow = label if label and place % 50 == 7 else f"{2 * temperature + 10 * humidity:.3f}"
        lines.append(f"{temp},{humidity:.4f},{flow}")
    return "\n".join(lines) + "\n"


def fix_of(note: str) -> dict[str, object]:
    """Return the settings that a note's command sets."""
    return {key.removeprefix("data."): value for key, value in parse_assignments([note.split('"')[1]]).items()}


@pytest.mark.parametrize("fill", ["9.96921e+36", "-9999", "1e20"])
def test_far_cells_are_named_with_a_fix_that_works(table, fill: str) -> None:
    table.write(rows(fill))
    manifest = table.ingest(label_column="flow")
    (note,) = table.profile()["notes"]
    assert note.startswith("temp: 25 of 1,500 values are far from the others (")
    column = manifest.input.numeric[0]
    assert column.mean == pytest.approx(15, abs=1)
    assert column.std == pytest.approx(5, abs=1)
    assert -50 < column.limits[0] < column.limits[1] < 80

    fixed = table.ingest(label_column="flow", **fix_of(note))
    assert table.profile()["notes"] == []
    assert fixed.input.numeric[0].limits == ()
    assert np.isnan(table.array("numbers")[:, 0]).sum() == 25


def test_far_labels_are_named_limited_and_removed_by_the_fix(table) -> None:
    table.write(rows("15", label="1e12"))
    target = table.ingest(label_column="flow").target
    assert isinstance(target, Numbers)
    assert target.mean[0] == pytest.approx(35, abs=1)
    assert target.high[0] < 100
    (note,) = table.profile()["problem"]["notes"]
    assert note.startswith("flow: 30 of 1,500 values are far from the others (")
    assert table.array("targets").max() == np.float32(1e12)  # metrics take labels as they are

    fixed = table.ingest(label_column="flow", **fix_of(note))
    assert (fixed.target.low, table.profile()["problem"]["notes"]) == ((), [])
    assert sum(split.rows for split in fixed.splits.values()) == 1470


def test_dates_of_parquet_can_be_called_missing(table) -> None:
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=place) for place in range(300)]
    days[::30] = [datetime.date(9999, 12, 31)] * 10
    frame = pl.DataFrame({"day": days, "x": DRAW.random(300), "label": ["a", "b", "c"] * 100})
    frame.write_parquet(table.root / "rows.parquet")
    table.ingest("rows.parquet")
    (note,) = table.profile()["notes"]
    assert note.startswith("day: 10 of 300 values are far from the others (2024-01-02 to 2024-10-26): 9999-12-31.")
    table.ingest("rows.parquet", **fix_of(note))
    assert table.profile()["notes"] == []


def test_networks_get_far_values_as_limits_and_trees_unchanged(table) -> None:
    table.write(rows())
    described = table.ingest(label_column="flow").input
    numbers, codes = torch.from_numpy(table.array("numbers")), torch.zeros(1500, 0, dtype=torch.int64)
    scaled, missing, _ = TableFront(described)(numbers, codes)
    assert scaled.abs().max() < 15
    assert missing.sum() == 0
    assert len(torch.unique(scaled[:, 0])) > 1300
    assert torch.equal(TableFront(described.unscaled)(numbers, codes)[0], numbers)


def test_trees_equal_those_of_scikit_learn_on_raw_numbers(table) -> None:
    table.write(rows())
    manifest = table.ingest(label_column="flow")
    assert isinstance(manifest.input, TableInput)
    numbers, targets = table.array("numbers"), table.array("targets")
    arrays = {"numbers": numbers, "codes": np.zeros((1500, 0), np.int64)}
    fitted = fit_baseline(arrays, targets, manifest.input.unscaled, manifest.target, seed=0)
    with torch.random.fork_rng():
        model = build(ModelSpec(fitted.network_name, fitted.input, manifest.target)).eval()
    model.network.load_state_dict(fitted.weights)
    outputs = model(torch.from_numpy(numbers), torch.zeros(1500, 0, dtype=torch.int64)).numpy()
    theirs = HistGradientBoostingRegressor(random_state=0).fit(numbers, targets[:, 0]).predict(numbers)
    ours = manifest.target.predictions(outputs)[:, 0]
    assert np.abs(ours - targets[:, 0]).mean() == pytest.approx(np.abs(theirs - targets[:, 0]).mean(), rel=0.05)


def test_models_learn_far_targets_as_the_nearest_other() -> None:
    target = Numbers(("flow",), (35.0,), (5.0,), (20.0,), (50.0,))
    objective = Objective(make_plan(target=target, loss="mse"), target, torch.device("cpu"))
    assert objective.learned(torch.tensor([[1e12], [35.0]])).tolist() == [[3.0], [0.0]]
    assert target.scaled(np.array([[1e12], [35.0]])).tolist() == [[3.0], [0.0]]


def test_networks_of_arrays_get_far_values_as_limits() -> None:
    limited = Array("load", "float32", (2,), 10.0, 2.0, (0.0, 20.0))
    spec = ModelSpec("mlp", ArraysInput((limited,), "a:B", "a", "0"), Numbers(("flow",), (0.0,), (1.0,)))
    with torch.random.fork_rng():
        model = build(spec).eval()
    assert model.prepared(torch.tensor([[1e36, 12.0]]))[0].tolist() == [[5.0, 1.0]]
