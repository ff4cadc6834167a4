"""DVC skips a stage whose `deps` did not change, so `deps` must hold every module that can change its outputs."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

REPOSITORY = Path(__file__).parents[2]
STAGES: dict[str, dict[str, Any]] = YAML(typ="safe").load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))[
    "stages"
]
OURS = ("ratchet", "tasks", "flows", "commands")
# Modules that a stage imports and that cannot change what it writes, each with the reason.
NEUTRAL = {
    "src/ratchet/__init__.py": "holds the version only",
    "src/ratchet/cost.py": "measures time and energy; the cost is no output",
    "src/ratchet/errors.py": "classes of errors",
    "src/ratchet/files.py": "writes bytes to files; the caller chooses the bytes",
    "src/ratchet/git.py": "asks git; the commit is in no output that DVC reuses",
    "src/ratchet/settings": "reads params.yaml; its values are tracked as `params`",
    "src/ratchet/urls.py": "refuses passwords in addresses",
    "src/ratchet/workspace.py": "names of files and folders; dvc.yaml has them too",
    "tasks/__init__.py": "a docstring",
    "tasks/stage_runner.py": "starts a stage from the command line",
}


def file_of(module: str) -> Path | None:
    base = REPOSITORY / "src" if module.partition(".")[0] == "ratchet" else REPOSITORY
    path = base.joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def imported_by(file: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it; names that may be modules too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reachable(start: str) -> set[str]:
    """Paths, from the repository's root, of all modules of ours that importing a module can run."""
    paths: set[str] = set()
    todo = [start]
    while todo:
        parts = todo.pop().split(".")
        for length in range(1, len(parts) + 1):
            file = file_of(".".join(parts[:length])) if parts[0] in OURS else None
            path = file.relative_to(REPOSITORY).as_posix() if file else ""
            if file and path not in paths:
                paths.add(path)
                todo += imported_by(file)
    return paths


def covered(path: str, by: list[str]) -> bool:
    return any(path == entry or path.startswith(f"{entry}/") for entry in by)


@pytest.mark.parametrize("stage", STAGES)
def test_deps_hold_every_module_that_a_stage_imports(stage: str) -> None:
    modules = reachable(f"tasks.{stage}")
    assert len(modules) > 20
    missing = [path for path in sorted(modules) if not covered(path, [*STAGES[stage]["deps"], *NEUTRAL])]
    assert not missing, f"add to the deps of {stage} in dvc.yaml, or to NEUTRAL with the reason: {missing}"


def test_neutral_modules_exist_and_are_imported() -> None:
    modules = set().union(*(reachable(f"tasks.{stage}") for stage in STAGES))
    assert [path for path in NEUTRAL if not any(covered(module, [path]) for module in modules)] == []


@pytest.mark.parametrize("stage", STAGES)
def test_deps_name_no_module_that_a_stage_does_not_import(stage: str) -> None:
    modules = reachable(f"tasks.{stage}")
    code = [path for path in STAGES[stage]["deps"] if path.startswith(("src/", "tasks/"))]
    assert [path for path in code if not any(covered(module, [path]) for module in modules)] == []
