"""Weights by address: from a hub on this machine, from its cache, and what goes wrong on the way."""

import hashlib
import json
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hub_server
import pytest
import torch
from hub_server import Hub
from safetensors.torch import save
from weights_project import Project

from ratchet.errors import TrainingError
from ratchet.weights_sources import WeightsSource, address_fault, file_of, find, keep

NAME = "hf://timm/tiny.a1_in1k"
CONFIG = {
    "architecture": "tiny",
    "pretrained_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.5], "input_size": [3, 160, 160]},
}
CONTENT = save({"weight": torch.arange(6.0)})


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server.running() as hub:
        yield hub


@pytest.fixture
def project(tmp_path: Path, hub: Hub) -> Project:
    project = Project(tmp_path)
    project.environment["HF_ENDPOINT"] = hub.address
    return project


def added(hub: Hub, content: bytes = CONTENT) -> str:
    return hub.add("timm/tiny.a1_in1k", {"model.safetensors": content, "config.json": json.dumps(CONFIG).encode()})


def file_name(content: bytes = CONTENT) -> str:
    return f"tiny.a1_in1k-{hashlib.sha256(content).hexdigest()[:8]}.safetensors"


def cached(project: Project, commit: str) -> Path:
    """Put the weights, and nothing else, into the cache as the hub's library does. Return the blob."""
    folder = project.cache / "huggingface" / "hub" / "models--timm--tiny.a1_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "blobs").mkdir()
    (folder / "snapshots" / commit).mkdir(parents=True)
    blob = folder / "blobs" / hashlib.sha256(CONTENT).hexdigest()
    blob.write_bytes(CONTENT)
    (folder / "snapshots" / commit / "model.safetensors").symlink_to(blob)
    return blob


def source(project: Project, name: str = NAME) -> WeightsSource:
    source = find(project.workspace.pretrained, name)
    assert source
    return source


def test_weights_of_the_hub_are_checked_and_recorded(project: Project, hub: Hub) -> None:
    commit = added(hub)
    output = project.run("weights", NAME)
    assert f"next: ratchet set model.name=timm/tiny model.pretrained={NAME}" in output
    assert "normalization by mean 0.5 0.4 0.3, std 0.2 0.25 0.5, of the weights" in output
    assert project.files == ["sources.json", file_name()]
    assert (project.workspace.pretrained / file_name()).read_bytes() == CONTENT
    assert source(project) == WeightsSource(
        file=file_name(),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        source="hf://timm/tiny.a1_in1k/model.safetensors",
        commit=commit,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.5),
        image_size=160,
        architecture="tiny",
    )
    assert source(project, file_name()) == source(project)
    loads = len([path for path in hub.requests if path.startswith("cdn/")])
    project.run("weights", f"{NAME}@{commit}/model.safetensors")
    assert len([path for path in hub.requests if path.startswith("cdn/")]) == loads == 1


def test_recorded_weights_are_fetched_by_their_commit(project: Project, hub: Hub) -> None:
    added(hub)
    project.run("set", f"model.pretrained={NAME}")
    project.run("weights", NAME)
    (project.workspace.pretrained / file_name()).unlink()
    added(hub, save({"weight": torch.ones(2)}))
    project.run("preflight", code=1)  # there are no data
    assert file_of(project.workspace.pretrained, NAME) == file_name()


def test_revision_that_moved_is_named_and_fetched(project: Project, hub: Hub) -> None:
    old, new = added(hub), save({"weight": torch.ones(2)})
    project.run("weights", NAME)
    moved = added(hub, new)
    assert f"main moved from {old} to {moved}" in project.run("weights", NAME)
    assert source(project).file == file_name(new)
    assert (source(project, file_name()).commit, source(project, file_name()).mean) == (old, (0.5, 0.4, 0.3))
    project.run("weights", f"{NAME}@{old}")
    assert source(project, f"{NAME}@{old}").file == file_name()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"weight": 1}), "is not in the format safetensors (Error while deserializing header"),
        (CONTENT[:-4], "is not in the format safetensors (Error while deserializing header"),
        ((1 << 60).to_bytes(8, "little") + CONTENT[8:], "is not in the format safetensors (Error while"),
        (CONTENT.replace(b"[6]", b"[9]"), "is not in the format safetensors (Error while deserializing header"),
        (save({}), "has no tensors"),
    ],
    ids=["pickle", "short", "header size", "tensor size", "empty"],
)
def test_content_that_is_no_safetensors_is_not_kept(project: Project, hub: Hub, content: bytes, message: str) -> None:
    added(hub, content)
    assert message in project.run("weights", NAME, code=1)
    assert project.files == []


