"""TabM under the settings that treat parameters or layers differently: its adapter and heads are in the right group."""

from typing import Any

import pytest
import torch

from ratchet.kinds import Column, ModelSpec, TableInput
from ratchet.problems import Classes
from ratchet.training import Plan, build
from ratchet.training.models import Model
from ratchet.training.optim import build_optimizer
from ratchet.training.transfer import stages
from tests.training.test_problems import TABLE, as_classes, table

TARGET = Classes(("small", "big"))
TOWN = Column("town", "categorical", categories=tuple(f"town {number:03d}" for number in range(100)))
TABLES = {"numbers and one-hot": TABLE, "numbers and embedded": TableInput((*TABLE.numeric, TOWN))}
HEAD = {"head.weight", "head.bias"}


def names(model: Model, parameters: list[torch.nn.Parameter]) -> set[str]:
    known = {id(parameter): name.removeprefix("network.") for name, parameter in model.named_parameters()}
    return {known[id(parameter)] for parameter in parameters}


def tabm(columns: str) -> Model:
    return build(ModelSpec("tabm", TABLES[columns], TARGET))


def set_up(lab, **changes: Any) -> Plan:
    lab.train, lab.validation = table("train", 30, 0, as_classes), table("validation", 12, 1, as_classes, first=1000)
    lab.spec = ModelSpec("tabm", TABLE, TARGET)
    return lab.plan(target=TARGET, **changes)


@pytest.mark.parametrize("columns", TABLES)
def test_muon_gets_the_hidden_layers_only(lab, columns: str) -> None:
    model = tabm(columns)
    groups = build_optimizer(model, lab.plan(optimizer="muon"), torch.device("cpu")).param_groups
    by_muon = [parameter for group in groups if group["matrices"] for parameter in group["params"]]
    assert names(model, by_muon) == {"backbone.0.weight", "backbone.3.weight"}


def test_adapter_and_biases_do_not_decay(lab) -> None:
    model = tabm("numbers and embedded")
    groups = build_optimizer(model, lab.plan(weight_decay=0.1, decay_all=False), torch.device("cpu")).param_groups
    exempt = [parameter for group in groups if not group["weight_decay"] for parameter in group["params"]]
    biases = {"encoder.numbers.bias", "backbone.0.bias", "backbone.3.bias", "head.bias"}
    assert names(model, exempt) == {"adapter.weight", *biases}


@pytest.mark.parametrize("columns", TABLES)
def test_stages_go_from_the_columns_to_the_heads(columns: str) -> None:
    parts = [{name.removeprefix("network.") for name in stage.parameters} for stage in stages(tabm(columns))]
    assert len(parts) >= 4
    assert "encoder.numbers.embedding" in parts[0]
    assert parts[-1] == HEAD
    assert any("adapter.weight" in part and any("encoder" in name for name in part) for part in parts[:-2])


def test_only_the_heads_learn_while_all_else_is_frozen(lab) -> None:
    plan = set_up(lab, epochs=2, frozen_epochs=2)
    torch.manual_seed(plan.seed)
    before, after = build(lab.spec).state_dict(), lab.run(plan).weights
    changed = {name.removeprefix("network.") for name in after if not torch.equal(before[name], after[name])}
    bins = {f"encoder.numbers.{name}" for name in ("low", "scale", "used")}  # placed by the training rows
    assert changed - bins == HEAD


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "muon", "layer_decay": 0.5},
        {"unfreeze_epochs": 1, "frozen_epochs": 1},
        {"ema_decay": 0.9, "accumulation": 3},
        {"precision": "bf16", "clip_value": 0.1},
    ],
    ids=", ".join,
)
def test_a_run_resumed_under_these_settings_equals_the_undisturbed_one(lab, changes: dict[str, Any]) -> None:
    plan = set_up(lab, **changes)
    undisturbed = lab.run(plan, name="undisturbed")
    lab.stop_at(6, plan, name="stopped")
    lab.assert_same(lab.run(plan, name="stopped").weights, undisturbed.weights)


def test_gradient_checkpointing_changes_no_bit(lab) -> None:
    plan = set_up(lab, epochs=2)
    plain = lab.run(plan, name="plain")
    recomputed = lab.run(set_up(lab, epochs=2, gradient_checkpointing=True), name="recomputed")
    lab.assert_same(recomputed.weights, plain.weights)
