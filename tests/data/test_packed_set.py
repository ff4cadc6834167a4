"""One form of packed sets, whatever the kind of data."""

import re
from typing import Any

import numpy as np
import pytest

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError

PARTS = {"rows", "classes", "copies_within_splits", "label_conflicts", "telling", "contract", "quarantined_by_rule"}
ROWS = "text,size,label\n" + "".join(f"a film {number},{number / 7},{'xy'[number % 2]}\n" for number in range(200))


@pytest.mark.parametrize("kind", ["image", "table", "text", "tokens"])
def test_every_kind_writes_the_same_files(kind: str, two_classes, table) -> None:
    """Targets and keys have a row for each sample; a token stream, whose target is itself, has none."""
    table.write(ROWS)
    table.write(ROWS, "lines.txt")
    if kind == "image":
        two_classes.ingest()
    else:
        table.ingest("lines.txt" if kind == "tokens" else "rows.csv", kind=kind)
    packed = two_classes.packed if kind == "image" else table.packed
    manifest, profile = Manifest.read(packed), files.read_json(packed / "profile.json")
    assert set(profile) >= PARTS
    assert (next(iter(profile)), list(profile)[-1]) == ("rows", "quarantined_by_rule")
    assert profile["rows"] == {name: split.rows for name, split in manifest.splits.items()}
    for split in manifest.splits.values():
        targets, keys = (np.load(packed / file.file) for file in (split.targets, split.keys))
        assert len(targets) == len(keys) == (0 if kind == "tokens" else split.rows)
        assert all((packed / shard.file).is_file() for shards in split.arrays.values() for shard in shards)


@pytest.mark.parametrize("target", [None, [], {"problem": "classification", "names": "ab"}, {"problem": "ranking"}])
def test_a_damaged_target_is_a_damaged_manifest(table, target: Any) -> None:
    table.write(ROWS)
    table.ingest("rows.csv", kind="table")
    path = table.packed / "manifest.json"
    files.write_json(path, files.read_json(path) | {"target": target})
    with pytest.raises(DataError, match=r"manifest\.json: damaged .* Fix: ingest the data again"):
        Manifest.read(table.packed)


@pytest.mark.parametrize("kind", ["table", "text", "tokens"])
def test_a_damaged_packed_file_is_named(table, kind: str) -> None:
    table.write(ROWS)
    table.write(ROWS, "lines.txt")
    table.ingest("lines.txt" if kind == "tokens" else "rows.csv", kind=kind)
    manifest = Manifest.read(table.packed)
    manifest.check_files(table.packed, "train", "validation")
    path = table.packed / next(iter(manifest.splits["validation"].arrays.values()))[0].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(f"{path}: has other bytes than were packed. Fix: ")):
        manifest.check_files(table.packed, "train", "validation")
    path.unlink()
    with pytest.raises(DataError, match=re.escape(f"{table.packed}: a packed file cannot be read")):
        manifest.check_files(table.packed, "train", "validation")