def test_damaged_or_short_content_is_not_kept(project: Project, hub: Hub) -> None:
    added(hub)
    hub.damage = True
    message = project.run("weights", NAME, code=1)
    assert f"and {hashlib.sha256(CONTENT).hexdigest()}. It was not kept. Fix: try again" in message
    hub.damage, hub.sent = False, 10
    assert f"it ended after 10 of {len(CONTENT)} bytes" in project.run("weights", NAME, code=1)
    assert project.files == []


def test_unavailable_configuration_keeps_nothing(project: Project, hub: Hub) -> None:
    added(hub)
    hub.unavailable = "config.json"
    assert "cannot be read: 503 Service Unavailable. Nothing was kept. Fix:" in project.run("weights", NAME, code=1)
    assert project.files == []


@pytest.mark.parametrize("is_gone", [False, True], ids=["offline", "deleted repository"])
def test_recorded_weights_of_a_partial_cache_keep_normalization(project: Project, hub: Hub, is_gone: bool) -> None:
    commit = added(hub)
    project.run("weights", NAME)
    project.run("set", f"model.pretrained={NAME}")
    before = source(project)
    (project.workspace.pretrained / before.file).unlink()
    blob = cached(project, commit)
    if is_gone:
        hub.repositories.clear()
    else:
        project.environment["HF_HUB_OFFLINE"] = "1"
    project.run("preflight", code=1)  # there are no data
    assert source(project) == before
    assert (project.workspace.pretrained / before.file).read_bytes() == blob.read_bytes()


def test_weights_under_a_name_of_the_cache_keep_it(project: Project, hub: Hub) -> None:
    commit = added(hub)
    exact, own = f"{NAME}@{commit}/model.safetensors", "tiny.a1_in1k.safetensors"
    project.run("weights", exact)
    folder = project.workspace.pretrained
    (folder / file_name()).rename(folder / own)
    keep(folder, exact, replace(source(project, exact), file=own))
    (folder / own).unlink()
    project.run("weights", exact)
    assert file_of(folder, own) == own
    assert source(project, own).mean == (0.5, 0.4, 0.3)


def test_token_reaches_the_hub_and_no_other_host(project: Project, hub: Hub) -> None:
    hub.add("timm/tiny.a1_in1k", {"model.safetensors": CONTENT}, gated=True)
    message = project.run("weights", NAME, code=1)
    assert "timm/tiny.a1_in1k is gated (401 Unauthorized)" in message
    assert "export HF_TOKEN=TOKEN" in message
    project.environment["HF_TOKEN"] = "right"
    hub.tokens.clear()
    output = project.run("weights", NAME)
    assert set(hub.tokens) == {("127.0.0.1", "Bearer right"), ("localhost", "")}
    assert "normalization by mean and std of the training data" in output


def test_token_with_a_line_break_is_not_printed(project: Project, hub: Hub) -> None:
    added(hub)
    project.environment["HF_TOKEN"] = "secret\nrest"
    message = project.run("weights", NAME, code=1)
    assert "HF_TOKEN: has characters that no token has" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf://timm/gone", "the hub shows no repository timm/gone (401 Unauthorized)"),
        (f"{NAME}@v9", "timm/tiny.a1_in1k has no revision v9"),
        (f"{NAME}/other.safetensors", "has no file other.safetensors. Existing: model.safetensors"),
        ("hf://old/pickled", "has no .safetensors file; it has pytorch_model.bin, pickles, which can run code"),
        ("hf://old/shards", "has several .safetensors files. Existing: a-1.safetensors, a-2.safetensors"),
        (f"{NAME}/pytorch_model.bin", "a pickle, which can run code. Allowed: a .safetensors file"),
        ("hf://timm", "Allowed: hf://ORG/NAME[@REVISION][/FILE.safetensors]"),
        (f"{NAME}/../../x.safetensors", "Allowed: hf://ORG/NAME"),
        ("ftp://x/y.safetensors", "Allowed: hf://ORG/NAME"),
        ("torchvision://resnet19", "found resnet19; allowed: a classifier of torchvision.models"),
        ("torchvision://resnet18/V7", "resnet18 has no weights V7. Allowed: IMAGENET1K_V1, DEFAULT"),
    ],
)
def test_address_without_weights_is_refused(project: Project, hub: Hub, name: str, message: str) -> None:
    added(hub)
    hub.add("old/pickled", {"pytorch_model.bin": b"x"})
    hub.add("old/shards", {"a-1.safetensors": CONTENT, "a-2.safetensors": CONTENT})
    assert message in project.run("weights", name, code=1)
    assert project.files == []


