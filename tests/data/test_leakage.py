"""Columns that reveal the class are named, and no others."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ratchet import files
from ratchet.data.checks.leakage import revealing_columns
from ratchet.data.checks.paired_columns import PairSearch
from ratchet.data.profile import bins
from ratchet.reports.data_card import card

DRAWN = np.random.default_rng(0)
COUNT = 400
LABELS = np.arange(COUNT) % 2


def index(**extra: object) -> pl.DataFrame:
    columns = {"format": ["png"] * COUNT, "width": [32] * COUNT, "height": [32] * COUNT, **extra}
    splits = np.array(["train", "train", "train", "validation"])[DRAWN.integers(0, 4, COUNT)]
    return pl.DataFrame({"split": splits, "label": LABELS, **columns})


@pytest.mark.parametrize(
    "values",
    [
        [f"ward {label}" for label in LABELS],
        (LABELS * 100 + DRAWN.integers(0, 50, COUNT)).tolist(),
        (LABELS + DRAWN.normal(0, 0.2, COUNT)).tolist(),
        [None if label else 3.5 for label in LABELS],
        [bool(label) for label in LABELS],
    ],
)
def test_a_column_that_reveals_the_class_is_named_with_accuracy(values: list[object]) -> None:
    (column,) = revealing_columns(index(ward=values), extra=["ward"])["class"]
    assert column["column"] == "ward"
    assert column["right"] > 0.95
    assert 0.3 < column["commonest"] < 0.7


@pytest.mark.parametrize(
    "values",
    [
        DRAWN.choice(["a", "b", "c"], COUNT).tolist(),
        DRAWN.normal(0, 1, COUNT).tolist(),
        [f"{number:04d}" for number in range(COUNT)],  # a different name for each sample
        [None if number % 3 else 1 for number in range(COUNT)],
    ],
)
def test_other_columns_are_not_named(values: list[object]) -> None:
    assert revealing_columns(index(note=values), extra=["note"]) == {"constant": [], "class": []}


def test_a_constant_extra_column_is_named() -> None:
    """Constant facts about the file, such as its format, are not."""
    assert revealing_columns(index(camera=["X1"] * COUNT), extra=["camera"]) == {"constant": ["camera"], "class": []}


def test_a_format_that_reveals_the_class_is_on_the_card(place) -> None:
    for label, first in (("cat", 0), ("dog", 1000)):
        folder = place.root / "images" / label
        folder.mkdir(parents=True)
        for number in range(first, first + 60):
            kind = "JPEG" if label == "cat" else "PNG"
            place.image(number).save(folder / f"{number}.{'jpg' if label == 'cat' else 'png'}", kind)
    place.ingest()
    profile = files.read_json(place.packed / "profile.json")
    assert [entry["column"] for entry in profile["telling"]["class"]] == ["format"]
    page = card(place.packed, place.quarantine, changed=None).replace("\N{NO-BREAK SPACE}", " ")
    assert "Possible data leakage: format alone predicts the class of 100 % of" in page
    assert "Fix: collect or convert the samples" in page
    assert "data.drop" not in page


def leaks_of(table, content: str | bytes, name: str = "rows.csv", **settings: object) -> list[str]:
    table.write(content, name)
    table.ingest(name, **settings)
    return sorted(leak["column"] for leak in table.profile()["telling"]["class"])


def csv_of(**columns: object) -> str:
    return pl.DataFrame(columns).write_csv()


@pytest.mark.parametrize("share", [0.5, 0.92, 0.98, 0.02, 0.995])
def test_a_threshold_that_decides_a_class_is_named(table, share: float) -> None:
    score, other = DRAWN.random(4000), DRAWN.random(4000)
    label = np.where(score > share, "pos", "neg")
    assert leaks_of(table, csv_of(score=score, other=other, label=label)) == ["score"]


@pytest.mark.parametrize("every", [2, 20, 50, 200])
@pytest.mark.parametrize("kind", ["flag", "text", "middle", "missing"])
def test_a_copy_of_a_class_of_any_share_is_named(table, every: int, kind: str) -> None:
    rare = np.arange(4000) % every == 0
    leak = {
        "flag": rare.astype(int).tolist(),
        "text": np.where(rare, "y", "n").tolist(),
        "middle": np.where(rare, 5.0, DRAWN.choice([1.0, 2.0, 8.0, 9.0], 4000)).tolist(),
        "missing": [None if yes else value for yes, value in zip(rare, DRAWN.random(4000), strict=True)],
    }[kind]
    content = csv_of(x=DRAWN.random(4000), leak=leak, y=np.where(rare, "rare", "common"))
    assert leaks_of(table, content, label_column="y") == ["leak"]


@pytest.mark.parametrize("every", [40, 8, 5])
def test_a_copy_of_one_class_of_many_is_named(table, every: int) -> None:
    label = np.where(np.arange(3000) % every == 0, "rare", DRAWN.choice(["a", "b", "c"], 3000))
    content = csv_of(x=DRAWN.random(3000), leak=(label == "rare").astype(int), label=label)
    assert leaks_of(table, content) == ["leak"]


@pytest.mark.parametrize("kind", ["log-normal", "zero-inflated", "normal"])
def test_a_copy_of_a_skewed_number_is_named(table, kind: str) -> None:
    target = DRAWN.lognormal(3, 2, 3000) if kind == "log-normal" else DRAWN.normal(0, 1, 3000)
    target = np.where(DRAWN.random(3000) < 0.9, 0.0, DRAWN.lognormal(3, 2, 3000)) if kind[0] == "z" else target
    content = csv_of(x=DRAWN.random(3000), leak=target * 1.1, target=target)
    assert leaks_of(table, content, label_column="target") == ["leak"]


def test_a_copy_of_the_second_target_is_named(table) -> None:
    first, second = DRAWN.normal(0, 1, 2000), DRAWN.normal(0, 1, 2000)
    content = csv_of(x=DRAWN.random(2000), leak=2 * second, first=first, second=second)
    assert leaks_of(table, content, label_column=("first", "second")) == ["leak"]
    flags = (DRAWN.random(2000) < 0.03).astype(int)
    content = csv_of(x=DRAWN.random(2000), leak=flags, first=(first > 0).astype(int), second=flags)
    assert leaks_of(table, content, label_column=("first", "second"), problem="multi-label") == ["leak"]


@pytest.mark.parametrize("kind", ["sum", "ratio", "larger", "body mass index", "xor", "one of two texts"])
def test_two_columns_that_determine_the_target_together_are_named(table, kind: str) -> None:
    draw, count = np.random.default_rng(0), 2000
    first, second, coin = draw.normal(0, 1, count), draw.normal(0, 5, count), draw.integers(0, 2, count)
    rare = draw.random(count) < 0.06
    left, right, target = {
        "sum": (first - second, second, first),
        "ratio": (np.exp(first + second), np.exp(second), np.exp(first)),
        "larger": (first, second / 5, np.where(first > second / 5, "up", "down")),
        "body mass index": (np.exp(first), np.exp(second / 100), np.where(first - second / 50 > 0.2, "high", "low")),
        "xor": (coin, coin ^ (first > 0), np.where(first > 0, "yes", "no")),
        "one of two texts": (np.where(rare & (coin == 1), "x", "o"), np.where(rare & (coin == 0), "p", "q"), rare),
    }[kind]
    content = csv_of(noise=draw.random(count), left=left, right=right, other=draw.integers(0, 4, count), label=target)
    table.write(content)
    table.ingest()
    assert [leak.get("columns") for leak in table.profile()["telling"]["class"]] == [["left", "right"]]
    assert leaks_of(table, content, drop=("left", "right")) == []


@pytest.mark.parametrize("kind", ["late", "one zero", "one fill value", "missing"])
def test_two_columns_with_gaps_or_nearly_equal_are_named(table, kind: str) -> None:
    draw, count = np.random.default_rng(0), 2000
    first, second = draw.lognormal(0, 1, count), draw.lognormal(0, 1, count)
    scheduled = 1.7e9 + draw.integers(0, 365 * 86_400, count)
    holed = [None if row % 9 == 0 else value for row, value in enumerate(first.tolist())]
    actual = scheduled + draw.normal(0, 1800, count)
    left, right, target = {
        "late": (scheduled, actual, np.where(actual > scheduled, "late", "in time")),
        "one zero": (np.where(np.arange(count) == 3, 0.0, first), second, first * second),
        "one fill value": (np.where(np.arange(count) == 3, 9.96921e36, first), second, first - second),
        "missing": (holed, second, np.where(first > second, "up", "down")),
    }[kind]
    table.write(csv_of(noise=draw.random(count), left=left, right=right, label=target))
    table.ingest()
    assert [leak.get("columns") for leak in table.profile()["telling"]["class"]] == [["left", "right"]]


def test_pairs_of_noise_beside_a_rare_class_are_not_named() -> None:
    for seed in range(10):
        draw, split = np.random.default_rng(seed), ["train"] * 65 + ["validation"] * 15
        rows = pl.DataFrame({"split": split} | {f"n{place}": draw.normal(0, 1, 80) for place in range(100)})
        label = pl.Series((draw.permutation(80) < 3).astype(np.int64))
        assert PairSearch(rows, rows.columns[1:]).leaks(label, has_classes=True) == []


def test_a_column_of_few_rows_is_copied_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time for a table of 20,000 genes of 60 patients grows with the square of the columns."""
    draw, concat, widths = np.random.default_rng(3), pl.concat, list[int]()

    def noted(items: list[Any], **options: Any) -> Any:
        widths.extend(item.width for item in items if isinstance(item, pl.DataFrame))
        return concat(items, **options)

    monkeypatch.setattr(pl, "concat", noted)
    genes = {f"gene {place}": draw.normal(0, 1, COUNT) for place in range(8)}
    rows = index(**genes, copy=LABELS).head(60)
    assert [leak["column"] for leak in revealing_columns(rows, extra=[*genes, "copy"])["class"]] == ["copy"]
    assert set(widths) == {2}


