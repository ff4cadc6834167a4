"""Cost of the ingest of a table of 1,000,000 rows and 20 columns, compared with bare polars passes.

    python -m bench.tables [--rounds 5]

Ten columns of numbers, five of whole numbers, four of categories and a label, as CSV. Two passes are written by hand:

bare: polars reads the file with its types, checks that each number is finite and each text is known, and writes one
Parquet file.
same files: the same, and each row has a digest, which decides its split; each split is written as .npy files of float32
numbers, int64 codes, targets and keys, with their SHA-256, and the index has id, label, categories and digest.

All three run in one process after a first ingest of few rows, which has the imports. CPU seconds are those of all
threads. Memory is the sampled peak of anonymous pages of a process with one ingest, and of one with the bare pass.
"""

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import polars as pl

from bench.memory import Peak
from bench.project import ROOT, scratch
from bench.report import Row, alone, options, ratio, spread
from ratchet.data.ingest import IngestTask, ingest
from ratchet.settings.model import DataSettings

__all__ = ["measure"]

_CLAIMS = {"bare": 2.2, "same files": 1.8}
_COLOURS = np.array(["red", "green", "blue", "violet", "black"])


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    count = 10_000 if quick else 1_000_000
    acts: dict[str, Callable[[Path], None]] = {"ingest": _ingest, "bare": _bare, "same files": _same_files}
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    with scratch() as folder:
        few, table = _write(folder / "few.csv", 1000), _write(folder / "rows.csv", count)
        for act in acts.values():
            act(few)
        for _ in range(rounds):
            for name, act in acts.items():
                began = time.process_time()
                act(table)
                seconds[name].append(time.process_time() - began)
            print(", ".join(f"{name} {values[-1]:.2f} CPU-s" for name, values in seconds.items()), flush=True)
        peaks = {name: _peak(name, table) for name in ("ingest", "bare")}
    what = f"{count:,} rows, 20 columns, median of {rounds} rounds"
    rows = [Row(f"CPU-s: {name}", what, spread(values, form=".2f")) for name, values in seconds.items()]
    for name, claim in _CLAIMS.items():
        share = ratio(seconds["ingest"], seconds[name])
        rows.append(Row(f"ingest / {name}", what, f"{share:.2f}", f"<= {claim}", share <= claim))
    return rows + [Row(f"peak anonymous memory, MiB: {name}", what, f"{mib:,.0f}") for name, mib in peaks.items()]


def _write(path: Path, count: int) -> Path:
    drawn = np.random.default_rng(0)
    columns: dict[str, object] = {f"number {at}": np.round(drawn.normal(size=count) * 100, 3) for at in range(10)}
    columns |= {f"count {at}": drawn.integers(0, 1000, count) for at in range(5)}
    columns |= {f"colour {at}": _COLOURS[drawn.integers(0, 5, count)] for at in range(4)}
    columns["label"] = np.array(["no", "yes"])[drawn.integers(0, 2, count)]
    pl.DataFrame(columns).write_csv(path)
    return path


def _ingest(table: Path) -> None:
    defaults = {name: field.default for name, field in DataSettings.model_fields.items()}
    settings = DataSettings(**{**defaults, "kind": "table", "path": str(table), "label_column": "label"})
    root = Path(mkdtemp(dir=table.parent))
    ingest(IngestTask(settings, packed=root / "packed", quarantine=root / "quarantine.parquet", root=root))


def _bare(table: Path) -> None:
    _checked(table).write_parquet(Path(mkdtemp(dir=table.parent)) / "rows.parquet")


def _checked(table: Path) -> pl.DataFrame:
    frame = pl.read_csv(table)
    known = [
        pl.col(name).is_not_null().all() if kind == pl.String else pl.col(name).cast(pl.Float64).is_finite().all()
        for name, kind in frame.schema.items()
    ]
    assert all(frame.select(known).row(0)), "the file has no faults"
    return frame


def _same_files(table: Path) -> None:
    root, frame = Path(mkdtemp(dir=table.parent)), _checked(table)
    texts = [name for name, kind in frame.schema.items() if kind == pl.String]
    numbers = [name for name in frame.columns if name not in texts]
    digest = frame.hash_rows(1).to_numpy()
    split = np.digitize(digest / 2.0**64, [0.7, 0.85])
    frame = frame.with_columns(id=pl.format("row {}", pl.int_range(pl.len())), digest=digest)
    for place in range(3):
        part = frame.filter(split == place)
        codes = part.select(pl.col(texts[:-1]).cast(pl.Categorical).to_physical().cast(pl.Int64))
        arrays = {"numbers": part.select(pl.col(numbers).cast(pl.Float32)).to_numpy(), "codes": codes.to_numpy()}
        arrays |= {"targets": (part["label"] == "yes").cast(pl.Int64).to_numpy(), "keys": part["digest"].to_numpy()}
        for name, values in arrays.items():
            np.save(root / f"{place}-{name}.npy", np.ascontiguousarray(values))
            hashlib.sha256((root / f"{place}-{name}.npy").read_bytes()).hexdigest()
    frame.select("id", "digest", *texts).with_columns(split=split).write_parquet(root / "index.parquet")


def _peak(name: str, table: Path) -> float:
    """Return the peak memory of one act in a process of its own, MiB."""
    peak = Peak()
    command = [sys.executable, "-m", "bench.tables", "--act", name, str(table)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        while process.poll() is None:
            peak(process.pid)
            time.sleep(0.01)
    if process.returncode:
        raise RuntimeError(f"{name} of {table} ended with {process.returncode}")
    return peak.mib


def main() -> None:
    """Measure and print, or run one act for the measurement of memory."""
    parser = options(__doc__)
    parser.add_argument("--act", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.act is None:
        alone(parser, lambda arguments: measure(arguments.rounds, quick=arguments.quick))
    else:
        name, table = arguments.act
        {"ingest": _ingest, "bare": _bare}[name](Path(table))


if __name__ == "__main__":
    main()
