"""Runs and versions found again by their names, in a database and behind a server."""

import json
from typing import Any

import pytest

from ratchet.errors import RegistryError, TrackingUnavailable
from ratchet.provenance.archive import Archive
from ratchet.registry.provenance_tags import read_record, record_tags
from ratchet.registry.runs import Run
from ratchet.settings.model import Params, TrackingSettings

RECORD = {"id": "0123456789abcdef", "dvc": {"data/packed": "d.dir"}, "python": "3.11"}


def tell(place: Any, key: str, record: dict[str, Any] | None) -> str:
    """A finished run with a figure, a data set, and a record; its id."""
    run = Run(place.workspace, place.params, key)
    run.settings({"data.source": "digits"})
    run.dataset(name="digits", digest="d.dir", source="digits", profile={"classes": 2, "quarantined": 1})
    run.metrics({"test/accuracy": 0.5}, step=0)
    run.tags(record_tags(record) if record else {"ratchet.key": key})
    run.status("FINISHED")
    run_id = run.send()
    run.journal.close()
    return run_id


def make_version(place: Any, name: str, run_id: str, tags: dict[str, str]) -> str:
    if name not in [one.name for one in place.client.search_registered_models()]:
        place.client.create_registered_model(name)
    return str(place.client.create_model_version(name, f"runs:/{run_id}/model", run_id, tags=tags).version)


def test_a_version_is_found_by_each_of_its_names_with_its_run(place: Any, key: str) -> None:
    run_id, name = tell(place, key, RECORD), f"name-{key}"
    number = make_version(place, name, run_id, record_tags(RECORD))
    place.client.set_registered_model_alias(name, "champion", number)
    archive = Archive(place.workspace, place.params)
    for reference in (f"models:/{name}/{number}", f"{name}/{number}", f"{name}@champion", f"models:/{name}@champion"):
        made, release = archive.version(reference)
        assert (made.run_id, made.record, made.hash_of("data/packed")) == (run_id, RECORD, "d.dir")
        assert release.words == f"{name} version {number} (champion)"
        assert (made.metrics["test/accuracy"], made.params["data.source"]) == (0.5, "digits")
        assert made.dataset == {"name": "digits", "digest": "d.dir", "profile": {"classes": 2, "quarantined": 1}}
    assert run_id in [one.run_id for one in archive.runs()]


def test_what_is_not_there_is_said_with_what_is(place: Any, key: str) -> None:
    run_id, name = tell(place, key, RECORD), f"name-{key}"
    make_version(place, name, run_id, {})
    archive = Archive(place.workspace, place.params)
    with pytest.raises(RegistryError, match=f"MLflow has no such version; there are {name}/1"):
        archive.version(f"models:/{name}/2")
    with pytest.raises(RegistryError, match=f"{name}@nobody: MLflow has no such version"):
        archive.version(f"{name}@nobody")
    with pytest.raises(RegistryError, match=f"registered are .*{name}"):
        archive.version("another/1")
    with pytest.raises(RegistryError, match="write NAME/VERSION or NAME@ALIAS"):
        archive.version("no-version")
    assert archive.run("f" * 32) is None
    assert archive.run("no id") is None


def test_a_version_of_no_run_has_no_record(database: Any, key: str) -> None:
    database.client.create_registered_model(key)
    database.client.create_model_version(key, "/somewhere")
    with pytest.raises(RegistryError, match="has no provenance record"):
        Archive(database.workspace, database.params).version(f"{key}/1")


def test_a_record_too_long_for_a_tag_is_read_from_the_run_s_file(place: Any, key: str, tmp_path: Any) -> None:
    long = RECORD | {"git_left_out": ["x" * 100] * 80}
    assert set(record_tags(RECORD)) == {"ratchet.provenance", "ratchet.provenance_record"}
    assert record_tags(long) == {"ratchet.provenance": RECORD["id"]}
    run_id = tell(place, key, long)
    tags = place.client.get_run(run_id).data.tags
    assert read_record(place.client, run_id, tags) is None
    (tmp_path / "provenance.json").write_text(json.dumps(long))
    place.client.log_artifact(run_id, str(tmp_path / "provenance.json"), "provenance")
    assert read_record(place.client, run_id, tags) == long
    made = Archive(place.workspace, place.params).run(run_id)
    assert made is not None
    assert made.record == long


def test_a_run_without_a_record_is_found_all_the_same(place: Any, key: str) -> None:
    made = Archive(place.workspace, place.params).run(tell(place, key, None))
    assert made is not None
    assert (made.record, made.releases, made.hash_of("data/packed")) == (None, (), None)


def test_a_server_that_is_away_is_said(tmp_path: Any) -> None:
    from ratchet.workspace import Workspace

    away = Params(tracking=TrackingSettings(uri="http://127.0.0.1:9"))
    with pytest.raises(TrackingUnavailable, match="MLflow at http"):
        Archive(Workspace(tmp_path), away).runs()
