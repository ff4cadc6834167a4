"""What ingest costs over the bare reading of the same files, and what it costs again.

    RATCHET_DATASETS=FOLDER python -m bench.ingest [--rounds 5]

60,000 small PNG files and 2,000 photos (those of FOLDER/hymenoptera, cropped and saved anew until they are so many;
with no FOLDER, noise in their place) are ingested by the library's own function, in a process that has imported
everything. Beside it, one after the other in each round:

A photo is decoded twice by ingest: small to be packed, and at full size for the digest that its split goes by.

bare: Pillow opens, decodes, scales and cuts the same files on all cores, by threads or by processes, whichever is
faster, and keeps the pixels; no digest, no check, no file written.
list: os.scandir and stat over all files.

Validation is what the contract's functions take, each of them timed, over what the rest takes. Memory is the peak of
anonymous pages, sampled, of `python -m tasks.ingest` in a project of its own and of the processes that it begins.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
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
_JUDGES = (
    "check_facts",
    "duplicate_ids",
    "cross_split_duplicates",
    "label_conflicts",
    "check_bad_fraction",
    "check_index",
)
_CLAIMS = {"share of the bare limit": 0.5, "validation": 0.15, "again": 2.0, "memory": 0.10}


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    small, photos = (600, 40) if quick else (_SMALL, _PHOTOS)
    rows: list[Row] = []
    with scratch() as folder:
        _write_small(folder / "small", small)
        _write_small(folder / "fewer", small // 6)
        _write_photos(folder / "photos", photos)
        for name, count in (("small", small), ("photos", photos)):
            limit = _bare_limit(folder / name)
            rates: dict[str, list[float]] = {"ingest": [], "bare": []}
            judged = []
            for _ in range(rounds):
                rates["bare"].append(count / limit())
                rates["ingest"].append(count / _timed(folder / name, folder / "out", "fresh"))
                judged.append(_timed(folder / name, folder / "out", "judged"))
                print(f"{name}: " + ", ".join(f"{key} {value[-1]:,.0f}/s" for key, value in rates.items()), flush=True)
            share = ratio(rates["ingest"], rates["bare"])
            what = f"{count:,} {'PNG files of 32 x 32' if name == 'small' else 'photos'}"
            claim = _CLAIMS["share of the bare limit"]
            rows += [Row(f"files/s: {key}", what, spread(value)) for key, value in rates.items()]
            rows.append(Row("ingest / bare limit", what, f"{share:.2f}", f">= {claim}", share >= claim))
            added, most = float(np.median(judged)), _CLAIMS["validation"]
            rows.append(Row("validation adds", what, f"{added:.1%}", f"< {most:.0%}", added < most))
        rows += _again(folder, small, rounds)
        rows += _memory(folder, small)
    return rows


def _again(folder: Path, count: int, rounds: int) -> list[Row]:
    """No change at all, against listing the files."""
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
    """Peak anonymous memory on six times the files."""
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
        pixels[0, 0] = number % 256, number // 256 % 256, number // 65536  # the source's over and over, no two alike
        Image.fromarray(pixels).save(folder / str(labels[number % len(labels)]) / f"{number:06d}.png")


def _write_photos(folder: Path, count: int) -> None:
    given = sorted((Path(os.environ.get("RATCHET_DATASETS", "")) / "hymenoptera" / "train").rglob("*.jp*g"))
    drawn = np.random.default_rng(0)
    for label in "ab":
        (folder / label).mkdir(parents=True)
    for number in range(count):
        if given:
            image = Image.open(given[number % len(given)]).convert("RGB")
            left, top = (int(drawn.integers(0, side // 8 + 1)) for side in image.size)
            image = image.crop((left, top, image.width, image.height))
        else:
            image = Image.fromarray(drawn.integers(0, 256, (375, 500, 3), dtype=np.uint8))
        image.save(folder / "ab"[number % 2] / f"{number:05d}.jpg", quality=90)


def _bare_limit(folder: Path) -> Callable[[], float]:
    """Seconds of the bare reading, with the kind of workers that it is fastest with."""
    files = sorted(map(str, folder.rglob("*.*")))
    kinds: dict[str, Callable[[], Executor]] = {
        "threads": lambda: ThreadPoolExecutor(_CORES),
        "processes": lambda: ProcessPoolExecutor(_CORES),
    }

    def seconds(kind: str) -> float:
        with kinds[kind]() as pool:
            list(pool.map(_bare, [files[:8]] * _CORES))  # begun, and everything imported
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


def _timed(pictures: Path, out: Path, what: str, *, wait: float = 0.0) -> float:
    """Seconds, or their share, that one act takes in a process of its own, its imports aside."""
    command = [sys.executable, "-m", "bench.ingest", "--act", what, str(pictures), str(out), "--wait", str(wait)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout
    return float(json.loads(said.splitlines()[-1]))


def _act(what: str, pictures: Path, out: Path, wait: float) -> None:
    """One act, in this process; its seconds are printed."""
    import shutil

    from ratchet.data.ingest import ingest
    from ratchet.settings.model import DataSettings

    if what == "list":
        began = time.perf_counter()
        count = _stat_all(str(pictures))
        taken = time.perf_counter() - began
        assert count
    else:
        if what != "again":
            shutil.rmtree(out, ignore_errors=True)
        time.sleep(wait)  # until the files' stamps count as settled
        settings = DataSettings(source="image-folder", path=str(pictures))
        _import_the_rest(settings)
        judging = _timed_contract()
        began = time.perf_counter()
        ingest(
            settings, packed=out / "packed", quarantine=out / "bad.parquet", root=out, report=lambda *_: None,
            remember=out / "memo.parquet",
        )  # fmt: skip
        taken = time.perf_counter() - began
        if what == "judged":
            taken = sum(judging) / (taken - sum(judging))
    print(json.dumps(taken))


def _import_the_rest(settings: "DataSettings") -> None:
    """What pandera imports when it is first asked."""
    import polars as pl

    from ratchet.data import contract

    columns = {**contract.FACTS, "id": pl.String, "row": pl.Int64}
    contract.check_facts(pl.DataFrame(schema=columns), settings, classes=2)


def _timed_contract() -> list[float]:
    """Have every function of the contract that judges note the seconds that it takes, in the list that comes back."""
    from ratchet.data import contract

    seconds: list[float] = []

    def timed(act: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return act(*arguments, **named)
            finally:
                seconds.append(time.perf_counter() - began)

        return timing

    for name in _JUDGES:
        setattr(contract, name, timed(getattr(contract, name)))
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
    """Measure and print; or one act, for the measurement's own use."""
    parser = options(__doc__)
    parser.add_argument("--act", nargs=3, metavar=("WHAT", "PICTURES", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--wait", type=float, default=0.0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.act:
        what, pictures, out = asked.act
        _act(what, Path(pictures), Path(out), asked.wait)
        return
    alone(parser, lambda asked: measure(asked.rounds, quick=asked.quick))


if __name__ == "__main__":
    main()
