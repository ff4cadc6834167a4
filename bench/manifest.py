"""Cost of the contract for a table of a million images, compared with the same rules in one polars pass.

    python -m bench.manifest [--rounds 5]

The table has path, split, a whole number, a number, a date and a note; one row in a hundred breaks one of six rules.
pandera checks it as in ingest, and every broken rule becomes a row of the quarantine table. The bare pass is written by
hand: expressions that are evaluated at once, the same table of results, and the same conversion of the further columns.

Memory is the sampled peak of anonymous pages of a process that creates and checks the table, minus that of an empty
table. Its growth per row is compared with that for half as many rows.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import polars as pl

from bench.memory import Peak
from bench.project import ROOT
from bench.report import Row, alone, options, ratio, spread
from ratchet.data.listing_rules import check_table
from ratchet.data.privacy import looks_personal
from ratchet.data.refusal_reasons import REASONS
from ratchet.data.sample_table import typed
from ratchet.settings.model import DataSettings

__all__ = ["judges", "measure"]

_CLAIM, _LINEAR = 1.3, 0.10
_EXTRA = ("count", "weight", "day", "note")
_SETTINGS = DataSettings(manifest="labels.csv", refuse_personal=True)


def judges(count: int) -> dict[str, Callable[[], pl.DataFrame]]:
    """Return functions that judge a table of `count` rows, and return its broken rules."""
    table = _table(count)
    return {"contract": lambda: _contract(table), "bare pass": lambda: _bare(table)}


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    count = 10_000 if quick else 1_000_000
    acts = judges(count)
    broken = {name: act().select("source", "row", "rule").sort("row", "rule") for name, act in acts.items()}
    assert broken["contract"].equals(broken["bare pass"]), "the two results differ"
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(rounds):
        for name, act in acts.items():
            began = time.perf_counter()
            act()
            seconds[name].append(time.perf_counter() - began)
        print(", ".join(f"{name} {values[-1]:.2f} s" for name, values in seconds.items()), flush=True)
    share = ratio(seconds["contract"], seconds["bare pass"])
    what = f"{count:,} rows, {broken['contract'].height:,} broken rules, median of {rounds} rounds"
    return [
        *_memory(count),
        *(Row(f"s: {name}", what, spread(values, form=".2f")) for name, values in seconds.items()),
        Row("contract / bare pass", what, f"{share:.2f}", f"<= {_CLAIM}", share <= _CLAIM),
    ]


def _memory(count: int) -> list[Row]:
    """Measure the peak memory for tables with `count`, a half and a quarter as many rows."""
    peaks = {}
    for rows in (0, count // 4, count // 2, count):
        peak = Peak()
        with subprocess.Popen([sys.executable, "-m", "bench.manifest", "--check", str(rows)], cwd=ROOT) as process:
            while process.poll() is None:
                peak(process.pid)
                time.sleep(0.005)
        if process.returncode:
            raise RuntimeError(f"checking {rows} rows ended with {process.returncode}")
        peaks[rows] = peak.mib
    each = {rows: (peaks[rows] - peaks[0]) * 2**20 / rows for rows in peaks if rows}
    bend = each[count] / each[count // 2] - 1
    return [
        *(Row("bytes of peak memory a row", f"{rows:,} rows", f"{value:,.0f}") for rows, value in each.items()),
        Row("growth of that from half as many rows", "", f"{bend:+.1%}", f"< {_LINEAR:.0%}", bend < _LINEAR),
    ]


def _contract(table: pl.DataFrame) -> pl.DataFrame:
    header = (table["path"] == "path").fill_null(False)
    return check_table(table, _SETTINGS, extra=_EXTRA, header=header)[0]


def _table(count: int) -> pl.DataFrame:
    """Return a table as ImageManifest gives it to the contract."""
    drawn = np.random.default_rng(0)
    rows = np.arange(count)
    broken = np.where(rows % 100 == 7, rows // 100 % 6, -1)

    def text(name: str, values: pl.Series, wrong: dict[int, str | None]) -> pl.Series:
        frame = pl.DataFrame({name: values, "broken": broken})
        expression = pl.col(name)
        for number, value in wrong.items():
            expression = pl.when(pl.col("broken") == number).then(pl.lit(value, pl.String)).otherwise(expression)
        return frame.select(expression.alias(name)).to_series()

    number = pl.Series(rows).cast(pl.String).str.zfill(7)
    path = text(
        "path", pl.concat_str([pl.lit("images/")]).pipe(lambda _: "images/" + number + ".jpg"), {0: None, 1: "path"}
    )
    table = pl.DataFrame(
        {
            "row": pl.Series(rows + 1, dtype=pl.Int64),
            "path": path,
            "split": text("split", pl.Series(np.array(["train", "val", "test"])[rows % 3]), {2: "holdout"}),
            "count": pl.Series(drawn.integers(0, 1000, count)).cast(pl.String),
            "weight": pl.Series(drawn.random(count)).round(4).cast(pl.String),
            "day": "2024-01-" + pl.Series(rows % 28 + 1).cast(pl.String).str.zfill(2),
            "note": text("note", "seen near " + number, {3: "ask jane@example.org"}),
        }
    )
    meanings = {"train": "train", "val": "validation", "test": "test"}
    return table.with_columns(
        normal=pl.when(pl.Series(broken != 4)).then("path"),
        assigned=pl.col("split").replace_strict(meanings, default=None, return_dtype=pl.String),
        there=pl.Series(broken != 5),
        stamp=pl.lit(None, pl.String),
    )


def _bare(table: pl.DataFrame) -> pl.DataFrame:
    """Return the quarantine table of the same rules, written by hand."""
    again = (pl.col("path") == "path").fill_null(False)
    named = pl.col("path").str.strip_chars().fill_null("") != ""
    rules = {
        "no-path": ~named,
        "outside-folder": named & pl.col("normal").is_null(),
        "missing-file": pl.col("normal").is_not_null() & ~pl.col("there").fill_null(False),
        "unknown-split": pl.col("assigned").is_null() & pl.col("split").is_not_null(),
    }
    rules |= {f"personal-data {name}": looks_personal(table[name]) for name in _EXTRA}
    judged = table.with_columns(**{name: rule & ~again for name, rule in rules.items()}, **{"repeated-header": again})
    judged = judged.with_columns(typed(judged[name]) for name in _EXTRA)
    named_source = pl.coalesce("normal", "path", pl.format("row {}", "row"))
    parts = []
    for name in ("repeated-header", *rules):
        rule = name.partition(" ")[0]
        source = pl.lit(_SETTINGS.manifest) if rule == "repeated-header" else named_source
        broken = judged.filter(pl.col(name))
        parts.append(broken.select(source=source, row="row", rule=pl.lit(rule), hint=pl.lit(REASONS[rule].fix)))
    return pl.concat(parts).sort("row", "rule")


def main() -> None:
    """Measure and print, or check one table for the measurement."""
    parser = options(__doc__)
    parser.add_argument("--check", type=int, metavar="ROWS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check is None:
        alone(parser, lambda arguments: measure(arguments.rounds, quick=arguments.quick))
    else:
        _contract(_table(max(1, arguments.check)))


if __name__ == "__main__":
    main()
