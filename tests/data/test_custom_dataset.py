"""Ingest of a user's own Dataset: checks, quarantine and statistics.

Expected values are computed with NumPy from the images that the Dataset returns.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ratchet.data.manifest import Manifest
from ratchet.errors import RatchetError, SettingsError, TrainingError
from ratchet.training import custom_samples

MODULE = """
import numpy as np
import torch
from torch.utils.data import Dataset

ROWS = {"train": 40, "validation": 10, "test": 12}

class Noise(Dataset):
    classes = ["dark", "light"]

    def __init__(self, split):
        self.split = split
        self.first = {"train": 0, "validation": 1000, "test": 2000}[split]

    def __len__(self):
        return ROWS[self.split]

    def __getitem__(self, index):
        values = np.random.default_rng(self.first + index).integers(0, 100, (3, 6, 5), dtype=np.uint8)
        image = torch.from_numpy(values) + 100 * (index % 2)
        return self.changed(index, image, index % 2)

    def changed(self, index, image, label):
        return image, label

def photos(split):
    return Noise(split)
"""
FLOATS = MODULE.replace("return image, label", "return (image.double() / 255 - 0.45) / 0.2, torch.tensor(label)")


def ingest(place, source: str = MODULE, **changes: object) -> Manifest:
    (place.root / "own.py").write_text(source)
    own = {"source": "factory", "factory": "own:photos", "code": "own.py", "workers": 1}
    return place.ingest(**{**own, **changes})


def changed(body: str) -> str:
    """Return the module with more code in `changed`."""
    return MODULE.replace("        return image, label\n", body + "        return image, label\n")


def images(place) -> np.ndarray:
    """Return all training images of the Dataset."""
    namespace: dict[str, object] = {}
    exec(compile((place.root / "own.py").read_text(), "own", "exec"), namespace)
    train = namespace["photos"]("train")
    return np.stack([train[row][0].numpy() for row in range(len(train))])


def test_rows_follow_the_dataset_and_nothing_is_packed(place) -> None:
    manifest = ingest(place)
    assert manifest == Manifest.read(place.packed)
    assert (manifest.name, manifest.target.names) == ("photos", ("dark", "light"))
    assert (manifest.input.height, manifest.input.width, manifest.input.channels, manifest.input.dtype) == (
        6,
        5,
        3,
        "uint8",
    )
    assert {split: files.rows for split, files in manifest.splits.items()} == {
        "train": 40,
        "validation": 10,
        "test": 12,
    }
    assert not list(place.packed.rglob("images*"))
    assert sum(path.stat().st_size for path in place.packed.rglob("*")) < 40_000
    index = place.index()
    assert index.filter(split="test")["id"].to_list()[:2] == ["test/00000000", "test/00000001"]
    assert index.filter(split="train")["place"].to_list() == list(range(40))
    assert np.load(place.packed / "validation" / "targets.npy").tolist() == [0, 1] * 5
    assert len(set(np.load(place.packed / "train" / "keys.npy"))) == 40
    assert place.progress[-1] == (62, 62)


def test_the_same_bytes_come_from_one_process_and_from_three(make_place) -> None:
    serial, parallel = make_place("serial"), make_place("parallel")
    ingest(serial, FLOATS)
    ingest(parallel, FLOATS, workers=3)
    assert serial.bytes() == parallel.bytes()


@pytest.mark.parametrize(("source", "dtype"), [(MODULE, "uint8"), (FLOATS, "float32")])
def test_mean_and_deviation_are_those_of_all_training_pixels(place, source: str, dtype: str) -> None:
    manifest = ingest(place, source)
    assert manifest.input.dtype == dtype
    pixels = images(place).astype(dtype).astype(np.float64)
    np.testing.assert_allclose(manifest.input.mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(manifest.input.std, pixels.std((0, 2, 3)), rtol=1e-12)
    assert manifest.factory is not None
    ends = [0, 255] if dtype == "uint8" else [pixels.min((0, 2, 3)), pixels.max((0, 2, 3))]
    np.testing.assert_array_equal(manifest.factory.low, np.broadcast_to(ends[0], 3))
    np.testing.assert_array_equal(manifest.factory.high, np.broadcast_to(ends[1], 3))
    profile = json.loads((place.packed / "profile.json").read_text())
    assert profile["pixels"]["mean"] == list(manifest.input.mean)


def test_brightness_and_contrast_are_of_the_displayed_image(place) -> None:
    ingest(place, FLOATS)
    pixels = images(place)
    low, high = pixels.min((0, 2, 3))[:, None, None], pixels.max((0, 2, 3))[:, None, None]
    shown = (pixels - low) / (high - low) * 255
    train = place.index().filter(split="train")
    np.testing.assert_allclose(train["brightness"], shown.mean((1, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(train["contrast"], shown.std((1, 2, 3)), rtol=1e-6)


FAULTS = {
    1: ("raised", "ValueError: no such page (line {} of own.py)", 'raise ValueError("no such page")'),
    2: ("not-a-sample", "a Tensor, not (image, label)", "return image"),
    3: ("not-a-sample", "an image that is a ndarray", "return image.numpy(), label"),
    4: ("not-a-sample", "an image that is a Tensor of shape (6, 5)", "return image[0], label"),
    5: ("not-a-sample", "an image of torch.int64", "return image.long(), label"),
    6: ("not-a-sample", "a label that is 'dark'", 'return image, "dark"'),
    7: ("other-shape", "uint8 3 x 5 x 6", "return image.transpose(1, 2), label"),
    8: ("other-shape", "float32 3 x 6 x 5", "return image.float(), label"),
    9: ("unknown-label", "2", "return image, 2"),
}


def test_each_fault_is_quarantined_with_rule_and_value(place) -> None:
    lines = "".join(f"        if index == {row}: {line}\n" for row, (_, _, line) in FAULTS.items())
    one_split = '        if self.split != "train": return image, label\n'
    source = changed(one_split + lines).replace('"train": 40', '"train": 400')
    raising = source[: source.index("no such page")].count("\n") + 1
    manifest = ingest(place, source)
    table = pl.read_parquet(place.quarantine)
    quarantined = {row: (rule, value) for row, rule, value in table.select("row", "rule", "value").rows()}
    assert quarantined == {row: (rule, value.format(raising)) for row, (rule, value, _) in FAULTS.items()}
    assert table["hint"].str.len_chars().min() > 10
    assert manifest.quarantined == len(FAULTS)
    assert manifest.splits["train"].rows == 391
    assert not set(np.load(place.packed / "train" / "places.npy")) & FAULTS.keys()


def test_images_that_are_not_finite_are_quarantined(place) -> None:
    manifest = ingest(place, FLOATS.replace("image.double()", "image.double() / (index != 3)"), max_bad_fraction=0.1)
    assert manifest.quarantined_by_rule == {"not-finite": 3}
    assert np.isfinite(manifest.input.mean).all()


def test_a_duplicate_id_is_kept_in_the_highest_ranked_split(place) -> None:
    source = MODULE.replace(
        "        self.split = split\n",
        "        self.split = split\n"
        '        self.ids = [f"{split} {row}" for row in range(ROWS[split])]\n'
        '        if split == "train": self.ids[3], self.ids[8], self.ids[9] = "test 2", "train 7", "validation 1"\n',
    )
    ingest(place, source, max_bad_fraction=0.1)
    table = pl.read_parquet(place.quarantine)
    assert table.select("source", "row", "rule", "value").rows() == [
        ("test 2", 3, "duplicate-id", "again in train, kept in test"),
        ("train 7", 8, "duplicate-id", "again in train, kept in train"),
        ("validation 1", 9, "duplicate-id", "again in train, kept in validation"),
    ]
    assert place.index()["id"].n_unique() == 59


def test_an_image_in_two_splits_is_quarantined_in_one(place) -> None:
    """It is kept in the split that must stay unseen."""
    ingest(place, MODULE.replace('"validation": 1000', '"validation": 30'), max_bad_fraction=0.2)
    table = pl.read_parquet(place.quarantine)
    assert table["rule"].unique().to_list() == ["duplicate-across-splits"]
    assert table["row"].to_list() == list(range(30, 40))
    assert table["value"][0] == "in train, as validation/00000000 in validation"


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        (MODULE, {"factory": "none"}, r"data.factory: found none, and data.source is factory; allowed: package.module"),
        (MODULE, {"factory": "absent:photos"}, r"data.factory: no module absent"),
        (MODULE, {"factory": "own:absent"}, r"data.factory: own has no function or class absent\. Allowed: .*photos"),
        (MODULE, {"code": "elsewhere"}, r"data.code: elsewhere is not a file or folder"),
        (MODULE + "import no_such_package\n", {}, r"data.factory: own does not import .*no_such_package"),
        (MODULE + "def photos(): pass\n", {}, r"own:photos\('train'\) fails with TypeError: .*Fix: correct"),
        (MODULE + "def photos(split): return 1 / 0\n", {}, r"fails with ZeroDivisionError: .*\(line 28 of own.py\)"),
        (MODULE + "def photos(split): return iter([])\n", {}, r"returns a list_iterator. Fix: return a map-style"),
        (MODULE.replace("classes = [", "names = ["), {}, r"has classes None. Fix: give the Dataset an attribute"),
        (MODULE.replace('"dark", "light"', '"dark", "dark"'), {}, r"has classes \['dark', 'dark'\]\. Fix: give"),
        (MODULE.replace("self.first", 'self.ids = ["a"]; self.first', 1), {}, r"has 1 ids for 40 samples"),
        (MODULE.replace('"test": 12', '"test": 0'), {}, r"own:photos\('test'\) has no samples. Each of the three"),
        (
            MODULE.replace("self.first", 'self.classes = ["dark", split]; self.first', 1),
            {},
            r"own:photos\('validation'\) has classes \['dark', 'validation'\], and 'train' has \['dark', 'train'\]",
        ),
        (changed("        return image\n"), {}, r"62 of 62 samples are bad .*not-a-sample 62.*first is train/00000000"),
        (
            changed('        if self.split == "test": raise OSError("gone")\n'),
            {"max_bad_fraction": 0.5},
            r"every sample of split test is bad",
        ),
        (MODULE, {"min_per_class": 21}, r"class 'dark' has 20, 'light' has 20; data.min_per_class requires 21"),
    ],
)  # fmt: skip
def test_an_unusable_dataset_is_refused_with_a_message(
    place, source: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(RatchetError, match=message) as refusal:
        ingest(place, source, **changes)
    assert "\n" not in str(refusal.value)
    assert not place.packed.exists()


def test_other_code_gives_another_digest_for_equal_images(make_place) -> None:
    first = ingest(make_place("first"))
    second = ingest(make_place("second"), MODULE + "MORE = 1  # a comment counts for nothing\n")
    assert first.splits == second.splits
    assert first.digest != second.digest


def test_a_missing_function_is_a_settings_error(place) -> None:
    with pytest.raises(SettingsError, match=r"params\.yaml: data\.factory"):
        ingest(place, factory="none")


THREADS = """
import os, pathlib, threading
import polars as pl

