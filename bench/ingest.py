"""Speed and memory of ingest, compared with only decoding the same files, and of an ingest without changes.

    RATCHET_DATASETS=FOLDER python -m bench.ingest [--rounds 5]

60,000 small PNG files and 2,000 photos are ingested by the library's function, in a process that has imported
everything. The photos are crops of those in FOLDER/hymenoptera, saved again; without FOLDER they are noise. Each round
also measures, one after the other:

bare: Pillow opens, decodes, scales and crops the same files on all cores, by threads or processes, whichever is faster.
It keeps the pixels, and computes no digest, checks nothing and writes no file.
list: os.scandir and stat over all files.

Bare reading decodes a photo at full size; ingest decodes a large JPEG at a smaller scale.

Validation is the time of the contract's functions relative to the rest. Memory is the sampled peak of anonymous pages
of `python -m tasks.ingest` in a separate project, with its child processes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bench.memory import Peak
from bench.project import ROOT, Project, scratch, source
from bench.report import Row, alone, options, ratio, spread

if TYPE_CHECKING:
    from ratchet.settings.model import DataSettings

__all__ = ["measure"]

_SMALL, _PHOTOS, _PHOTO_SIDE = 60_000, 2_000, 64
_CORES = os.cpu_count() or 1
_CHECKS = (
    "image_rules.check_facts",
    "checks.exact_duplicates.duplicate_ids",
    "checks.exact_duplicates.cross_split_duplicates",
    "checks.exact_duplicates.label_conflicts",
    "set_rules.check_bad_fraction",
    "set_rules.SetRules.check_index",
)
_CLAIMS = {"share of the bare limit": 0.5, "validation": 0.15, "again": 3.0, "memory": 0.1}


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    small, photos = (600, 40) if quick else (_SMALL, _PHOTOS)
    rows: list[Row] = []
    with scratch() as folder:
        _write_small(folder / "small", small)
        _write_small(folder / "fewer", small // 6)
        _write_photos(folder / "photos", photos)
        for name, count in (("small", small), ("photos", photos)):
            limit = _bare_limit(folder / name)
            rates: dict[str, list[float]] = {"ingest": [], "bare": []}
            validation, milliseconds = [], []
            for _ in range(rounds):
                rates["bare"].append(count / limit())
                rates["ingest"].append(count / _timed(folder / name, folder / "out", "fresh"))
                validation.append(_timed(folder / name, folder / "out", "validation"))
                milliseconds.append(1000 * _timed(folder / name, folder / "out", "cpu") / count)
                print(f"{name}: " + ", ".join(f"{key} {value[-1]:,.0f}/s" for key, value in rates.items()), flush=True)
            share = ratio(rates["ingest"], rates["bare"])
            what = f"{count:,} {'PNG files of 32 x 32' if name == 'small' else 'photos'}"
            claim = _CLAIMS["share of the bare limit"]
            rows += [Row(f"files/s: {key}", what, spread(value)) for key, value in rates.items()]
            rows.append(Row("CPU time of ingest, ms per file", what, spread(milliseconds, form=".2f")))
            rows.append(Row("ingest / bare limit", what, f"{share:.2f}", f">= {claim}", share >= claim))
            added, most = float(np.median(validation)), _CLAIMS["validation"]
            rows.append(Row("validation adds", what, f"{added:.1%}", f"< {most:.0%}", added < most))
        rows += _again(folder, small, rounds)
        rows += _memory(folder, small)
    return rows


def _again(folder: Path, count: int, rounds: int) -> list[Row]:
    """Compare an ingest without changes with listing the files."""
    _timed(folder / "small", folder / "kept", "fresh", wait=3.0)
    again, listed = [], []
    for _ in range(rounds):
        listed.append(_timed(folder / "small", folder / "kept", "list"))
        again.append(_timed(folder / "small", folder / "kept", "again"))
    share, claim = ratio(again, listed), _CLAIMS["again"]
    what = f"{count:,} files, none changed"
    return [
        Row("s: list and stat", what, spread(listed, form=".2f")),
        Row("s: ingest again", what, spread(again, form=".2f")),
        Row("ingest again / list and stat", what, f"{share:.2f}", f"< {claim:g}", share < claim),
    ]


def _memory(folder: Path, count: int) -> list[Row]:
    """Measure the peak anonymous memory for six times as many files."""
    peaks = {}
    for name in ("fewer", "small"):
        peak = Peak()
        settings = {"data.source": "image-folder", "data.path": str(folder / name)}
        Project(folder / f"project-{name}", settings).stage("ingest", sample=peak)
        peaks[name] = peak.mib
    growth, claim = peaks["small"] / peaks["fewer"] - 1, _CLAIMS["memory"]
    return [
        Row("peak anonymous memory, MiB", f"{count // 6:,} files", f"{peaks['fewer']:,.0f}"),
        Row("peak anonymous memory, MiB", f"{count:,} files", f"{peaks['small']:,.0f}"),
        Row("growth on six times the files", "", f"{growth:+.1%}", f"< {claim:.0%}", growth < claim),
    ]


def _write_small(folder: Path, count: int) -> None:
    images, labels, _ = source()
    for label in np.unique(labels):
        (folder / str(label)).mkdir(parents=True)
    for number in range(count):
        pixels = images[number % len(images)].copy()
        pixels[0, 0] = (
            number % 256,
            number // 256 % 256,
            number // 65536,
        )  # repeats the source, but no two images are equal
        Image.fromarray(pixels).save(folder / str(labels[number % len(labels)]) / f"{number:06d}.png")


def _write_photos(folder: Path, count: int) -> None:
    photos = sorted((Path(os.environ.get("RATCHET_DATASETS", "")) / "hymenoptera" / "train").rglob("*.jp*g"))
    drawn = np.random.default_rng(0)
    for label in "ab":
        (folder / label).mkdir(parents=True)
    for number in range(count):
        if photos:
            image = Image.open(photos[number % len(photos)]).convert("RGB")
            left, top = (int(drawn.integers(0, side // 8 + 1)) for side in image.size)
            image = image.crop((left, top, image.width, image.height))
        else:
            image = Image.fromarray(drawn.integers(0, 256, (375, 500, 3), dtype=np.uint8))
        image.save(folder / "ab"[number % 2] / f"{number:05d}.jpg", quality=90)


def _bare_limit(folder: Path) -> Callable[[], float]:
    """Return a function that measures the seconds of bare reading, with the faster kind of workers."""
    files = sorted(map(str, folder.rglob("*.*")))
    kinds: dict[str, Callable[[], Executor]] = {
        "threads": lambda: ThreadPoolExecutor(_CORES),
        "processes": lambda: ProcessPoolExecutor(_CORES),
    }

    def seconds(kind: str) -> float:
        with kinds[kind]() as pool:
            list(pool.map(_bare, [files[:8]] * _CORES))  # start the workers, with all imports
            began = time.perf_counter()
            chunks = [files[start : start + 128] for start in range(0, len(files), 128)]
            read = sum(len(part) for part in pool.map(_bare, chunks))
            taken = time.perf_counter() - began
        assert read == len(files)
        return taken

    best = min(kinds, key=seconds)
    print(f"bare reading is fastest with {best}", flush=True)
    return lambda: seconds(best)


def _bare(files: list[str]) -> list[bytes]:
    return [_pixels(file) for file in files]


def _pixels(file: str) -> bytes:
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    side = min(image.size)
    if image.size != (side, side) or side > _PHOTO_SIDE:
        left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, left + side, top + side)
        image = image.resize((_PHOTO_SIDE, _PHOTO_SIDE), Image.Resampling.BILINEAR, box=box)
    return image.tobytes()


def _timed(images: Path, out: Path, what: str, *, wait: float = 0.0) -> float:
    """Return the seconds of one act, or their share, in a separate process, without its imports."""
    command = [sys.executable, "-m", "bench.ingest", "--act", what, str(images), str(out), "--wait", str(wait)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def _act(what: str, images: Path, out: Path, wait: float) -> None:
    """Run one act in this process and print its seconds."""
    import shutil

    from ratchet.data.ingest import IngestTask, ingest
    from ratchet.settings.model import DataSettings

    if what == "list":
        began = time.perf_counter()
        count = _stat_all(str(images))
        taken = time.perf_counter() - began
        assert count
    else:
        if what != "again":
            shutil.rmtree(out, ignore_errors=True)
        time.sleep(wait)  # until the stamps of the files are trusted
        settings = DataSettings(source="image-folder", path=str(images))
        _import_the_rest(settings)
        checking = _timed_checks()
        clock = _cpu_seconds if what == "cpu" else time.perf_counter
        began = clock()
        ingest(
            IngestTask(
                settings, packed=out / "packed", quarantine=out / "bad.parquet", root=out, cache=out / "cache.parquet"
            )
        )
        taken = clock() - began
        if what == "validation":
            taken = sum(checking) / (taken - sum(checking))
    print(json.dumps(taken))


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it started and that ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _import_the_rest(settings: "DataSettings") -> None:
    """Let pandera import its modules, which it does at its first use."""
    import polars as pl

    from ratchet.data import image_rules

    columns = {**image_rules.FACTS, "id": pl.String, "row": pl.Int64}
    image_rules.check_facts(pl.DataFrame(schema=columns), settings, classes=2)


def _timed_checks() -> list[float]:
    """Wrap every check so that its seconds are appended to the returned list."""
    seconds: list[float] = []

    def timed(act: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return act(*arguments, **named)
            finally:
                seconds.append(time.perf_counter() - began)

        return timing

    for check in _CHECKS:
        owner, _, name = check.rpartition(".")
        holder = resolve_name(f"ratchet.data.{owner}")
        setattr(holder, name, timed(getattr(holder, name)))
    return seconds


def _stat_all(folder: str) -> int:
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                count += _stat_all(entry.path)
            else:
                entry.stat()
                count += 1
    return count


def main() -> None:
    """Measure and print, or run one act for the measurement."""
    parser = options(__doc__)
    parser.add_argument("--act", nargs=3, metavar=("WHAT", "IMAGES", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--wait", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.act:
        what, images, out = arguments.act
        _act(what, Path(images), Path(out), arguments.wait)
        return
    alone(parser, lambda arguments: measure(arguments.rounds, quick=arguments.quick))


if __name__ == "__main__":
    main()
