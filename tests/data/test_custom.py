"""Ingest of a user's own kind: packed arrays, splits, and every bad sample in quarantine with its true reason.

Expected arrays are computed with NumPy from the numbers that the class is written with.
"""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, RatchetError, TrainingError
from ratchet.kinds import ArraysInput, input_from_json
from ratchet.settings.model import TrainingSettings
from ratchet.training import custom_samples, model_input, open_split
from ratchet.training.augment import sample_bits
from tasks.training_job import make_plan

MODULE = """
import signal
import numpy as np

class Waves:
    def __init__(self, path):
        self.count = int(path.read_text())

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        return self.changed(place, {"value": [place, place + 0.5], "label": "ab"[place % 2], "part": place % 5})

    def changed(self, place, sample):
        return sample

    @staticmethod
    def arrays(value):
        start = float(value[0])
        made = {"wave": start + np.arange(6.0).reshape(2, 3), "code": np.array([start % 3], np.int64)}
        return Waves.made(value, made)

    @staticmethod
    def made(value, made):
        return made
"""
ROWS = 60


def ingest(place, source: str = MODULE, *, rows: int = ROWS, **changes: object) -> Manifest:
    (place.root / "waves.py").write_text(source)
    (place.root / "count.txt").write_text(str(rows))
    own = {"kind": "waves:Waves", "code": "waves.py", "source": "digits", "path": "count.txt"}
    return place.ingest(**{**own, **changes})


def sample(body: str) -> str:
    """Return the module with another method `changed`."""
    return MODULE.replace("        return sample\n", f"        {body}\n        return sample\n")


def arrays(body: str) -> str:
    """Return the module with another method `made`."""
    return MODULE.replace("        return made\n", f"        {body}\n        return made\n")


def stored(place, split: str, name: str) -> np.ndarray:
    shards = Manifest.read(place.packed).splits[split].arrays[name]
    return np.concatenate([np.load(place.packed / shard.file) for shard in shards])


def test_packed_arrays_are_those_of_the_class(place) -> None:
    manifest = ingest(place)
    described = manifest.input
    assert isinstance(described, ArraysInput)
    assert described.layout == (("code", "int64", (1,)), ("wave", "float32", (2, 3)))
    assert (described.reader, described.code) == ("waves:Waves", "waves.py")
    index = place.index()
    for split in ("train", "validation", "test"):
        rows = index.filter(split=split)
        start = rows["id"].cast(pl.Int64).to_numpy()
        assert np.array_equal(stored(place, split, "wave"), np.arange(6.0).reshape(2, 3) + start[:, None, None])
        assert np.array_equal(stored(place, split, "code"), start[:, None] % 3)
        assert np.array_equal(np.load(place.packed / split / "targets.npy"), start % 2)
        assert rows["part"].to_list() == (start % 5).tolist()
    wave = described.arrays[1]
    assert wave.mean == pytest.approx(stored(place, "train", "wave").astype(np.float64).mean())
    assert wave.std == pytest.approx(stored(place, "train", "wave").astype(np.float64).std())
    assert input_from_json(json.loads((place.packed / "manifest.json").read_text())["input"]) == described


def test_equal_input_gives_equal_bytes_and_other_code_another_digest(place, make_place) -> None:
    first = ingest(place)
    assert ingest(make_place("again")).digest == first.digest
    other = ingest(make_place("other"), MODULE + "\nMORE = 1")
    assert ingest(make_place("comment"), MODULE + "\n# a comment").digest == first.digest
    assert other.digest != first.digest
    assert [files.arrays for files in other.splits.values()] == [files.arrays for files in first.splits.values()]


def test_splits_have_equal_shares_of_each_class(place, make_place) -> None:
    """Samples are ordered by their hash inside the class, so twice as many move only those at the borders."""
    ingest(place)
    more = make_place("more")
    ingest(more, rows=2 * ROWS)
    for each, rows in ((place, ROWS), (more, 2 * ROWS)):
        classes = each.index().group_by("class").agg(pl.len(), test=(pl.col("split") == "test").sum())
        assert classes["len"].sum() == rows
        assert ((classes["test"] - 0.15 * classes["len"]).abs() < 1).all()
    before = dict(place.index().select("id", "split").rows())
    after = dict(more.index().select("id", "split").rows())
    assert sum(after[name] != split for name, split in before.items()) <= 0.1 * ROWS


def test_given_splits_groups_and_folds(place, make_place) -> None:
    names = '("train", "val", "test")[place % 3]'
    ingest(place, sample(f'sample["split"] = {names}'))
    assert dict(place.index().group_by("split").len().rows()) == {"train": 20, "validation": 20, "test": 20}
    grouped = make_place("grouped")
    ingest(grouped, sample('sample["group"] = f"g{place % 12}" + " " * (place // 12 % 2)'))
    assert grouped.index().group_by("group").agg(pl.col("split").n_unique())["split"].to_list() == [1] * 12
    folds = []
    for fold in range(3):
        cut = make_place(f"fold{fold}")
        ingest(cut, folds=3, fold=fold)
        folds.append(set(cut.index().filter(split="validation")["id"]))
    assert not set.intersection(*folds)
    assert len(set.union(*folds)) == ROWS - cut.index().filter(split="test").height


