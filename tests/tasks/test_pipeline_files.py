"""dvc.yaml agrees with the stages in tasks/, the settings and the workspace."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ratchet.settings.model import RUNTIME_SECTIONS, Params
from ratchet.workspace import Workspace
from tasks.code import completed_settings

REPOSITORY = Path(__file__).parents[2]
PIPELINE: dict[str, Any] = YAML(typ="safe").load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))
STAGES: dict[str, dict[str, Any]] = PIPELINE["stages"]


def outputs(stage: dict[str, Any]) -> list[str]:
    paths = [*stage["outs"], *stage.get("metrics", [])]
    return [next(iter(output)) if isinstance(output, dict) else output for output in paths]  # some have options


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_the_function_of_its_name(name: str) -> None:
    assert STAGES[name]["cmd"] == f"python -m tasks.{name}"
    assert callable(getattr(importlib.import_module(f"tasks.{name}"), name))


@pytest.mark.parametrize("name", STAGES)
def test_dependencies_exist_or_are_outputs(name: str) -> None:
    produced = {output for stage in STAGES.values() for output in outputs(stage)}
    depends = STAGES[name]["deps"]
    for path in depends:
        assert path in produced or path.startswith("${") or (REPOSITORY / path).exists(), path


def test_every_completed_setting_belongs_to_a_stage() -> None:
    """Those that decide no weight, and sections that decide no result, are not among them."""
    tracked = [
        each for stage in STAGES.values() for entry in stage["params"] for each in entry.get("data/settings.json", ())
    ]
    completed = completed_settings(Params())
    assert (
        {name.partition(".")[0] for name in tracked}
        == completed.keys()
        == Params.model_fields.keys() - RUNTIME_SECTIONS
    )
    assert "epochs" in completed["training"]
    assert "checkpoint_steps" not in completed["training"]


def test_every_stage_depends_on_its_code() -> None:
    for name, stage in STAGES.items():
        tracked = [entry["data/code.json"] for entry in stage["params"] if "data/code.json" in entry]
        assert tracked == ([[name]] if name != "code" else [])


def test_every_output_has_one_stage_and_a_workspace_path() -> None:
    produced = [output for stage in STAGES.values() for output in outputs(stage)]
    assert len(produced) == len(set(produced))
    workspace = Workspace(REPOSITORY)
    named = {workspace.packed, workspace.quarantine, workspace.checkpoints, workspace.model, workspace.baseline}
    named |= {workspace.registration, workspace.variants, workspace.code, workspace.settings}
    for output in produced:
        path = REPOSITORY / output
        assert path in named or path.parent == workspace.reports, output


def test_stages_are_in_the_order_of_the_flow() -> None:
    produced: set[str] = set()
    for stage in STAGES.values():
        assert {path for path in stage["deps"] if path.startswith("data/")} <= produced | {
            "data/pretrained",
            "data/releases.csv",
        }
        produced |= set(outputs(stage))
    assert list(STAGES) == ["code", "ingest", "train", "evaluate", "export", "register"]


def test_every_plot_is_of_an_output() -> None:
    produced = [output for stage in STAGES.values() for output in outputs(stage)]
    for plot in PIPELINE["plots"]:
        paths = [plot] if isinstance(plot, str) else list(next(iter(plot.values()))["y"])
        for path in paths:
            assert any(path == output or path.startswith(f"{output}/") for output in produced), path
