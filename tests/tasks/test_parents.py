"""Trainings that continue a stored model: its scaling and tokenizer stay, and what cannot fit is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands.labels import _recipes
from commands.preflight import _Preflight
from ratchet import files, settings, training
from ratchet.checksums import seal
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import SettingsError, TrainingError
from ratchet.kinds.registry import kind_of
from ratchet.references import broken_references, require_references
from ratchet.registry.parents import parent_of
from ratchet.weights_sources import WeightsSource, keep
from ratchet.workspace import Workspace
from tasks import nodes, unfinished
from tasks.folds import cross_validate
from tasks.gate_inputs import parent_warning
from tasks.scratch_project import ScratchProject
from tasks.simulate import _Quiet, simulate
from tasks.training_job import TrainingJob

TABLE = {"data.kind": "table", "data.path": "rows.csv", "data.problem": "classification"}
TEXT = {**TABLE, "data.kind": "text", "model.name": "transformer"}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.params.write_text(settings.template())
    return workspace


def job(workspace: Workspace, lines: Sequence[str] = (), **changes: Any) -> TrainingJob:
    """Ingest the lines of a file, or the digits, and return the training."""
    (workspace.root / "rows.csv").write_text("\n".join(lines))
    settings.override(workspace.params, changes)
    params = settings.load(workspace.params)
    places = {"packed": workspace.packed, "quarantine": workspace.quarantine, "root": workspace.root}
    ingest(IngestTask(params.data, **places))
    return TrainingJob.of(params, workspace, Manifest.read(workspace.packed))


def store(workspace: Workspace, trained: TrainingJob) -> training.Model:
    """Store a model with random weights of its own as pets/3."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = training.build(trained.spec).eval()
    training.save_model(workspace.pretrained / "pets" / "3", model.state_dict(), trained.spec, about={})
    return model


def table(rows: int, *, scale: float = 1.0, colours: str = "rg", classes: str = "ab", more: str = "") -> list[str]:
    cells = (f"{scale * row + 1e9},{colours[row % 3 > 1]},{classes[row % 2]}" for row in range(rows))
    return [f"size,colour{more},label", *(line.replace(",", ",1," if more else ",", 1) for line in cells)]


def texts(vocabulary: Sequence[str]) -> list[str]:
    return [
        "text,label",
        *(
            f"{word} {vocabulary[row % len(vocabulary)]} {row},{'ab'[row % 2]}"
            for row, word in enumerate(vocabulary * 40)
        ),
    ]


def test_a_continued_table_keeps_the_scaling_of_its_weights(workspace: Workspace) -> None:
    """More rows give another offset and scaling, and equal raw values are still equal for the network."""
    parent = store(workspace, first := job(workspace, table(200), **TABLE))
    second = job(workspace, table(300, scale=2.0), **{"model.pretrained": "pets/3"})
    inputs = second.inputs(workspace.packed)
    with torch.random.fork_rng():
        model, [message] = training.initial_model(inputs)
    assert message.startswith("pretrained weights of pets/3: ")
    assert "initial weights kept" not in message
    assert first.spec.table.numeric[0].offset != second.spec.table.numeric[0].offset
    rows = {"size": [1e9 + 3, 1e9 + 250, None], "colour": ["r", "g", "x"]}
    outputs = []
    for each, spec in ((parent, first.spec.table), (model.eval(), second.spec.table)):
        kind = kind_of(spec)
        outputs.append(each(*kind.to_tensors(kind.packed(kind.decode(rows, spec), spec))))
    torch.testing.assert_close(*outputs)
    assert (second.identity["pretrained"], first.identity["pretrained"]) != ("none", "none")
    assert first.key != second.key


def test_continued_numbers_keep_the_scaling_of_the_head(workspace: Workspace) -> None:
    """Other rows have another mean, and the first answers are those of the parent."""
    size = {**TABLE, "data.problem": "regression"}
    lines = ["size,label", *(f"{row % 97},{row / 7}" for row in range(200))]
    parent = store(workspace, first := job(workspace, lines, **size))
    lines += [f"{row % 97},{row / 7 + 500}" for row in range(200, 400)]
    own = job(workspace, lines, **size)
    second = job(workspace, lines, **size, **{"model.pretrained": "pets/3"})
    assert own.spec.target != first.spec.target
    with torch.random.fork_rng():
        model, _ = training.initial_model(second.inputs(workspace.packed))
    answers = []
    for each, spec in ((parent, first.spec), (model.eval(), second.spec)):
        kind = kind_of(spec.input)
        outputs = each(*kind.to_tensors(kind.packed(kind.decode({"size": [3, 50]}, spec.input), spec.input)))
        answers.append(spec.target.predictions(outputs.detach().numpy()))
    np.testing.assert_allclose(*answers, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": ",weight"}, r"take size \(numeric\), colour \(categorical\), and these samples have size .*, weight"),
        ({"colours": "gr"}, r"take in column colour the categories \('r', 'g'\), and .* \('g', 'r'\)"),
    ],
)
def test_a_table_with_other_columns_or_categories_is_refused(
    workspace: Workspace, changes: dict[str, Any], message: str
) -> None:
    store(workspace, job(workspace, table(200), **TABLE))
    with pytest.raises(TrainingError, match=rf"^model\.pretrained: its weights {message}"):
        job(workspace, table(200, **changes), **{"model.pretrained": "pets/3"})
    assert job(workspace, table(200, **changes), **{"model.pretrained": "none"})  # the fix that it names


