"""An address with a secret in it is recognised, and shown without the secret."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet import files, settings, urls
from ratchet.errors import SettingsError
from ratchet.settings import override, parse_assignments

SECRET = "s5cret"  # in each of these
HOLDING = {
    "postgresql://me:s5cret@db/x": "postgresql://me:***@db/x",
    "POSTGRESQL+psycopg2://me:s5cret@db/x": "POSTGRESQL+psycopg2://me:***@db/x",
    "postgresql://:s5cret@db/x": "postgresql://:***@db/x",
    "postgresql://me:p@s5cret@db/x": "postgresql://me:***@db/x",
    "postgresql://me:12345s5cret@db/x": "postgresql://me:***@db/x",
    "postgresql://me:12/s5cret@db/x": "postgresql://me:***@db/x",
    "postgresql://me:p?s5cret@db/x": "postgresql://me:***@db/x",
    "postgresql://me:#s5cret@db/x": "postgresql://me:***@db/x",
    "ssh://[me:s5cret@host": "ssh://[me:***@host",
    "ssh://me:12345@s5cret@host": "ssh://me:***@host",
    "s3://me:s5cret@b,s3://me:s5cret@c": "s3://me:***@b,s3://me:***@c",
    "postgresql://db/x?user=me&password=s5cret": "postgresql://db/x?user=me&password=***",
    "postgresql://db/x?sslpassword=s5cret": "postgresql://db/x?sslpassword=***",
    "ssh://me:s5cret@host/data": "ssh://me:***@host/data",
    "s3://AKIA:abc/s5cret+/x@bucket/data": "s3://AKIA:***@bucket/data",
    "s3://bucket/x?X-Amz-Expires=9&X-Amz-Signature=s5cret": "s3://bucket/x?X-Amz-Expires=9&X-Amz-Signature=***",
    "https://bucket.example/x?X-Amz-Security-Token=s5cret": "https://bucket.example/x?X-Amz-Security-Token=***",
    "https://a.blob.example/x?sv=2022&sig=s5cret&se=1": "https://a.blob.example/x?sv=2022&sig=***&se=1",
    "https://s5cret@example.org/x": "https://***@example.org/x",
    "s3://s5cret@bucket/x": "s3://***@bucket/x",
    "git+https://s5cret@example.org/x": "git+https://***@example.org/x",
    "https://me:s5cret@example.org/x": "https://me:***@example.org/x",
    "https://example.org/x#access_token=s5cret": "https://example.org/x#access_token=***",
    "https://example.org/x?api%5Fkey=s5cret": "https://example.org/x?api%5Fkey=***",
    "simplecache::s3://me:s5cret@bucket/x": "simplecache::s3://me:***@bucket/x",
    "see http://a:s5cret@b/ and http://c:s5cret@d/": "see http://a:***@b/ and http://c:***@d/",
}
HARMLESS = [
    "data/raw", "sqlite:///mlruns/mlflow.db", "sqlite:////srv/a:b@c/x.db", "ssh://me@host/data", "ssh://me@host:2222/data",
    "postgresql://me@db:5432/x", "s3://bucket/a@b", "http://host:9000/a@b", "http://127.0.0.1:4200/api", "me@host:path",
    "https://example.org/x?page=2&keyword=cats", "abfs://container@account.dfs.example/x", "postgresql://db/x?sslmode=require",
    "http://[::1]:5000", "http://[::1]:5000/a@b", "http://[fe80::1%eth0]/a:b@c", "a: b@c", "",
]  # fmt: skip
KEYS = [
    "data.path", "tracking.uri", "tracking.artifacts", "registry.ledger", "platform.prefect_database",
    "platform.prefect_api", "platform.public_url", "platform.mlflow_public_url", "alerts.webhook", "data.manifest",
    "registry.purpose",
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), HOLDING.items())
def test_a_secret_in_an_address_is_found_and_hidden(text: str, shown: str) -> None:
    assert urls.secret_in(text)
    assert urls.redacted(text) == shown


@pytest.mark.parametrize("text", HARMLESS)
def test_an_address_without_a_secret_stays(text: str) -> None:
    assert urls.secret_in(text) is None
    assert urls.redacted(text) == text


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(settings.template())
    return path


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [f"postgresql://me:{SECRET}@db/x", f"https://me:{SECRET}@db/x",
                                   f"s3://bucket/x?X-Amz-Signature={SECRET}"])  # fmt: skip
def test_every_setting_refuses_a_secret_and_does_not_show_it(file: Path, key: str, value: str) -> None:
    before = file.read_bytes()
    with pytest.raises(SettingsError, match=rf"params\.yaml: {key.replace('.', '[.]')}: found ") as refusal:
        override(file, {key: value})
    assert SECRET not in str(refusal.value)
    assert file.read_bytes() == before
    group, name = key.split(".")
    document = files.read_yaml(file)
    document.setdefault(group, {})[name] = value
    file.write_text(json.dumps(document))  # by hand
    with pytest.raises(SettingsError, match=rf"{group}\.{name}") as refusal:
        settings.load(file)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("data.path", "s3://AKIA:s5cret@bucket/x", "AWS_SECRET_ACCESS_KEY"),
        ("data.path", "ssh://me:s5cret@host/x", "~/.ssh/config"),
        ("tracking.uri", "https://me:s5cret@mlflow.example", "MLFLOW_TRACKING_PASSWORD"),
        ("tracking.uri", "postgresql://me:s5cret@db/x", "PGPASSWORD"),
        ("registry.ledger", "postgresql://db/x?password=s5cret", "~/.pgpass"),
        ("platform.prefect_api", "https://me:s5cret@prefect.example/api", "PREFECT_API_AUTH_STRING"),
        ("alerts.webhook", "https://chat.example/in?token=s5cret", "RATCHET_ALERTS_WEBHOOK"),
    ],
)
def test_the_message_names_the_place_for_the_secret(file: Path, key: str, value: str, instead: str) -> None:
    with pytest.raises(SettingsError, match=r"Fix: ") as refusal:
        override(file, {key: value})
    assert instead in str(refusal.value)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("key", ["ssh://me@host/data", "s3://bucket/data", "abfs://container@account.dfs.example/x"])
def test_a_user_without_password_is_accepted(file: Path, key: str) -> None:
    assert override(file, {"data.path": key}).data.path == key


@pytest.mark.parametrize(
    "assignment",
    [
        "postgresql://me:s5cret@db/x", "data.pth=s3://me:s5cret@b/x", "training.epochs=s3://me:s5cret@b/x",
        "data=s3://me:s5cret@b/x", "data.formats=[s3://me:s5cret@b/x]", "data.path=[s3://me:s5cret@b",
        "x=s3://me:s5cret@b: c",
    ],
)  # fmt: skip
def test_no_other_message_shows_the_secret(file: Path, assignment: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        override(file, parse_assignments([assignment]))
    assert SECRET not in str(refusal.value)


@pytest.mark.system
def test_the_command_line_refuses_before_anything_is_written(project: Any) -> None:
    before = (project.root / "params.yaml").read_bytes()
    for command in (("set",), ("train", "--set")):
        refusal = project.refused("ratchet", *command, f"data.path=s3://me:{SECRET}@bucket/x")
        assert "data.path: found s3://me:***@bucket/x" in refusal
        assert SECRET not in refusal
    assert (project.root / "params.yaml").read_bytes() == before