def test_numbers_and_several_labels_are_targets(place, make_place) -> None:
    numbers = ingest(place, sample('sample["label"] = place / 7'))
    assert numbers.target.problem == "regression"
    start = place.index().filter(split="test")["id"].cast(pl.Int64).to_numpy()
    assert np.load(place.packed / "test" / "targets.npy").ravel() == pytest.approx(start / 7)
    several = make_place("several")
    flags = 'sample = {"value": sample["value"], "x": place % 2, "y": place % 3 == 0}'
    labels = ingest(several, sample(flags), label_column=["x", "y"])
    assert (labels.target.problem, labels.target.names) == ("multi-label", ("x", "y"))


def test_equal_arrays_share_a_split_or_leave_the_lower_one(place, make_place) -> None:
    copies = sample('sample["value"] = [place % 40, 0]')
    ingest(place, copies)
    index = place.index()
    assert index.group_by("content").agg(pl.col("split").n_unique())["split"].max() == 1
    given = make_place("given")
    split = '"test" if place > 57 else "train" if place > 9 else "validation"'
    ingest(given, sample(f'sample |= {{"value": [place % 58, 0], "split": {split}}}'))
    assert given.bad() == {"00000000": {"duplicate-across-splits"}, "00000001": {"duplicate-across-splits"}}


BAD = {
    "raised": (sample("if place == 7: raise OSError('torn')"), "OSError: torn (line 16 of waves.py)"),
    "not-arrays": (sample("if place == 7: return 3"), "__getitem__ returns a int, not a dictionary with value"),
    "no-label": (sample("if place == 7: del sample['label']"), ""),
    "unknown-split": (sample("if place == 7: sample['split'] = 'later'"), "later"),
    "other-shape": (
        arrays("if value[0] == 7: made['wave'] = made['wave'][:1]"),
        "code, int64 (1); wave, float32 (1, 3), where most have code, int64 (1); wave, float32 (2, 3)",
    ),
    "not-finite": (
        arrays("if value[0] == 7: made['wave'][0, 0] = np.nan"),
        "1 of the 6 values of wave are nan, infinite or beyond 3.4e38",
    ),
    "duplicate-id": (sample("sample['id'] = f'clip {6 if place == 7 else place}'"), "again in train, kept in train"),
}
ARRAYS = {
    "made['wave'] = np.array([[1], [1, 2]], dtype=object)": "wave has type object; allowed: float64, float32, uint8, "
    "int8, int16, int32, int64, bool",
    "made['wave'] = [1.0, 2.0]": "wave is a list, not a NumPy array",
    "made['wave'] = np.zeros((0, 3))": "wave has shape (0, 3), without a value",
    "made['wave'] = made['wave'].astype(complex)": "wave has type complex128; allowed",
    "made[3] = made['wave']": "the name 3 of an array is not a Python name",
    "return made['wave']": "arrays returns a ndarray, not a dictionary of NumPy arrays",
    "np.array([[1], [1, 2]])": "ValueError: setting an array element with a sequence",
}
SAMPLES = {
    "return {'label': 'a'}": "__getitem__ returns a dict with label, not a dictionary with value",
    "sample['label'] = ['a', 'b']": "label is a list, not a text, a number, a date or None",
    "sample['label'] = b'a'": "label is a bytes, not a text, a number, a date or None",
}


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_sample_is_quarantined_with_its_reason(place, rule: str) -> None:
    source, value = BAD[rule]
    ingest(place, source)
    table = pl.read_parquet(place.quarantine)
    assert table.select("rule", "value").rows() == [(rule, value)]
    assert table["hint"].null_count() == 0
    assert place.index().height == ROWS - 1


@pytest.mark.parametrize("body", [*ARRAYS, *SAMPLES])
def test_what_are_no_arrays_is_said(place, body: str) -> None:
    """The seventh sample alone is bad; then all are, and one message stops the run."""
    if body in ARRAYS:
        seventh, every, value = arrays(f"if value[0] == 7: {body}"), arrays(body), ARRAYS[body]
    else:
        seventh, every, value = sample(f"if place == 7: {body}"), sample(body), SAMPLES[body]
    ingest(place, seventh)
    [(problem,)] = pl.read_parquet(place.quarantine).select("value").rows()
    assert problem.startswith(value)
    with pytest.raises(DataError, match=f"{ROWS} of {ROWS} samples are bad"):
        ingest(place, every)