def test_run_with_a_pickle_is_refused_before_ingest(project: Project) -> None:
    pickled = f"{NAME}/pytorch_model.bin"
    assert "warning: model.pretrained: found hf://" in project.run("set", f"model.pretrained={pickled}")
    assert "a pickle, which can run code" in project.run("train", code=1)
    assert project.files == []


def test_offline_run_takes_weights_of_the_cache(project: Project, hub: Hub) -> None:
    commit = "1" * 40
    project.environment["HF_HUB_OFFLINE"] = "1"
    message = project.run("weights", NAME, code=1)
    assert f"{NAME} is not on this machine, and HF_HUB_OFFLINE is set. Looked at: data/pretrained, " in message
    assert f"`ratchet weights {NAME}` in this project, and copy data/pretrained here" in message
    blob = cached(project, commit)
    folder = blob.parents[1]
    (folder / "snapshots" / commit / "config.json").write_text(json.dumps(CONFIG))
    project.run("weights", NAME)
    assert (source(project).commit, source(project).image_size, hub.requests) == (commit, 160, [])
    blob.write_bytes(CONTENT[:-1] + b"x")
    shutil.rmtree(project.workspace.pretrained)
    assert f"It was not kept. Fix: delete {folder / 'snapshots' / commit}" in project.run("weights", NAME, code=1)


def test_unreachable_hub_names_caches_and_command(project: Project) -> None:
    project.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
    message = project.run("weights", NAME, code=1)
    assert "http://127.0.0.1:1 cannot be read: [Errno" in message
    assert f"{project.cache}/huggingface/hub. Fix: on a machine with a network run `ratchet weights {NAME}`" in message
    project.environment["HF_ENDPOINT"] = "gopher://x"
    assert "HF_ENDPOINT: found gopher://x; allowed: an address of http or https" in project.run("weights", NAME, code=1)


def test_changed_file_of_recorded_weights_is_refused(project: Project, hub: Hub) -> None:
    added(hub)
    project.run("weights", NAME)
    (project.workspace.pretrained / file_name()).write_bytes(CONTENT + b"x")
    with pytest.raises(TrainingError, match="delete the file, then `ratchet weights hf://timm/tiny"):
        file_of(project.workspace.pretrained, NAME)
    project.run("weights", NAME)
    assert file_of(project.workspace.pretrained, file_name()) == file_name()
    keep(project.workspace.pretrained, "x", replace(source(project), file="../x.safetensors"))
    with pytest.raises(TrainingError, match=r"x\.safetensors is not the name of a file in this folder"):
        find(project.workspace.pretrained, NAME)
    (project.workspace.pretrained / "sources.json").write_text('{"x": 1}')
    with pytest.raises(TrainingError, match=r"sources.json: is not a record of weights \(x"):
        find(project.workspace.pretrained, NAME)


def test_git_tracks_the_record_in_older_projects(project: Project, hub: Hub) -> None:
    added(hub)
    project.workspace.pretrained.mkdir(parents=True)
    ignored = project.workspace.pretrained / ".gitignore"
    ignored.write_text("*\n!*.dvc\n!.gitignore")
    for _ in range(2):
        project.run("weights", NAME)
        assert ignored.read_text() == "*\n!*.dvc\n!.gitignore\n!sources.json\n"


def test_addresses_without_a_fault_are_read() -> None:
    for name in (NAME, f"{NAME}@main", f"{NAME}@refs%2Fpr%2F1/a/b.safetensors", "torchvision://resnet18/DEFAULT"):
        assert address_fault(name) == ""
