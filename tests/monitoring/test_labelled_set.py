"""Data sets of packed samples and labelled requests: real data, a real log and real labels."""

import json
import os
import re
import shutil
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from commands.from_requests import print_labelled_set
from ratchet import files
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, NoRequests, TrainingError
from ratchet.kinds import ModelSpec, TableInput
from ratchet.kinds.ingest import sample_files
from ratchet.kinds.registry import kind_of
from ratchet.monitoring import retraining
from ratchet.monitoring.labelled_set import LabelledSet, training_hours, write_labelled_set
from ratchet.monitoring.retraining import LabelledData, NotTrained
from ratchet.monitoring.to_label import rows_to_label, write_rows_to_label
from ratchet.problems.named_answers import named_answers
from ratchet.settings.model import DataSettings, MonitoringSettings, Params
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.log_reader import log_files, log_folder
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import Logged, target_id
from ratchet.training import model_input, open_split
from ratchet.training.custom_class import CustomClass
from ratchet.training.custom_samples import CustomSamples
from ratchet.workspace import Workspace

BEGIN = 1_760_000_400 // 3600 * 3600
OLD, NEW = 600, 300
WEEK = 604_800
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "years", "marital", "occupation", "relationship", "race", "sex", "gain",
    "loss", "hours", "country", "income",
)  # fmt: skip


DAYS = """
import numpy as np
import polars as pl

class Days:
    def __init__(self, path):
        days = pl.read_csv(path).group_by("dteday", maintain_order=True).agg("cnt", "temp")
        self.days = days.filter(pl.col("cnt").list.len() == 24)

    def __len__(self):
        return len(self.days)

    def __getitem__(self, place):
        day, rentals, temperature = self.days.row(place)
        busy = "yes" if sum(rentals) > 3000 else "no"
        return {"value": {"rentals": rentals, "temperature": temperature}, "busy": busy, "id": day}

    @staticmethod
    def arrays(value):
        return {name: np.log1p(np.asarray(values, np.float32)) for name, values in value.items()}
"""


@dataclass
class Place:
    """A project folder with packed data, and rows of the same source that a version is asked about."""

    workspace: Workspace
    params: Params
    later: Any
    labels: list[Any]

    @property
    def manifest(self) -> Manifest:
        return Manifest.read(self.workspace.packed)

    def set(self, **changes: Any) -> None:
        data = DataSettings(**{**self.params.data.model_dump(), **changes})
        self.params = self.params.model_copy(update={"data": data})

    def ingest(self, **changes: Any) -> Manifest:
        settings = DataSettings(**{**self.params.data.model_dump(), **changes})
        root, quarantine = self.workspace.root, self.workspace.quarantine
        return ingest(IngestTask(settings, self.workspace.packed, quarantine, root, lambda done, total: None))

    def request(self, first: int, last: int, *, inputs: str = "keep", certain: list[float] | None = None) -> None:
        """Log answers to the later rows, one request for ten rows. `certain`: probability of the first class."""
        spec = self.spec
        arrays = kind_of(spec.input).decode(self.later[first:last], spec.input)
        names = kind_of(spec.input).array_names(spec.input)
        log = RequestLog(log_folder(self.workspace), share=1.0, inputs=inputs, days=1e6, mib=64.0, clock=lambda: BEGIN)
        for place in range(0, last - first, 10):
            values = dict(zip(names, (each[place : place + 10] for each in arrays), strict=True))
            predictions = np.full((10, spec.target.outputs), 0.5, np.float32)
            if certain:
                predictions[:, 0] = certain[place : place + 10]
                predictions[:, 1] = 1 - predictions[:, 0]
            answer, at = f"{first + place:032x}", BEGIN + (first + place) * 60.0
            texts = tuple(self.later[first + place : first + place + 10]) if kind_of(spec.input).tokenizes else ()
            written = Logged(
                answer, at, 0.01, "own", "m", "1", "p", "k", values, predictions, target_id(spec.target), texts=texts
            )
            log.add(answer, partial(lambda each: each, written))
        log.close()

    def label(self, labels: dict[tuple[str, int], list[float]], *, time: float = BEGIN + 9e5) -> None:
        store = LabelStore(log_folder(self.workspace), clock=lambda: time)
        store.add(labels, problem=self.manifest.target.problem, days=1e6)

    def true_labels(self, first: int, last: int) -> dict[tuple[str, int], list[float]]:
        names = named_answers(self.manifest.target)
        return {(f"{row // 10 * 10:032x}", row % 10): names.label(self.labels[row]) for row in range(first, last)}

    @property
    def spec(self) -> ModelSpec:
        packed, have = self.workspace.packed, self.manifest.input
        model = next(iter(kind_of(have).networks))
        read = model_input(packed, have, model=model, tokenizer="auto", context=0, root=str(self.workspace.root))
        return ModelSpec(model, read, self.manifest.target)

    def write(self, name: str = "march", spec_of: Callable[[str], ModelSpec | None] | None = None) -> LabelledSet:
        folder = self.workspace.data / "labelled" / name
        spec = self.spec
        return write_labelled_set(self.workspace, self.params, spec_of or (lambda name: spec), folder)

    def packed(self) -> dict[str, tuple[str, Any]]:
        """Return split and target of each packed sample by the digest of its arrays."""
        packed = {}
        for name in ("train", "validation", "test"):
            split = open_split(self.workspace.packed, name)
            values = kind_of(self.manifest.input).samples(split, np.arange(len(split)), self.manifest.input)
            digests = sample_files(self.spec.input.kind).digests(values)
            packed.update(zip(digests, ((name, target) for target in np.asarray(split.targets).tolist()), strict=True))
        return packed