@pytest.mark.parametrize("count", [9, 12, 20, 24])
def test_noise_of_few_rows_is_not_named(table, count: int) -> None:
    draw = np.random.default_rng(3)
    content = csv_of(x=draw.normal(0, 1, count), z=draw.integers(0, 9, count), label=np.arange(count) % 2)
    assert leaks_of(table, content, problem="classification") == []


def test_noise_beside_rare_classes_is_not_named(table) -> None:
    label = ["rare" if row in (7, 900, 2222, 3333, 4444) else "common" for row in range(5000)]
    noise = {f"n{place}": DRAWN.random(5000) for place in range(10)}
    noise["city"] = DRAWN.choice([f"city {place}" for place in range(900)], 5000)
    assert leaks_of(table, csv_of(**noise, label=label)) == []


@pytest.mark.parametrize(
    ("file", "settings", "expected"),
    [
        ("titanic.csv", {"label_column": "survived"}, ["alive"]),
        ("penguins.csv", {"label_column": "species"}, []),
        ("adult.data", {"label_column": "column_15"}, []),
        ("elec.csv", {"label_column": "class"}, []),
        ("bike-sharing/hour.csv", {"label_column": "cnt"}, ["registered"]),
    ],
)
def test_known_tables_have_no_false_leaks(table, tabular, file: str, settings: dict[str, object], expected) -> None:
    table.ingest(tabular(file), **settings)
    assert [leak["column"] for leak in table.profile()["telling"]["class"]] == expected


