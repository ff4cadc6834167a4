"""DVC skips a stage whose `deps` did not change, so `deps` must hold every module that can change its outputs."""

import ast
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ratchet.kinds.registry import KINDS

REPOSITORY = Path(__file__).parents[2]
STAGES: dict[str, dict[str, Any]] = YAML(typ="safe").load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))[
    "stages"
]
OURS = ("ratchet", "tasks", "flows", "commands")
# Modules that a stage uses and that cannot change what it writes, each with the reason.
NEUTRAL = {
    "src/ratchet/cost.py": "measures time and energy; the cost is no output",
    "src/ratchet/data/reading/pool.py": "calls functions in parallel; the order of their results is fixed",
    "src/ratchet/errors.py": "classes of errors",
    "src/ratchet/files.py": "writes bytes to files; the caller chooses the bytes",
    "src/ratchet/git.py": "calls git; DVC does not track what the commit is",
    "src/ratchet/references.py": "checks at the start that what the settings name exists",
    "src/ratchet/registry/mlflow_store.py": "of a check at the start, and of records in MLflow",
    "src/ratchet/registry/names.py": "of a check at the start, and of the name in the registry",
    "src/ratchet/registry/relocation.py": "of a check at the start, and of the places of files in MLflow",
    "src/ratchet/terminal_lines.py": "breaks lines for a terminal",
    "src/ratchet/settings": "reads params.yaml; its values are tracked as `params`",
    "src/ratchet/urls.py": "refuses passwords in addresses",
    "src/ratchet/workspace.py": "paths; dvc.yaml has them too",
    "tasks/finished.py": "keeps checkpoints aside until DVC has recorded the outputs of their training",
    "tasks/progress.py": "prints progress",
    "tasks/stage_runner.py": "starts a stage from the command line",
}
NEUTRAL_IN = {
    "ingest": {
        "src/ratchet/kinds/registry.py": "names all kinds, which decode values of clients",
        "src/ratchet/evaluation": "types and texts that pages format; the data card is no output of the stage",
        "src/ratchet/reports": "writes the data card, which is no output of the stage",
        "src/ratchet/training/sample_timeout.py": "limits the time of reading a sample",
        "src/ratchet/training/plan.py": "a type",
    },
    "train": {
        "src/ratchet/doctor": "looks for bugs before the first step, on copies",
        "src/ratchet/data/versions.py": "the data version goes to MLflow only",
        "src/ratchet/kinds/registry.py": "names all kinds, which decode values of clients",
        "src/ratchet/provenance": "the provenance record goes to MLflow only",
        "src/ratchet/registry": "metrics and settings go to the journal and MLflow only",
        "tasks/curves.py": "writes TensorBoard files, which are no outputs",
        "tasks/machine.py": "measures the load of the machine, for MLflow",
        "tasks/stopping.py": "stops and continues a training, which ends with the same weights",
        "tasks/unfinished.py": "a message about another unfinished training",
    },
    "evaluate": {
        "src/ratchet/baselines": "fits baselines; this stage reads the one of data/baseline",
        "src/ratchet/data/versions.py": "the data version goes to MLflow only",
        "src/ratchet/kinds/registry.py": "names all kinds, which decode values of clients",
        "src/ratchet/provenance": "the provenance record goes to MLflow only",
        "src/ratchet/registry": "metrics and settings go to the journal and MLflow only",
        "tasks/training_job.py": "a type",
    },
    "export": {},
    "register": {"src/ratchet/traffic": "read when a user promotes a version, which the stage does not"},
}


def file_of(module: str) -> Path | None:
    base = REPOSITORY / "src" if module.partition(".")[0] == "ratchet" else REPOSITORY
    path = base.joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def imports_of(file: Path) -> Iterator[tuple[str, str | None]]:
    """Every import anywhere in a file, as (module, name); the name is None where the module itself is imported."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            assert node.module
            yield from ((node.module, alias.name) for alias in node.names)
    if file.match("kinds/registry.py"):
        yield from ((name.partition(":")[0], None) for name in KINDS.values())


def used(module: str, name: str | None) -> str:
    """The module that an import uses. A package that hands a name on from another module is not used itself."""
    if name is not None and file_of(f"{module}.{name}"):
        return f"{module}.{name}"
    file = file_of(module)
    if name is not None and file and file.name == "__init__.py":
        for origin, handed_on in imports_of(file):
            if handed_on == name:
                return used(origin, name)
    return module


def reachable(start: str, *, neutral: Collection[str] = ()) -> set[str]:
    """Paths, from the repository's root, of all modules of ours whose code a module can use.

    What only a neutral module uses cannot change an output either.
    """
    paths: set[str] = set()
    todo = [start]
    while todo:
        module = todo.pop()
        file = file_of(module) if module.partition(".")[0] in OURS else None
        path = file.relative_to(REPOSITORY).as_posix() if file else ""
        if file and path not in paths:
            paths.add(path)
            if covered(path, neutral):
                continue
            todo += [used(*imported) for imported in imports_of(file)]
    return paths


def covered(path: str, by: Iterable[str]) -> bool:
    return any(path == entry or path.startswith(f"{entry}/") for entry in by)


def neutral(stage: str) -> dict[str, str]:
    return NEUTRAL | NEUTRAL_IN[stage]


@pytest.mark.parametrize("stage", STAGES)
def test_deps_hold_every_module_that_a_stage_uses(stage: str) -> None:
    modules = reachable(f"tasks.{stage}", neutral=neutral(stage))
    assert len(modules) > 20
    missing = [path for path in sorted(modules) if not covered(path, [*STAGES[stage]["deps"], *neutral(stage)])]
    assert not missing, f"add to the deps of {stage} in dvc.yaml, or to the neutral modules with the reason: {missing}"


@pytest.mark.parametrize("stage", STAGES)
def test_deps_name_no_module_that_a_stage_does_not_use(stage: str) -> None:
    modules = reachable(f"tasks.{stage}")
    code = [path for path in STAGES[stage]["deps"] if path.startswith(("src/", "tasks/"))]
    assert [
        path for path in [*code, *NEUTRAL_IN[stage]] if not any(covered(module, [path]) for module in modules)
    ] == []


def test_every_neutral_module_is_used_by_a_stage() -> None:
    modules = set().union(*(reachable(f"tasks.{stage}") for stage in STAGES))
    assert [path for path in NEUTRAL if not any(covered(module, [path]) for module in modules)] == []


def test_reexports_of_a_package_are_followed_to_their_module() -> None:
    assert used("ratchet.settings", "load") == "ratchet.settings.file"
    assert used("ratchet.training.plan", "Plan") == used("ratchet.training", "Plan") == "ratchet.training.plan"