def test_continued_texts_keep_their_vocabulary(workspace: Workspace) -> None:
    store(workspace, first := job(workspace, texts(("red", "green", "blue")), **TEXT))
    second = job(workspace, texts(("blue", "black", "brown", "white")), **{"model.pretrained": "pets/3"})
    assert second.spec.text == first.spec.text
    with torch.random.fork_rng():
        _, [message] = training.initial_model(second.inputs(workspace.packed))
    assert "initial weights kept" not in message


def test_other_classes_of_the_same_number_get_a_new_head(workspace: Workspace) -> None:
    """Its old rows would be those of other classes. The rest of the model is the parent's."""
    parent = store(workspace, job(workspace, table(200), **TABLE))
    second = job(workspace, table(200, classes="xy"), **{"model.pretrained": "pets/3"})
    with torch.random.fork_rng():
        model, [message] = training.initial_model(second.inputs(workspace.packed))
    assert "of other classes, initial weights kept: head.weight, head.bias" in message
    before, now = parent.network.state_dict(), model.network.state_dict()
    different = {name for name in before if not torch.equal(before[name], now[name])}
    assert different == {"head.weight", "head.bias"}


FAULTS = {
    "network": ({"model.name": "resnet"}, "is the model convnet, and model.name has resnet", "model.name=convnet"),
    "factory": ({"model.factory": "nets:f"}, "is a model of factory none", "model.factory=none"),
    "kind": ({"data.kind": "text"}, "takes samples of kind image, and data.kind has text", "data.kind=image"),
    "baseline": ({"model.name": "baseline"}, "continues a network; baselines", "model.name=auto"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_settings_that_cannot_continue_a_model_are_refused_early(workspace: Workspace, name: str) -> None:
    changes, message, fix = FAULTS[name]
    store(workspace, job(workspace))
    (workspace.root / "nets.py").write_text("f = None\n")
    changes = {"model.pretrained": "pets/3", "model.code": "nets.py", **changes}
    changed = settings.plan(workspace.params, changes).params
    assert f"model.pretrained: pets/3 {message}" in "\n".join(broken_references(changed, workspace))
    with pytest.raises(SettingsError, match=r"^params\.yaml: model\.pretrained: pets/3"):
        require_references(changed, workspace)
    require_references(settings.plan(workspace.params, changes | settings.parse_assignments([fix])).params, workspace)


@pytest.mark.parametrize(("key", "value"), [("tokenizer", "hashed"), ("context", 7)])
def test_another_tokenizer_or_context_is_refused(workspace: Workspace, key: str, value: object) -> None:
    store(workspace, job(workspace, texts(("red", "green")), **TEXT))
    changes = {"model.pretrained": "pets/3", f"model.{key}": value}
    [fault] = broken_references(settings.plan(workspace.params, changes).params, workspace)
    assert fault.startswith(f"model.pretrained: pets/3 has the {key} ")
    fix = settings.parse_assignments([fault.rpartition("ratchet set ")[2].rstrip("`")])
    assert not list(broken_references(settings.plan(workspace.params, changes | fix).params, workspace))


@pytest.mark.parametrize("content", ["{", "{}", '{"spec": {"name": "convnet"}}', "[]"])
def test_a_damaged_description_of_a_parent_is_named(workspace: Workspace, content: str) -> None:
    path = workspace.pretrained / "pets" / "3" / "model.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    changed = settings.plan(workspace.params, {"model.pretrained": "pets/3"}).params
    with pytest.raises(TrainingError, match=r"^model\.pretrained: .*model\.json is not the description of a model"):
        require_references(changed, workspace)


def test_changed_weights_of_a_parent_are_refused(workspace: Workspace) -> None:
    """They are not those of the version that the provenance record names."""
    store(workspace, job(workspace))
    seal(folder := workspace.pretrained / "pets" / "3")
    job(workspace, **{"model.pretrained": "pets/3"})
    (folder / "model.safetensors").write_bytes(b"changed")
    with pytest.raises(TrainingError, match=r"pets/3: differs from the stored model \(changed: model\.safetensors\)"):
        job(workspace)


def test_folds_and_label_checks_do_not_begin_with_a_parent(workspace: Workspace) -> None:
    """It can have learned from the samples that a fold holds out, and their labels."""
    store(workspace, job(workspace))
    seal(workspace.pretrained / "pets" / "3")
    job(workspace, **{"model.pretrained": "pets/3"})
    params = settings.load(workspace.params)
    with pytest.raises(SettingsError, match=r"model\.pretrained: found pets/3, .*`ratchet set model\.pretrained=none`"):
        cross_validate(params, workspace, 2, progress=lambda fold: pytest.fail(f"began {fold}"), report=print)
    recipes = _recipes(params, workspace, Manifest.read(workspace.packed), rows=900, epochs=1)
    assert {(recipe.spec.name, recipe.pretrained) for recipe in recipes} == {("fastnet", None)}


def test_preflight_leaves_out_weights_that_its_sample_does_not_fit(workspace: Workspace) -> None:
    """A few rows of a table can lack categories. If all rows do not fit the weights, it says so."""
    store(workspace, job(workspace, table(200), **TABLE))
    seal(workspace.pretrained / "pets" / "3")
    job(workspace, table(200), **{"model.pretrained": "pets/3"})
    params = settings.load(workspace.params)
    scratch = ScratchProject(workspace.root, workspace.root / "scratch")
    scratch.folder.mkdir()
    left_out = []
    for colours in ("rg", "gr"):
        (workspace.root / "rows.csv").write_text("\n".join(table(200, colours=colours)))
        ingest(IngestTask(params.data, packed=scratch.packed, quarantine=scratch.quarantine, root=workspace.root))
        flight = _Preflight(workspace)
        flight._compare_weights(params, scratch)
        left_out.append((flight._fitting(params).model.pretrained, len(flight._messages)))
    assert left_out == [("pets/3", 0), ("none", 1)]
    assert parent_warning(scratch, params) is None
    with pytest.raises(TrainingError, match="in column colour the categories"):
        job(workspace, table(200, colours="gr"))
    with pytest.raises(TrainingError, match="in column colour the categories"):
        _Preflight(workspace)._compare_weights(params, scratch)


def test_a_simulation_does_not_begin_with_a_parent(workspace: Workspace) -> None:
    """It can have learned from the rows of all periods."""
    store(workspace, job(workspace, table(200), **TABLE))
    seal(workspace.pretrained / "pets" / "3")
    job(workspace, table(200), **{"model.pretrained": "pets/3"})
    params = settings.load(workspace.params)
    with pytest.raises(SettingsError, match=r"found pets/3, .* later periods, .*`ratchet set model\.pretrained=none`"):
        simulate(params, workspace, "size", periods=2, memory=2, price=0.1, progress=_Quiet())
    assert not (workspace.state / "simulations").exists()


def test_another_normalization_of_the_same_weights_is_named(workspace: Workspace) -> None:
    """Two machines can have the same file, and only one the record of its source."""
    store(workspace, job(workspace))
    stored = workspace.pretrained / "pets" / "3" / "model.safetensors"
    digest = files.digest_file(stored.rename(workspace.pretrained / "net.safetensors"))
    without = job(workspace, **{"model.pretrained": "net.safetensors"})
    source = WeightsSource("net.safetensors", digest, "hf://a/net/f", "0" * 40, (0.5,), (0.25,))
    keep(workspace.pretrained, "hf://a/net", source)
    recorded = job(workspace)
    assert (recorded.spec.image.mean, recorded.key == without.key) == ((127.5,), False)
    name = "the normalization of model.pretrained"
    for first, second in ((without, recorded), (recorded, without)):
        assert list(nodes._differences(nodes.facts(second), nodes.facts(first))) == [name]
        recorded_parts = json.loads(json.dumps(first.parts))
        assert list(unfinished._differences(recorded_parts, second.parts)) == [(f"{name} changed", "")]


def test_only_files_of_a_registered_version_have_a_parent(workspace: Workspace) -> None:
    """`ratchet export --variant model` writes checksums too, and its folder may have any name."""
    for name in ("pets/3", "big"):
        folder = workspace.pretrained / name
        folder.mkdir(parents=True)
        (folder / "checksums.json").touch()
    named = [settings.plan(workspace.params, {"model.pretrained": name}).params for name in ("pets/3", "big", "none")]
    assert [parent_of(workspace, params) for params in named] == ["models:/pets/3", None, None]