def test_the_index_of_pandas_is_no_feature(table) -> None:
    label = np.repeat(["a", "b"], 200)
    frame = pd.DataFrame({"x": DRAWN.random(400), "label": label}).sample(frac=1, random_state=0)
    frame.to_parquet(table.root / "rows.parquet")
    table.ingest("rows.parquet")
    assert table.types() == {"x": "numeric", "__index_level_0__": "ignored"}
    table.ingest("rows.parquet", columns={"__index_level_0__": "numeric"})
    assert table.types()["__index_level_0__"] == "numeric"


def test_the_index_of_pandas_can_order_the_rows(table) -> None:
    """A series in time has its dates as index."""
    days = pd.date_range("2024-01-01", periods=400, name="day")
    frame = pd.DataFrame({"x": DRAWN.random(400), "label": ["a", "b"] * 200}, index=days)
    frame.sample(frac=1, random_state=0).to_parquet(table.root / "rows.parquet")
    table.ingest("rows.parquet", order_by="day")
    assert table.types() == {"x": "numeric", "day": "ignored"}
    dates = {name: part["day"].cast(pl.String).sort() for (name,), part in table.index().group_by("split")}
    assert dates["train"][-1] < dates["validation"][0] <= dates["validation"][-1] < dates["test"][0]


@pytest.mark.parametrize(("numbers", "edges", "counts"), [
    ([0.0] * 98 + [1.0] * 2, [1.0], [98, 2]),
    ([0.0] * 92 + list(range(1, 9)), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [92] + [1] * 8),
])  # fmt: skip
def test_values_of_many_rows_have_bins_of_their_own(numbers, edges, counts) -> None:
    assert bins(pl.Series(numbers)) == {"edges": edges, "counts": counts}
    mixed = bins(pl.Series([0.0] * 900 + np.linspace(1, 100, 100).tolist()))
    assert mixed["counts"][:2] == [0, 900]
    assert len(mixed["counts"]) > 8