HERE = pathlib.Path(__file__).parent
LABELS = pl.DataFrame({"label": [0, 1] * 500}).group_by("label").len().sort("label")["label"].to_list()
threading.Thread(target=threading.Event().wait, daemon=True).start()
(HERE / f"imported-{os.getpid()}").touch()
"""
INGEST = """
import sys
from pathlib import Path
from ratchet.data.ingest import IngestTask, ingest
from ratchet.settings.model import DataSettings

root = Path(sys.argv[1])
settings = DataSettings(source="factory", factory="own:photos", code="own.py", workers=2)
ingest(IngestTask(settings, packed=root / "packed", quarantine=root / "bad.parquet", root=root, sample_timeout=60.0))
"""


@pytest.mark.system
def test_workers_alone_import_a_module_that_starts_threads(place) -> None:
    """The workers are forked from a server. A fork of a process with threads can hang, so the server has none."""
    body = """        import polars as pl
        label = LABELS[pl.DataFrame({"x": range(1000)}).group_by(pl.col("x") % 2).len().height - 2 + label]
        (HERE / f"read-{os.getpid()}-{os.getppid()}").touch()
"""
    (place.root / "own.py").write_text(THREADS + changed(body))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", INGEST, str(place.root)]
    subprocess.run(command, check=True, timeout=240, env=environment)
    imported = {path.name.split("-")[1] for path in place.root.glob("imported-*")}
    readers, servers = zip(*(path.name.split("-")[1:] for path in place.root.glob("read-*")), strict=True)
    assert set(readers) <= imported
    assert len(set(servers)) == 1
    assert not set(servers) & imported


OPENINGS = {
    "module": MODULE + "\nwhile HANGS: pass\n",
    "function": MODULE.replace("return Noise", "\n    while HANGS: pass\n    return Noise"),
}


@pytest.mark.parametrize("case", OPENINGS)
def test_a_dataset_that_does_not_open_is_named(place, monkeypatch, case: str) -> None:
    monkeypatch.setattr(custom_samples, "LEAST_OPENING", 1.0)
    place.sample_timeout = 0.5
    with pytest.raises(TrainingError, match=r"own:photos\('train'\) did not return within 1 s .*sample_timeout"):
        ingest(place, "HANGS = True\n" + OPENINGS[case])
    assert not place.packed.exists()


@pytest.mark.system
def test_a_dataset_that_hangs_in_a_worker_is_named(place, monkeypatch) -> None:
    monkeypatch.setattr(custom_samples, "LEAST_OPENING", 1.0)
    place.sample_timeout = 0.5
    source = "import multiprocessing\nHANGS = multiprocessing.parent_process() is not None\n" + OPENINGS["function"]
    with pytest.raises(TrainingError, match=r"own:photos\('train'\) did not return within 1 s \(worker process"):
        ingest(place, source, workers=2)
    assert not place.packed.exists()