def data_settings(written: LabelledSet) -> dict[str, Any]:
    return {key.removeprefix("data."): value for key, value in written.settings.items() if key.startswith("data.")}


def datasets() -> Path:
    if not (root := os.environ.get("RATCHET_DATASETS")):
        pytest.skip("RATCHET_DATASETS is not set")
    return Path(root)


@pytest.fixture
def adult(tmp_path: Path) -> Place:
    lines = (datasets() / "tabular" / "adult.data").read_text().splitlines()[: OLD + NEW]
    rows = [dict(zip(COLUMNS, line.split(", "), strict=True)) for line in lines]
    pl.DataFrame(rows[:OLD]).write_csv(tmp_path / "adult.csv")
    params = Params(data=DataSettings(kind="table", path="adult.csv", label_column="income"))
    numbers = ("age", "fnlwgt", "years", "gain", "loss", "hours")
    later = [
        {name: float(value) if name in numbers else value for name, value in row.items() if name != "income"}
        for row in rows[OLD:]
    ]
    place = Place(Workspace(tmp_path), params, later, [row["income"] for row in rows[OLD:]])
    place.ingest()
    return place


@pytest.fixture
def fashion(tmp_path: Path) -> Place:
    raw = datasets() / "FashionMNIST" / "raw"
    count = 400
    pixels = np.frombuffer((raw / "t10k-images-idx3-ubyte").read_bytes(), np.uint8, offset=16).reshape(-1, 28, 28)
    labels = np.frombuffer((raw / "t10k-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    for place in range(count):
        path = tmp_path / "images" / f"class {labels[place]}" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[place]).save(path)
    params = Params(data=DataSettings(source="image-folder", path="images"))
    later = pixels[count : count + NEW, :, :, None]
    place = Place(Workspace(tmp_path), params, later, [f"class {label}" for label in labels[count : count + NEW]])
    place.ingest()
    return place


@pytest.fixture
def reviews(tmp_path: Path) -> Place:
    """Film reviews of a real set. Their characters are not those of their token ids."""
    folder = datasets() / "text" / "rt-polarity"
    lines = {name: (folder / f"rt-polarity.{name}").read_text("latin-1").splitlines() for name in ("neg", "pos")}
    rows = [(text, name) for pair in zip(*lines.values(), strict=True) for text, name in zip(pair, lines, strict=True)]
    pl.DataFrame(rows[:OLD], ["text", "label"], orient="row").write_csv(tmp_path / "reviews.csv")
    later = rows[OLD : OLD + NEW]
    params = Params(data=DataSettings(kind="text", path="reviews.csv"))
    place = Place(Workspace(tmp_path), params, [text for text, _ in later], [name for _, name in later])
    place.ingest()
    return place


@pytest.fixture
def hours(tmp_path: Path) -> Place:
    """Days of bike-sharing, of which a user's class makes arrays: the logarithm of the rentals, and the temperature."""
    lines = (datasets() / "tabular" / "bike-sharing" / "hour.csv").read_text().splitlines()
    (tmp_path / "early.csv").write_text("\n".join(lines[:7000]))
    (tmp_path / "late.csv").write_text("\n".join([lines[0], *lines[7000:]]))
    (tmp_path / "days.py").write_text(DAYS)
    data = DataSettings(kind="days:Days", code="days.py", path="early.csv", label_column=("busy",))
    place = Place(Workspace(tmp_path), Params(data=data), [], [])
    place.ingest()
    custom = CustomClass.of(place.manifest.input.with_code_in(tmp_path))
    opened = custom.loaded(tmp_path / "late.csv")
    samples = [opened[at] for at in range(NEW)]
    place.later, place.labels = [each["value"] for each in samples], [each["busy"] for each in samples]
    return place


@pytest.mark.parametrize("name", ["adult", "fashion", "reviews", "hours"])
def test_old_samples_keep_their_splits_and_new_ones_join(name: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(name)
    before = place.packed()
    place.request(0, 100)
    place.label(place.true_labels(0, 90))
    written = place.write()
    model = {"adult": "adult", "fashion": "images", "reviews": "reviews", "hours": "days"}[name]
    assert written.settings["registry.model"] == model
    place.ingest(**data_settings(written))
    after = place.packed()
    assert {digest: after[digest] for digest in before} == before
    rows = pl.read_parquet(written.folder / "rows.parquet")
    assert len(after) - len(before) == len(rows) == written.added == sum(written.requests.values())
    assert {row["digest"]: row["split"] for row in rows.iter_rows(named=True)} == {
        digest: split for digest, (split, _) in after.items() if digest not in before
    }
    assert written.requests["test"] > 0
    assert len(rows) >= 85  # the others are copies


def test_each_wrong_label_is_named_and_the_others_are_taken(adult: Place) -> None:
    adult.request(0, 100)
    labels = adult.true_labels(0, 50)
    labels[f"{0:032x}", 3] = [7.0]  # there are two classes
    labels["f" * 32, 0] = [0.0]
    adult.label(labels)
    adult.request(100, 110, inputs="hash")
    adult.label(adult.true_labels(100, 110))
    first = adult.write()
    assert first.added == 49
    assert first.left_out == {
        "its answer is not in the log": 1,
        "its input is not in the log (serving.log_inputs was not keep)": 10,
        "its label [7.0] is not possible; allowed: <=50K, >50K": 1,
    }
    named = pl.read_parquet(first.folder / "left-out.parquet")
    assert ("f" * 32, 0, "its answer is not in the log") in named.rows()
    assert adult.write("no version", lambda name: None).left_out.keys() == {
        "its answer is not in the log", "its version is not in the registry",
    }  # fmt: skip


def test_an_input_is_in_the_set_once_with_one_label(adult: Place) -> None:
    adult.later += adult.later[:20]  # the same rows are asked about again
    adult.labels += adult.labels[:10] + [{"<=50K": ">50K", ">50K": "<=50K"}[label] for label in adult.labels[10:20]]
    adult.request(0, 20)
    adult.request(NEW, NEW + 20)
    adult.label(adult.true_labels(0, 20) | adult.true_labels(NEW, NEW + 20))
    written = adult.write()
    assert written.added == 10
    assert written.left_out == {
        "its input is in the set already": 10,
        "the same input has another label in another request": 20,
    }


def test_equal_logs_give_equal_bytes_and_rows_survive_the_log(adult: Place) -> None:
    adult.request(0, 40)
    adult.label(adult.true_labels(0, 40))
    written, again = adult.write(), adult.write("april")
    assert (written.digest, written.added) == (again.digest, 40)
    assert {path.name: path.read_bytes() for path in written.folder.iterdir()} == {
        path.name: path.read_bytes() for path in again.folder.iterdir()
    }
    for path in log_files(log_folder(adult.workspace)):
        path.unlink()
    adult.request(40, 60)
    adult.label(adult.true_labels(40, 60))
    later = adult.write()
    assert (later.added, sum(later.requests.values())) == (19, 59)
    assert "column country has a category that the model did not know, and the log does not have it" in later.left_out
    rows = [pl.read_parquet(folder / "rows.parquet") for folder in (again.folder, written.folder)]
    same = rows[1].join(rows[0], on="digest").select("split", "split_right")
    assert (len(same), (same["split"] == same["split_right"]).all()) == (40, True)
    adult.label({(f"{0:032x}", 1): [1.0 - adult.true_labels(1, 2)[f"{0:032x}", 1][0]]})  # of a row that the log lost
    assert adult.write().added == 0


def test_the_command_leaves_the_data_set_of_on_drift_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"NAME: found on-drift, which only train-flow/on-drift writes\. Fix: "):
        print_labelled_set(Workspace(tmp_path), "on-drift", to_label=False)


def test_data_that_take_no_requests_train_without_them(adult: Place) -> None:
    lines = "".join(f"text {n},{n % 2},{n % 3 % 2},{n % 7}\n" for n in range(99))
    (adult.workspace.root / "texts.csv").write_text(f"text,income,other,number\n{lines}")
    messages: list[str] = []
    adult.ingest(path="texts.csv", problem="multi-label", label_column=("income", "other"))
    assert (
        retraining.collect(adult.workspace, adult.params, lambda name: adult.spec, now=0, say=messages.append) is None
    )
    assert [re.sub(r"\..*", "", line) for line in messages] == [
        "training without requests: the problem of the data is multi-label",
    ]


def test_half_of_the_rows_to_label_are_least_certain(adult: Place) -> None:
    adult.request(0, NEW, certain=[0.5 + row / NEW / 2 for row in range(NEW)])
    adult.label(adult.true_labels(0, 10))
    spec = adult.spec
    rows = rows_to_label(log_folder(adult.workspace), lambda name: spec, seed=0)
    assert len(rows) == 200
    parts = {each: rows.filter(pl.col("chosen") == each) for each in ("random", "entropy")}
    places = {
        each: {int(answer, 16) + row for answer, row in part.select("answer", "row").rows()}
        for each, part in parts.items()
    }
    assert places["entropy"] == set(sorted({*range(10, NEW)} - places["random"])[:100])
    assert len([place for place in places["random"] if place < 155]) in range(35, 66)  # half of all rows
    again = rows_to_label(log_folder(adult.workspace), lambda name: spec, seed=0)
    assert again.equals(rows)
    assert not rows_to_label(log_folder(adult.workspace), lambda name: spec, seed=1).equals(rows)


def test_rows_chosen_by_entropy_are_training_rows_only(adult: Place) -> None:
    """Else the gate would judge by rows that are harder than the traffic."""
    adult.set(test_fraction=0.4, validation_fraction=0.3)
    adult.request(0, NEW, certain=[0.5 + row / NEW / 2 for row in range(NEW)])
    spec, requests = adult.spec, log_folder(adult.workspace)
    listed = write_rows_to_label(adult.workspace.root / "these.parquet", requests, lambda name: spec, seed=0)
    truth = adult.true_labels(0, NEW)
    adult.label({key: truth[key] for key in listed.select("answer", "row").iter_rows()})
    written = adult.write()
    rows = pl.read_parquet(written.folder / "rows.parquet").join(listed, on=("answer", "row"))
    splits = {name: set(part["split"]) for (name,), part in rows.group_by("chosen")}
    assert splits == {"entropy": {"train"}, "random": {"train", "validation", "test"}}
    adult.set(order_by="age", test_fraction=0.45, validation_fraction=0.42)  # the rows of one hour share a split
    ordered = adult.write("april")
    rows = pl.read_parquet(ordered.folder / "rows.parquet").join(listed, on=("answer", "row"))
    assert set(rows.filter(pl.col("chosen") == "entropy")["split"]) == {"train"}
    assert rows["split"].n_unique() > 1
    assert sum(count for reason, count in ordered.left_out.items() if "chosen for its entropy" in reason) > 0


def test_entropy_rows_of_sets_from_before_leave_the_test_split(adult: Place) -> None:
    adult.set(test_fraction=0.4, validation_fraction=0.3)
    adult.request(0, NEW)
    adult.label(adult.true_labels(0, NEW))
    before = pl.read_parquet(adult.write().folder / "rows.parquet")
    unfair = before.filter(pl.col("split") != "train")[::2]
    unfair.select("answer", "row").write_parquet(log_folder(adult.workspace).parent / "chosen-by-entropy.parquet")
    again = adult.write()
    rows = pl.read_parquet(again.folder / "rows.parquet").join(unfair, on=("answer", "row"))
    assert (len(rows), set(rows["split"])) == (len(unfair), {"train"})
    assert adult.write().digest == again.digest
    shutil.rmtree(again.folder)
    record = log_folder(adult.workspace).parent / "chosen-by-entropy.parquet"
    record.rename(record.with_name("later"))
    adult.set(**data_settings(adult.write()))
    record.with_name("later").rename(record)
    data = adult.ingest()
    for file in log_files(log_folder(adult.workspace)):
        file.unlink()
    april = adult.write("april")
    left_out = {reason: count for reason, count in april.left_out.items() if "the data have it in the" in reason}
    assert sum(left_out.values()) == len(unfair)
    after = adult.ingest(**data_settings(april))
    assert len(unfair) == sum(data.splits[name].rows - after.splits[name].rows for name in ("validation", "test"))
    assert after.splits["train"].rows == data.splits["train"].rows


def test_rows_of_test_hours_are_not_chosen_by_entropy(adult: Place) -> None:
    adult.set(order_by="age", test_fraction=0.45, validation_fraction=0.42)
    adult.request(0, NEW, certain=[0.5 + row / NEW / 2 for row in range(NEW)])
    spec, folder = adult.spec, adult.workspace.data / "labelled" / "march"
    hours = training_hours(adult.workspace, adult.params.data, folder)
    listed = rows_to_label(log_folder(adult.workspace), lambda name: spec, seed=0, may_train=hours)
    chosen = listed.filter(pl.col("chosen") == "entropy")
    every = set(listed["time"].dt.epoch("s") // 3600)
    assert set(chosen["time"].dt.epoch("s") // 3600) == {hour for hour in every if hours(hour)} != every
    truth = adult.true_labels(0, NEW)
    adult.label({key: truth[key] for key in listed.select("answer", "row").iter_rows()})
    assert not [reason for reason in adult.write().left_out if "entropy" in reason]


def test_only_rows_that_can_become_samples_are_to_be_labelled(adult: Place) -> None:
    adult.later += adult.later[:20] * 2  # the same rows are asked about again
    adult.request(0, 20, inputs="hash")
    adult.request(20, 60)
    spec, requests = adult.spec, log_folder(adult.workspace)
    path = adult.workspace.root / "label-these.parquet"
    assert len(write_rows_to_label(path, requests, lambda name: spec, seed=0)) == 40
    adult.request(NEW, NEW + 40)
    assert len(write_rows_to_label(path, requests, lambda name: spec, seed=0)) == 60
    adult.labels += adult.labels[:20]
    adult.label(adult.true_labels(NEW, NEW + 10))
    assert len(write_rows_to_label(path, requests, lambda name: spec, seed=0)) == 50


def test_without_kept_inputs_the_setting_is_named(adult: Place) -> None:
    adult.request(0, 20, inputs="hash")
    collect = partial(retraining.collect, adult.workspace, adult.params, lambda name: adult.spec, now=0.0, say=print)
    with pytest.raises(NotTrained, match=r"Fix: set serving\.log_inputs=keep, and wait for requests"):
        collect()


def test_a_training_waits_for_labels_that_none_before_had(adult: Place) -> None:
    spec, workspace, now = adult.spec, adult.workspace, time.time()
    limits = MonitoringSettings(min_labels=30, max_retrainings_per_week=1)
    params = adult.params.model_copy(update={"monitoring": limits})
    collect = partial(retraining.collect, workspace, params, lambda name: spec, say=print)
    arrived = partial(retraining.arrived, workspace, params)
    adult.request(0, 100)
    adult.label(adult.true_labels(0, 20))
    with pytest.raises(NotTrained, match=r"not trained: \d+ new .*, monitoring.min_labels is 30.* Fix") as error:
        collect(now=now)
    assert error.value.needs_labels
    assert len(pl.read_parquet(workspace.state / "monitoring" / "label-these.parquet")) == 80
    assert arrived(now=now + 10) == ""
    adult.label(adult.true_labels(20, 60), time=now + 20)
    assert arrived(now=now + 30).startswith("ratchet-labels-")
    collected = collect(now=now + 30)
    assert collected is not None
    retraining.mark_trained(workspace, collected)
    assert (collected.new >= 30, arrived(now=now + 40)) == (True, "")
    adult.label(adult.true_labels(60, 100))
    with pytest.raises(NotTrained, match=r"monitoring\.max_retrainings_per_week is 1, and there were"):
        collect(now=now + 50)
    again = collect(now=now + WEEK + 100)
    assert again is not None
    assert again.new + collected.new == sum(again.dataset.requests.values())
    retraining.mark_trained(workspace, again)
    with pytest.raises(NotTrained, match="not trained: 0 new labelled requests"):
        collect(now=now + 3 * WEEK)


def test_a_clock_that_was_ahead_stops_no_training(adult: Place) -> None:
    spec, workspace, now = adult.spec, adult.workspace, time.time()
    params = adult.params.model_copy(update={"monitoring": MonitoringSettings(min_labels=30)})
    adult.request(0, 100)
    adult.label(adult.true_labels(0, 20))
    with pytest.raises(NotTrained, match=r"monitoring.min_labels is 30"):
        retraining.collect(workspace, params, lambda name: spec, now=now + 50 * WEEK, say=print)
    record = workspace.state / "monitoring" / "retraining.json"
    times = [now + 50 * WEEK] * params.monitoring.max_retrainings_per_week
    record.write_text(json.dumps(json.loads(record.read_text()) | {"times": times}))
    adult.label(adult.true_labels(20, 60), time=now + 20)
    assert retraining.arrived(workspace, params, now=now + 30).startswith("ratchet-labels-")
    assert retraining.collect(workspace, params, lambda name: spec, now=now + 30, say=print) is not None


def test_a_run_that_did_not_train_begins_again(adult: Place) -> None:
    """Also after old labels were deleted, but not while the weekly limit would refuse it."""
    spec, workspace, now = adult.spec, adult.workspace, time.time()
    limits = MonitoringSettings(min_labels=30, max_retrainings_per_week=1)
    params = adult.params.model_copy(update={"monitoring": limits})
    arrived = partial(retraining.arrived, workspace, params)
    adult.request(0, 100)
    adult.label(adult.true_labels(0, 20))
    with pytest.raises(NotTrained):
        retraining.collect(workspace, params, lambda name: spec, now=now, say=print)
    shutil.rmtree(LabelStore(log_folder(workspace)).folder)
    adult.label(adult.true_labels(20, 60), time=now + 20)
    keys = [arrived(now=now + days * 86_400) for days in (0, 0, 1, 2)]
    assert (all(keys), len(set(keys))) == (True, 3)
    retraining.mark_trained(workspace, LabelledData(adult.write(), 40, pl.DataFrame({"digest": ["0"]})))
    record = workspace.state / "monitoring" / "retraining.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"missing": 10}))  # a drift has asked again
    assert arrived(now=now + 86_400) == ""
    assert arrived(now=now + WEEK + 100) != ""


FORMS = {
    "comma": ("1234,5", "12,5"),
    "money": ("$1,234.5", "$1,234.00"),
    "percent": ("1.234,5 %", "1.250,5 %"),
    "debts": ("(1,234.5)", "(1,200)"),
    "day": ("%d.%m.%Y", "31.12.2024"),
    "digits": ("%Y%m%d", "20240131"),
    "mixed": ("%d.%m.%Y %H:%M|%Y-%m-%dT%H:%M:%S%.f%#z", "2024-12-31T10:20:30.5+01:00"),
    "month": ("%Y-%m", "2024-12"),
    "seconds": ("seconds", "1735640400"),
}


@pytest.fixture
def written(tmp_path: Path) -> Place:
    """A table whose columns write numbers and dates in another form than Parquet."""

    def cells(row: int) -> dict[str, str]:
        day, number = datetime(2019, 1, 1, 10, 20, tzinfo=UTC) + timedelta(days=row * 7), row * 12.125 + 0.1
        return {
            "comma": f"{number:.2f}".replace(".", ","),
            "money": f"${number:,.2f}",
            "percent": f"{number:,.1f} %".translate(str.maketrans(",.", ".,")),
            "debts": f"({number:,.1f})" if row % 2 else f"{number:,.1f}",
            "day": f"{day:%d.%m.%Y}",
            "digits": f"{day:%Y%m%d}",
            "mixed": f"{day:%d.%m.%Y %H:%M}" if row % 2 else f"{day:%Y-%m-%dT%H:%M:%S}.5Z",
            "month": f"{day:%Y-%m}",
            "seconds": f"{day.timestamp():.0f}",
            "class": "yes" if row % 3 else "no",
        }

    rows = [cells(row) for row in range(300)]
    pl.DataFrame(rows[:280]).write_csv(tmp_path / "written.csv")
    columns: Any = {"digits": "datetime", "seconds": "datetime"}
    params = Params(data=DataSettings(kind="table", path="written.csv", label_column="class", columns=columns))
    later = [{name: value for name, value in row.items() if name != "class"} for row in rows[280:]]
    place = Place(Workspace(tmp_path), params, later, [row["class"] for row in rows[280:]])
    place.ingest()
    return place


def test_the_next_version_reads_the_same_texts(written: Place) -> None:
    before = written.spec.input
    assert isinstance(before, TableInput)
    assert {column.name: column.form for column in before.columns} == {name: form for name, (form, _) in FORMS.items()}
    written.request(0, 20)
    written.label(written.true_labels(0, 20))
    result = written.write()
    assert result.added == 20
    written.ingest(**data_settings(result))
    after = written.spec.input
    assert isinstance(after, TableInput)
    row = [{name: text for name, (_, text) in FORMS.items()}]
    numbers = [kind_of(each).decode(row, each)[0] for each in (before, after)]
    offsets = [[column.offset for column in each.columns] for each in (before, after)]
    assert [column.form for column in after.columns] == [column.form for column in before.columns]
    assert np.allclose(numbers[0] + offsets[0], numbers[1] + offsets[1], rtol=1e-6, atol=0)


def test_a_form_that_cannot_be_written_again_is_refused(written: Place) -> None:
    source = written.workspace.root / "written.csv"
    small = pl.Series([*["0,25", "7,5"] * 139, "9,75", "1.234,50"])  # the only large number has no label
    classes = pl.Series(["yes" if row % 3 else "no" for row in range(279)] + [None])
    pl.read_csv(source, infer_schema=False).with_columns(comma=small, **{"class": classes}).write_csv(source)
    written.ingest()
    with pytest.raises(NoRequests, match=r"column 'comma': its values are written as .*cannot be written again. Fix"):
        written.write()


def test_a_request_keeps_its_split_whatever_changes(adult: Place) -> None:
    adult.request(0, 200)
    adult.label(adult.true_labels(0, 100))
    before = adult.write()
    splits = pl.read_parquet(before.folder / "rows.parquet").select("answer", "row", "split")
    adult.set(test_fraction=0.4, drop=("fnlwgt",))  # the digest of each request is another
    adult.ingest()
    after = adult.write()
    rows = pl.read_parquet(after.folder / "rows.parquet").join(splits, on=("answer", "row"))
    assert len(rows) >= 90  # the others are copies now
    assert (rows["split"] == rows["split_right"]).all()
    assert adult.write().requests == after.requests


def test_sets_of_dated_data_stay_split_by_the_hour(adult: Place) -> None:
    source = adult.workspace.root / "adult.csv"
    pl.read_csv(source).with_row_index("when").write_csv(source)
    adult.set(order_by="when", test_fraction=0.4, validation_fraction=0.3)
    adult.ingest()
    adult.request(0, NEW)
    adult.label(adult.true_labels(0, 60))
    adult.set(**data_settings(adult.write()))
    adult.ingest()
    adult.label(adult.true_labels(60, NEW))
    rows = pl.read_parquet(adult.write("april").folder / "rows.parquet")
    hours = rows.group_by(pl.col("time").dt.truncate("1h")).agg(pl.col("split").n_unique(), pl.len())
    assert (hours["split"] == 1).all()
    assert len(hours) >= 4
    assert rows["split"].n_unique() > 1


def test_requests_of_another_kind_are_left_out(adult: Place, fashion: Place) -> None:
    fashion.request(0, 20)
    fashion.label(fashion.true_labels(0, 20))
    fashion.write()
    spec = fashion.spec
    adult.ingest()  # into the same folder
    written = adult.write(spec_of=lambda name: spec)
    assert written.added == sum(written.requests.values()) == 0
    (reason,) = written.left_out
    assert reason.endswith("input: it takes 28 x 28 x 1 pixels, and these are 14 columns")


def test_git_ignores_requests_and_takes_their_hashes(adult: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    root = adult.workspace.root
    shutil.copy(Path(__file__).parents[2] / "data" / ".gitignore", root / "data")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    adult.request(0, 40)
    adult.label(adult.true_labels(0, 20))
    folder = adult.write().folder
    spec = adult.workspace.state / "monitoring" / "specs" / "m-1.json"
    files.write_json(spec, adult.spec.to_json())
    shutil.copy(Path(__file__).parents[2] / "params.yaml", root)
    monkeypatch.chdir(root)
    print_labelled_set(adult.workspace, "march", to_label=True)
    folder.with_name("march.dvc").write_text("outs: []")
    to_label = folder.with_name("march.label-these.parquet")
    assert len(pl.read_parquet(to_label)) == 20
    assert to_label.parent == folder.parent  # `dvc add` of the set does not take it, and a new set does not delete it
    status = ["git", "status", "--short", "--untracked-files=all", "data/labelled"]
    names = subprocess.run(status, cwd=root, check=True, capture_output=True, text=True).stdout.split()
    assert names == ["??", "data/labelled/march.dvc"]


def test_columns_that_are_no_features_are_still_there(adult: Place) -> None:
    source, count = adult.workspace.root / "adult.csv", OLD
    table = pl.read_csv(source).with_columns(
        income=pl.col("income").replace({"<=50K": "NA"}),
        split=pl.col("sex"),  # a feature
        person=pl.Series([f"p{row // 2}" for row in range(count)]),
        ticket=pl.Series([f"t{row}" for row in range(count)]),
    )
    table.write_csv(source)
    adult.set(classes=("NA", ">50K"), group_column="person")
    adult.ingest()
    adult.later = [row | {"split": row["sex"]} for row in adult.later]
    adult.labels = [label.replace("<=50K", "NA") for label in adult.labels]
    adult.request(0, 40)
    adult.label(adult.true_labels(0, 40))
    adult.set(classes="auto")
    before, index = adult.packed(), adult.workspace.packed / "index.parquet"
    adult.ingest(**data_settings(adult.write()))
    after = adult.packed()
    assert {digest: after[digest] for digest in before} == before
    assert len(after) > len(before) + 30
    assert [column.name for column in adult.spec.input.columns][-1] == "split"  # type: ignore[union-attr]
    columns = pl.read_parquet(index, columns=["group", "ticket"]).drop_nulls()
    assert set(columns.rows()) <= set(table.select("person", "ticket").rows())
    assert len(columns) >= len(before)


def test_settings_of_image_files_fit_the_written_ones(fashion: Place) -> None:
    for path in (fashion.workspace.root / "images").rglob("*.png"):
        pixels = np.asarray(Image.open(path)).astype(np.uint16)
        Image.fromarray(np.kron(pixels, np.ones((3, 3), np.uint16))).save(path.with_suffix(".tiff"))
        path.unlink()
    fashion.set(formats=("tiff",), depth=12, min_side=64, image_size=28)
    fashion.ingest()
    written, before = fashion.write(), fashion.packed()
    fashion.ingest(**data_settings(written))
    assert fashion.packed() == before


WAVES = """
import numpy as np

class Waves:
    def __init__(self, path):
        self.times = [int(line) for line in path.read_text().split()]

    def __len__(self):
        return len(self.times)

    def __getitem__(self, place):
        return {"value": self.times[place], "label": "even" if place % 2 == 0 else "odd"}

    @staticmethod
    def arrays(value):
        return {"wave": np.sin(np.arange(8192, dtype=np.float32) * value)}
"""


def test_own_arrays_json_is_left_to_the_class(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import json\nimport numpy as np\n\nclass Own:\n"
        "    def __init__(self, path):\n        self.rows = json.loads((path / 'arrays.json').read_text())\n"
        "    def __len__(self):\n        return len(self.rows)\n"
        "    def __getitem__(self, place):\n        return {'value': self.rows[place], 'label': 'a'}\n"
        "    @staticmethod\n    def arrays(value):\n        return {'x': np.array([value], 'float32')}\n"
    )
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "arrays.json").write_text("[1, 2, 3]")
    samples = CustomSamples(CustomClass("own:Own", tmp_path, "own.py"), "set")
    assert len(samples.open()) == 3
    (tmp_path / "set" / ".ratchet-arrays.json").write_text('{"format": 99}')
    with pytest.raises(TrainingError, match=r"\.ratchet-arrays\.json: not of a format .* Allowed: format 1\. Fix: "):
        CustomSamples(CustomClass("own:Own", tmp_path, "own.py"), "set").open()
    (tmp_path / "set" / ".ratchet-arrays.json").unlink()
    assert len(CustomSamples(CustomClass("own:Own", tmp_path, "own.py"), "set").open()) == 3


def test_packed_samples_are_written_part_by_part(tmp_path: Path) -> None:
    (tmp_path / "waves.py").write_text(WAVES)
    (tmp_path / "times.txt").write_text("\n".join(map(str, range(1, 2501))))
    data = DataSettings(kind="waves:Waves", code="waves.py", path="times.txt")
    place = Place(Workspace(tmp_path), Params(data=data), [], [])
    place.ingest()
    size = sum(path.stat().st_size for path in place.workspace.packed.rglob("*.npy"))
    spec = place.spec
    tracemalloc.start()
    try:
        written = place.write(spec_of=lambda name: spec)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.load(written.folder / "wave.npy", mmap_mode="r").shape == (2500, 8192)
    assert (size > 80e6, most < size / 2) == (True, True), f"{size:,} bytes packed, {most:,} at once"