STOPS = {
    "import": ("import absent_package\n" + MODULE, {}, r"data.kind: waves does not import \(ModuleNotFoundError"),
    "absent": (MODULE, {"kind": "waves:Tides"}, r"data.kind: waves has no function or class Tides. Allowed: Waves"),
    "outside": (MODULE, {"code": "count.txt"}, r"waves.py\) is outside data.code \(count.txt\)"),
    "function": (MODULE + "\ndef make(path): pass", {"kind": "waves:make"}, r"data.kind: waves:make is no class"),
    "no length": (MODULE.replace("__len__", "length"), {}, "data.kind: waves:Waves has no __len__"),
    "no arrays": (MODULE.replace("def arrays", "def array"), {}, "waves:Waves: it has no method arrays"),
    "not static": (MODULE.replace("@staticmethod\n    def arrays(", "def arrays(self, "), {}, "arrays is no static"),
    "beginning": (MODULE.replace("int(path", "int('x' + path"), {}, r"cannot open .*count.txt: ValueError: .*line 7"),
    "no path": (MODULE, {"path": "nothing"}, "data.path: .*nothing does not exist"),
    "random": (arrays("made['wave'] += np.random.default_rng().random()"), {}, "arrays returns other arrays"),
    "slow": (sample("place == 7 and signal.pause()"), {}, r"sample 7 of waves:Waves was not read within 0.5 s \(line"),
    "label": (MODULE, {"label_column": "labels"}, "no sample has 'labels'; they have label, part"),
    "texts": (MODULE, {"problem": "regression"}, "label column 'label' has texts such as 'a', and regression needs"),
}  # fmt: skip


@pytest.mark.parametrize("case", STOPS)
def test_what_cannot_be_read_stops_with_one_message(place, case: str) -> None:
    source, changes, message = STOPS[case]
    with pytest.raises(RatchetError, match=message) as error:
        ingest(place, source, **changes)
    assert "Fix" in str(error.value) or "Allowed" in str(error.value)
    assert not place.packed.exists()


def test_a_class_that_does_not_open_is_named(place, monkeypatch) -> None:
    monkeypatch.setattr(custom_samples, "LEAST_OPENING", 1.0)
    with pytest.raises(
        TrainingError, match=r"waves:Waves did not open .*count.txt within 1 s \(line \d+ of waves.py\)"
    ):
        ingest(place, MODULE + "\nwhile True: pass\n")
    assert not place.packed.exists()


def test_no_samples_stop_the_run(place) -> None:
    with pytest.raises(TrainingError, match=r"waves:Waves finds no samples in"):
        ingest(place, rows=0)


def test_code_that_changed_since_ingest_does_not_train(place) -> None:
    manifest = ingest(place)
    about = {"model": "mlp", "tokenizer": "auto", "context": 0, "root": str(place.root)}
    assert model_input(place.packed, manifest.input, **about) == manifest.input
    (place.root / "waves.py").write_text(MODULE + "\nMORE = 1\n")
    with pytest.raises(TrainingError, match=r"data.code: waves.py changed since the data were ingested"):
        model_input(place.packed, manifest.input, **about)


AUGMENT = """
    @staticmethod
    def augment(arrays, seeds):
        import torch

        moved = [np.random.default_rng(seed).normal(size=(2, 3)) for seed in seeds]
        return {**arrays, "wave": (arrays["wave"] + torch.tensor(np.array(moved))).to(arrays["wave"].dtype)}
"""


def test_augmentation_depends_on_seed_epoch_and_sample_alone(place) -> None:
    """The sample gets the same noise in any batch, another in another epoch, and none without a plan."""
    manifest = ingest(place, MODULE + AUGMENT)
    train = open_split(place.packed, "train", replace(manifest.input, root=str(place.root)))
    plan = make_plan(TrainingSettings(), manifest.target, seed=3, kind="arrays")
    cpu = torch.device("cpu")
    (_, plain), _ = train.batch(np.arange(4), cpu)
    (codes, noisy), _ = train.batch(np.arange(4), cpu, plan=plan, epoch=1)
    (_, alone), _ = train.batch(np.array([2]), cpu, plan=plan, epoch=1)
    (_, later), _ = train.batch(np.arange(4), cpu, plan=plan, epoch=2)
    seeds = sample_bits(np.asarray(train.keys[:4]), seed=3, epoch=1)
    drawn = np.stack([np.random.default_rng(seed).normal(size=(2, 3)) for seed in seeds])
    assert np.allclose(noisy.numpy() - plain.numpy(), drawn, atol=1e-5)
    assert torch.equal(noisy[2], alone[0])
    assert not torch.equal(noisy, later)
    assert codes.dtype == torch.int64


def test_augmentation_that_changes_a_shape_is_refused(place) -> None:
    manifest = ingest(place, MODULE + AUGMENT.replace("{**arrays, ", "{"))
    train = open_split(place.packed, "train", replace(manifest.input, root=str(place.root)))
    plan = make_plan(TrainingSettings(), manifest.target, seed=3, kind="arrays")
    with pytest.raises(TrainingError, match=r"waves:Waves.augment does not return the arrays that it was given"):
        train.batch(np.arange(4), torch.device("cpu"), plan=plan)


def test_a_column_of_persons_gets_a_hint(place) -> None:
    ingest(place, sample('sample["patient_id"] = f"p{place // 3}"'))
    (note,) = place.problem()["notes"]
    assert note.startswith("column 'patient_id' has 20 values in 60 rows")
    ingest(place, sample('sample["patient_id"] = f"p{place // 3}"'), group_column="patient_id")
    assert place.problem()["notes"] == []
