"""A data set of the packed samples and of labelled requests, which ingest takes as a source.

The packed samples keep their splits. A new request gets one by its digest, or by its hour if the data are in order of
time, and keeps it. The set keeps the requests that it has, also when the log has deleted them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.data.split import SPLITS, position
from ratchet.errors import DataError, NoRequests
from ratchet.kinds import Input, to_json
from ratchet.kinds.ingest import sample_files
from ratchet.kinds.registry import kind_of
from ratchet.kinds.spec_json import input_from_json
from ratchet.monitoring.labelled_rows import LabelledRows, SpecOf, arrays_of, input_obstacle, labelled_rows, no_rows
from ratchet.monitoring.to_label import chosen_by_entropy
from ratchet.problems import target_from_json
from ratchet.problems.named_answers import named_answers
from ratchet.registry.names import registered_name
from ratchet.settings.model import DataSettings, Params
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.schema import INPUT
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    import polars

    from ratchet.training import Split

__all__ = ["LabelledSet", "drawn_split", "training_hours", "write_labelled_set"]

_AT_ONCE = 8 << 20  # bytes of packed samples that are in memory


@dataclass(frozen=True)
class LabelledSet:
    """A data set that was written.

    Attributes:
        folder: with the samples, rows.parquet, left-out.parquet and dataset.json.
        digest: of all that decides it.
        requests: number of samples from requests, by split.
        added: how many of them the set did not have before.
        left_out: number of labels that gave no sample, by reason.
        settings: with which ingest reads it.
    """

    folder: Path
    digest: str
    requests: dict[str, int]
    added: int
    left_out: dict[str, int]
    settings: dict[str, Any]


def write_labelled_set(workspace: Workspace, params: Params, spec_of: SpecOf, folder: Path) -> LabelledSet:
    """Write the packed samples of a workspace, with the labelled requests of its project, into a folder.

    The same samples, log and labels give the same bytes.

    Raises:
        DataError: the data are not packed.
        NoRequests: their problem takes no labels, or their kind cannot be written.
    """
    manifest = Manifest.read(workspace.packed)
    writer = sample_files(manifest.input.kind)
    if not named_answers(manifest.target).takes_labels:
        raise NoRequests(
            f"the problem of the data is {manifest.target.problem}. Allowed for data from requests: classification and "
            "regression, because the server takes no other labels"
        )
    base = _Base.read(workspace.packed, manifest)
    base_digests = [digest for part in base.parts() for digest in writer.digests(part)]
    logged = labelled_rows(log_folder(workspace.project), spec_of, manifest.input, manifest.target)
    earlier = _earlier(folder, manifest, base.labels.shape[1])
    unfair = _unfair_rows(workspace, params.data)
    is_out = np.isin(base_digests, unfair["digest"].to_list()) & (np.array(base.splits) != "train")
    base, base_digests = base.without(is_out), np.array(base_digests)[~is_out].tolist()
    joined = _joined(logged, earlier, unfair.select(earlier.left_out.columns))
    kind, count = kind_of(manifest.input), len(base.splits)
    digests = base_digests + writer.digests(kind.values(joined.arrays, manifest.input))
    reasons = _reasons(np.concatenate([base.labels, joined.labels]), digests, count)
    by_hour = _by_hour(workspace, params.data, folder)
    joined, reasons = _split(workspace, params.data, joined, digests[count:], reasons, by_hour)
    kept = np.flatnonzero([not reason for reason in reasons])
    kept = kept[joined.rows[kept].with_row_index("place").sort("time", "answer", "row")["place"].to_numpy()]
    rows, left_out = _stored(joined, kept, digests[count:]), _left_out(joined, reasons)
    labels, splits = np.concatenate([base.labels, joined.labels[kept]]), [*base.splits, *rows["split"]]
    columns, changes = _columns(manifest, base.extra, labels, splits, params.data)
    new = kind.values(tuple(each[kept] for each in joined.arrays), manifest.input)
    with files.draft_directory(folder) as draft:
        parts = chain(base.parts(), [new] if len(kept) else [])
        file, own = writer.write(draft, parts, manifest.input, columns, params.data.model_copy(update=changes))
        digest = _write_records(draft, manifest, rows, left_out, by_hour=by_hour)
    added = rows.join(earlier.rows, on=("answer", "row"), how="anti").height
    settings = {f"data.{name}": value for name, value in (changes | own | {"path": str(folder / file)}).items()}
    settings["registry.model"] = registered_name(params, workspace)  # auto would be the name of the new file
    return LabelledSet(folder, digest, _counts(rows["split"]), added, _counts(left_out["reason"]), settings)


def _columns(
    manifest: Manifest, extra: "polars.DataFrame", labels: NDArray[np.float64], splits: list[str],
    settings: DataSettings,
) -> tuple["polars.DataFrame", dict[str, Any]]:  # fmt: skip
    """Return the columns of the set that are no features, and the settings of the section data that name them.

    Requests have no group, and nothing in the other columns of the index, `extra`.
    """
    import polars as pl

    features = {column.name for column in getattr(manifest.input, "columns", ())}
    named = named_answers(manifest.target).label_columns(labels, settings.label_columns)
    listed = pl.DataFrame({name: values.tolist() for name, values in named.items()})
    extra = extra.rename(lambda name: settings.group_column if name == "group" else name.removesuffix(" (column)"))
    others = [name for name in extra.columns if name not in features]
    split = settings.split_column
    while split in {*features, *listed.columns, *others}:
        split += "_"
    padded = pl.concat([extra.select(others), extra.select(others).clear(len(labels) - len(extra))])
    columns = listed.with_columns(*padded, pl.Series(split, splits))
    changes: dict[str, Any] = {"problem": manifest.target.problem, "order_by": "none", "gap": 0.0, "folds": 0}
    changes |= {"split_column": split, "drop": [], "hash": []}
    changes["classes"] = list(manifest.target.classes) or "auto"
    if settings.group_column not in others:
        changes["group_column"] = type(settings).model_fields["group_column"].default
    return columns, changes


def _by_hour(workspace: Workspace, settings: DataSettings, folder: Path) -> bool:
    """Return whether new requests of one hour share a split: of data in order of time, also after such a set of them.

    Such a set, written before into `folder` or packed now, has no order any more, but says so in dataset.json.
    """
    source = workspace.root / settings.path
    records = [place / "dataset.json" for place in (folder, source, source.parent)]
    stored = [files.read_json(record).get("by_hour") for record in records if record.is_file()]
    return settings.order_by != "none" or any(stored)


def training_hours(workspace: Workspace, settings: DataSettings, folder: Path) -> Callable[[int], bool]:
    """Return whether new requests of an hour, counted since 1970, can be training rows of a set."""
    by_hour = _by_hour(workspace, settings, folder)
    return lambda hour: not by_hour or drawn_split(f"hour {hour}", settings) == "train"


def _unfair_rows(workspace: Workspace, settings: DataSettings) -> "polars.DataFrame":
    """Return digest and reason of packed requests that are in test or validation, but were chosen for their entropy.

    A set from before can have them.
    """
    import polars as pl

    source = workspace.root / settings.path
    sets = [place / "rows.parquet" for place in (source, source.parent) if (place / "dataset.json").is_file()]
    keys = {"answer": pl.String, "row": pl.Int32, "split": pl.String, "digest": pl.String}
    rows = pl.concat([pl.DataFrame(schema=keys), *(pl.read_parquet(path, columns=[*keys]) for path in sets)])
    rows = rows.join(chosen_by_entropy(log_folder(workspace.project)), on=("answer", "row"), how="semi")
    reason = pl.format("it was chosen for its entropy, and the data have it in the {} split", "split")
    return rows.filter(pl.col("split") != "train").with_columns(reason=reason)


def _write_records(
    draft: Path, manifest: Manifest, rows: "polars.DataFrame", left_out: "polars.DataFrame", *, by_hour: bool
) -> str:
    """Write where the samples came from, and return the digest of all that decides the set."""
    rows.write_parquet(draft / "rows.parquet")
    left_out.write_parquet(draft / "left-out.parquet")
    content = {
        "data": {"digest": manifest.digest, "source": manifest.source},
        "requests": _counts(rows["split"]),
        "by_hour": by_hour,
        "versions": _counts(rows["version"]),
        "left_out": _counts(left_out["reason"]),
        "input": to_json(manifest.input),
        "target": to_json(manifest.target),
        "files": {path.relative_to(draft).as_posix(): files.digest_file(path) for path in sorted(draft.rglob("*.*"))},
    }
    digest = files.digest_json(content)
    files.write_json(draft / "dataset.json", content | {"digest": digest})
    return digest


def _counts(values: "polars.Series") -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


@dataclass(frozen=True)
class _Base:
    """The packed samples.

    Attributes:
        input_spec: of the set.
        packed: the splits.
        places: rows of each split.
        labels: as `NamedAnswers.label` returns them.
        splits: of each.
        extra: columns of the index that come from the source.
    """

    input_spec: Input
    packed: "list[Split]"
    places: list[NDArray[np.int64]]
    labels: NDArray[np.float64]
    splits: list[str]
    extra: "polars.DataFrame"

    def parts(self) -> Iterator[Any]:
        """Yield the samples as raw values, a few MiB of them at a time."""
        kind = kind_of(self.input_spec)
        for split, places in zip(self.packed, self.places, strict=True):
            size = sum(array.nbytes for array in split.arrays)
            step = max(1, _AT_ONCE * len(split) // max(1, size))
            for begin in range(0, len(places), step):
                yield kind.samples(split, places[begin : begin + step], self.input_spec)

    def without(self, is_out: NDArray[np.bool_]) -> "_Base":
        """Return the other samples."""
        parts = np.split(~is_out, np.cumsum([len(each) for each in self.places])[:-1])
        places = [rows[is_in] for rows, is_in in zip(self.places, parts, strict=True)]
        splits = np.array(self.splits)[~is_out].tolist()
        extra = self.extra.filter(~is_out) if self.extra.width else self.extra  # without columns it has no rows either
        return replace(self, places=places, labels=self.labels[~is_out], splits=splits, extra=extra)

    @classmethod
    def read(cls, packed: Path, manifest: Manifest) -> "_Base":
        import polars as pl

        from ratchet.data.pack import extra_columns
        from ratchet.training import open_split

        splits = {name: open_split(packed, name) for name in SPLITS}
        labels = [np.asarray(split.targets, np.float64).reshape(len(split), -1) for split in splits.values()]
        names: list[str] = [name for name, split in splits.items() for _ in range(len(split))]
        index = pl.read_parquet(packed / "index.parquet")
        index = index.sort(pl.col("split").cast(pl.String).cast(pl.Enum(SPLITS)), "row")
        extra = index.select([name for name in extra_columns(index) if name != "packed"])
        places = [np.arange(len(split)) for split in splits.values()]
        return cls(manifest.input, [*splits.values()], places, np.concatenate(labels), names, extra)


def _earlier(folder: Path, manifest: Manifest, width: int) -> LabelledRows:
    """Return the requests that the set has. A row that the data set of now cannot have is left out, with the reason."""
    import polars as pl

    kind, want = kind_of(manifest.input), manifest.input
    if not (folder / "dataset.json").exists():
        return no_rows(want, width)
    try:
        content = files.read_json(folder / "dataset.json")
        rows = pl.read_parquet(folder / "rows.parquet")
        have, names = input_from_json(content["input"]), named_answers(target_from_json(content["target"]))
        zeros = no_rows(have, width).arrays
        arrays = arrays_of(rows, [f"{INPUT}{place}" for place in range(len(zeros))], zeros)
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{folder}: damaged ({error}). Fix: delete the folder, and run the command again") from error
    obstacle = input_obstacle(have, want)
    labels, reasons = np.zeros((len(rows), width)), [obstacle and f"its input is another: {obstacle}"] * len(rows)
    for place, label in enumerate(rows["label"].to_list()):
        try:
            labels[place] = named_answers(manifest.target).label(names.true_value(label))
        except ValueError as error:
            reasons[place] = f"its label is not possible any more; allowed: {error}"
    arrays = arrays if obstacle or kind.is_equal(have, want) else kind.adapt(arrays, have, want)
    good = np.flatnonzero([not reason for reason in reasons])
    keys = rows.with_columns(reason=pl.Series(reasons, dtype=pl.String))
    left_out = keys.filter(pl.col("reason") != "").select("answer", "row", "reason")
    return LabelledRows(
        no_rows(want, width).arrays if obstacle else tuple(each[good] for each in arrays),
        labels[good],
        rows[good].select(no_rows(want, width).rows.columns),
        left_out,
    )


def _joined(logged: LabelledRows, earlier: LabelledRows, unfair: "polars.DataFrame") -> LabelledRows:
    """Return the rows of both: those with a split first, then in the order of time. `unfair`: left out of the data.

    The label that the log has now replaces an earlier one. The split stays.
    """
    import polars as pl

    rows = pl.concat([logged.rows, earlier.rows]).with_row_index("place")
    rows = rows.with_columns(pl.col("split").max().over("answer", "row"))
    rows = rows.unique(("answer", "row"), keep="first", maintain_order=True)
    rows = rows.sort(pl.col("split").is_null(), "time", "answer", "row")
    places = rows["place"].to_numpy()
    arrays = tuple(np.concatenate(parts)[places] for parts in zip(logged.arrays, earlier.arrays, strict=True))
    labels = np.concatenate([logged.labels, earlier.labels])[places]
    left_out = pl.concat([unfair, logged.left_out, earlier.left_out]).join(rows, on=("answer", "row"), how="anti")
    return LabelledRows(arrays, labels, rows.drop("place"), left_out.unique(("answer", "row"), keep="first"))


def _reasons(labels: NDArray[np.float64], digests: list[str], packed: int) -> list[str]:
    """Return why each row after the packed ones is no new sample; empty: it is one.

    An input is in the set once, with one label.
    """
    known: tuple[dict[str, set[tuple[float, ...]]], ...] = ({}, {})  # of packed samples and of requests
    for place, (digest, label) in enumerate(zip(digests, map(tuple, labels.tolist()), strict=True)):
        known[place >= packed].setdefault(digest, set()).add(label)
    (data, logged), reasons = known, []
    seen = set(data)
    for digest in digests[packed:]:
        reason = "its input is in the set already" if digest in seen else ""
        if digest in data and logged[digest] - data[digest]:
            reason = "its label contradicts a sample of the data with the same input"
        elif digest not in data and len(logged[digest]) > 1:
            reason = "the same input has another label in another request"
        seen.add(digest)
        reasons.append(reason)
    return reasons


def _left_out(joined: LabelledRows, reasons: list[str]) -> "polars.DataFrame":
    import polars as pl

    rows = joined.rows.select("answer", "row", pl.Series("reason", reasons, dtype=pl.String))
    return pl.concat([joined.left_out, rows.filter(pl.col("reason") != "")]).sort("answer", "row")


def _split(
    workspace: Workspace, settings: DataSettings, rows: LabelledRows, digests: list[str], reasons: list[str],
    by_hour: bool,
) -> tuple[LabelledRows, list[str]]:  # fmt: skip
    """Return the rows with their splits, and why each is left out; empty: it is not.

    Rows that were chosen for their entropy would bias test and validation: they are training rows, unless their hour is
    in another split. That is also so if a set from before has them in another split.
    """
    import polars as pl

    unfair = chosen_by_entropy(log_folder(workspace.project)).with_columns(is_unfair=True)
    keys = rows.rows.join(unfair, on=("answer", "row"), how="left", maintain_order="left")
    hours = [f"hour {hour}" for hour in keys["time"].dt.epoch("s") // 3600]
    splits, reasons = [], [*reasons]
    for place, unit in enumerate(hours if by_hour else digests):
        split, is_unfair = keys["split"][place], keys["is_unfair"][place]
        own = split or drawn_split(unit, settings)
        if is_unfair and by_hour and own != "train":
            reasons[place] = reasons[place] or f"it was chosen for its entropy, and its hour is in the {own} split"
        splits.append("train" if is_unfair else own)
    named = rows.rows.with_columns(pl.Series("split", splits, dtype=pl.String))
    return replace(rows, rows=named), reasons


def drawn_split(unit: str, settings: DataSettings) -> str:
    """Return the split of a new request. New test rows are rows that no model has seen."""
    place = position(f"labelled {unit}")
    if place < settings.test_fraction:
        return "test"
    return "validation" if place < settings.test_fraction + settings.validation_fraction else "train"


def _stored(joined: LabelledRows, kept: NDArray[np.int64], digests: list[str]) -> "polars.DataFrame":
    """Return the table rows.parquet: where each request came from, its split, its label and its arrays."""
    import polars as pl
    import pyarrow as pa

    rows = joined.rows[kept].with_columns(
        pl.Series("label", joined.labels[kept].tolist(), dtype=pl.List(pl.Float64)),
        pl.Series("digest", [digests[place] for place in kept], dtype=pl.String),
    )
    for place, each in enumerate(joined.arrays):
        starts = np.arange(len(kept) + 1) * math.prod(each.shape[1:])
        lists: Any = each[kept].tolist()  # texts
        if each.dtype != object:
            lists = pa.LargeListArray.from_arrays(starts, each[kept].ravel())  # a Python number takes 30 bytes
        rows = rows.with_columns(pl.Series(f"{INPUT}{place}", lists))
    return rows
