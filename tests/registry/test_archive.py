"""Runs and versions are found by their names, in a database and on a server."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ratchet.errors import RegistryError, TrackingUnavailable
from ratchet.provenance.archive import Archive
from ratchet.registry.provenance_record import Provenance, read_record, record_tags
from ratchet.registry.runs import Run
from ratchet.settings.model import Params, TrackingSettings
from ratchet.typed_json import parse, to_plain


def log_run(place: Any, key: str, record: Provenance | None) -> str:
    """Log a finished run with a metric, a data set and a record; return its id."""
    run = Run(place.workspace, place.params, key)
    run.settings({"data.source": "digits"})
    run.dataset(name="digits", digest="0.dir", source="digits", profile={"classes": 2, "quarantined": 1})
    run.metrics({"test/accuracy": 0.5}, step=0)
    run.tags(record_tags(record) if record else {"ratchet.key": key})
    run.status("FINISHED")
    run_id = run.send()
    run.journal.close()
    return run_id


def make_version(place: Any, name: str, run_id: str, tags: dict[str, str]) -> str:
    if name not in [model.name for model in place.client.search_registered_models()]:
        place.client.create_registered_model(name)
    return str(place.client.create_model_version(name, f"runs:/{run_id}/model", run_id, tags=tags).version)


def test_each_name_of_a_version_finds_it_and_its_run(place: Any, key: str, record: Provenance) -> None:
    run_id, name = log_run(place, key, record), f"name-{key}"
    number = make_version(place, name, run_id, record_tags(record))
    place.client.set_registered_model_alias(name, "champion", number)
    archive = Archive(place.workspace, place.params)
    for reference in (f"models:/{name}/{number}", f"{name}/{number}", f"{name}@champion", f"models:/{name}@champion"):
        run, version = archive.version(reference)
        assert (run.run_id, run.record, run.hash_of("data/packed")) == (run_id, record, "0" * 32 + ".dir")
        assert version.label == f"{name} version {number} (champion)"
        assert (run.metrics["test/accuracy"], run.params["data.source"]) == (0.5, "digits")
        assert run.dataset == {"name": "digits", "digest": "0.dir", "profile": {"classes": 2, "quarantined": 1}}
    assert run_id in [run.run_id for run in archive.runs()]


def test_a_run_that_does_not_exist_is_none(place: Any) -> None:
    archive = Archive(place.workspace, place.params)
    assert archive.run("f" * 32) is None
    assert archive.run("no id") is None


def test_a_version_of_no_run_has_no_record(database: Any, key: str) -> None:
    database.client.create_registered_model(key)
    database.client.create_model_version(key, "/somewhere")
    with pytest.raises(RegistryError, match="has no provenance record"):
        Archive(database.workspace, database.params).version(f"{key}/1")


def test_a_record_too_long_for_tags_is_read_from_file(place: Any, key: str, tmp_path: Any, record: Provenance) -> None:
    long = replace(record, git_left_out=("x" * 100,) * 80)
    assert set(record_tags(record)) == {"ratchet.provenance", "ratchet.provenance_record"}
    assert record_tags(long) == {"ratchet.provenance": record.id}
    run_id = log_run(place, key, long)
    tags = place.client.get_run(run_id).data.tags
    assert read_record(place.client, run_id, tags) is None
    (tmp_path / "provenance.json").write_text(json.dumps(to_plain(long)))
    place.client.log_artifact(run_id, str(tmp_path / "provenance.json"), "provenance")
    assert read_record(place.client, run_id, tags) == long
    run = Archive(place.workspace, place.params).run(run_id)
    assert run is not None
    assert run.record == long


def test_a_damaged_record_names_the_wrong_field(record: Provenance) -> None:
    """Wrong types, missing fields and unknown fields at any depth."""
    plain = to_plain(record)
    assert parse(Provenance, json.dumps(plain)) == record
    hardware = plain["hardware"]
    for message, changes in {
        "seed: Input should be a valid integer": {"seed": "0"},
        "dvc.data/packed: Input should be a valid string": {"dvc": {"data/packed": 1}},
        "hardware.gpus: Input should be a valid": {"hardware": {**hardware, "gpus": None}},
        "hardware.other: Unexpected keyword argument": {"hardware": {**hardware, "other": 1}},
    }.items():
        with pytest.raises(ValueError, match=message):
            parse(Provenance, json.dumps(plain | changes))
    del plain["settings"]
    with pytest.raises(ValueError, match="settings: Field required"):
        parse(Provenance, json.dumps(plain))


def test_a_run_without_a_record_is_found(place: Any, key: str) -> None:
    run = Archive(place.workspace, place.params).run(log_run(place, key, None))
    assert run is not None
    assert (run.record, run.versions, run.hash_of("data/packed")) == (None, (), None)


def test_an_unavailable_server_is_an_error(tmp_path: Any) -> None:
    from ratchet.workspace import Workspace

    away = Params(tracking=TrackingSettings(uri="http://127.0.0.1:9"))
    with pytest.raises(TrackingUnavailable, match="MLflow at http"):
        Archive(Workspace(tmp_path), away).runs()
