"""Which code decides the result of a stage, of the project as shipped."""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.code.closure import closure, module_path, without_result
from ratchet.code.syntax import normal_nodes
from ratchet.kinds.ingest import ingest_function
from ratchet.kinds.registry import KINDS, kind_named
from ratchet.training import models

REPOSITORY = Path(__file__).parents[2]
STAGES = ("ingest", "train", "evaluate", "export", "register")
ANY = {"kind": None, "model": None, "variant": None}


def training(kind: str, model: str | None) -> set[str]:
    roots = ("ratchet.training.fit", "ratchet.training.open_split")
    return set(closure(roots, stage="train", choice={"kind": kind, "model": model, "variant": "network"}))


def file_of(thing: Any) -> str:
    return Path(inspect.getsourcefile(thing)).relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in kind_named(kind).networks])
def test_a_training_counts_its_own_network(kind: str, name: str) -> None:
    network = models._networks(kind)[name]
    assert file_of(network) in training(kind, name)


def test_a_training_counts_no_other_network_or_doctor() -> None:
    counted = training("image", "convnet")
    assert file_of(models.ConvNet) in counted
    assert not counted & {file_of(models.ResidualNet), file_of(models.Bag), file_of(models.TabM)}
    assert not [path for path in counted if "/doctor/" in path or "/reports/" in path or "profiler" in path]
    assert any(path.endswith("optim.py") for path in counted)


def test_templates_count_for_the_stage_that_fills_them() -> None:
    suffixes = {Path(path).suffix for path in closure(["tasks.register"], stage="register", choice=ANY)}
    assert {".py", ".j2", ".css"} <= suffixes


def test_a_network_that_the_users_code_builds_on_counts(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("from ratchet.training.models.convnet import ConvNet\n\nNET = ConvNet\n")
    chosen = {"kind": "image", "model": "none", "variant": "network"}
    roots = ["ratchet.training.fit"]
    assert file_of(models.ConvNet) not in closure(roots, stage="train", choice=chosen)
    counted = closure(roots, stage="train", choice=chosen, code=[tmp_path / "nets.py"], root=tmp_path)
    assert {"nets.py", file_of(models.ConvNet)} <= counted.keys()
    assert file_of(models.ResidualNet) not in counted


def test_a_cached_result_is_that_of_equal_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own, results = tmp_path / "nets.py", []
    for number in (1, 1, 2):
        own.write_text(f"NUMBER = {number}\n")
        results.append(closure(["tasks.code"], stage="train", choice=ANY, code=[own], root=tmp_path))
    assert results[0] == results[1]
    assert results[1]["nets.py"] != results[2]["nets.py"]
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 2


def test_notes_and_backups_beside_a_module_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "tasks"
    (package / "pages").mkdir(parents=True)
    names = ("__init__.py", "rules.toml", "pages/page.j2")
    for name in (*names, "rules.toml~", "rules.toml.orig", ".rules.toml.swp", "notes.txt", "pages/page.j2~"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    module_path.cache_clear()
    try:
        assert closure(["tasks"], stage="train", choice=ANY).keys() == {f"tasks/{name}" for name in names}
    finally:
        module_path.cache_clear()


def test_a_first_module_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"no module tasks\.cook"):
        closure(["tasks.cook"], stage="train", choice=ANY)


def dynamic_imports(code: bytes) -> Iterator[str]:
    """Calls that import, or run, what only a value names: the closure cannot follow them."""
    for node in normal_nodes(code) or ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module", "__import__", "exec", "eval", "run_module", "run_path",
        ):  # fmt: skip
            argument = node.args[0] if node.args else None
            if not isinstance(argument, ast.Constant) and not ast.unparse(node.func).endswith((".eval", "model.exec")):
                yield ast.unparse(node)


def test_only_user_code_and_kinds_are_imported_by_name() -> None:
    """The user's code is tracked by its files. The names of the kinds' modules are texts, which count as imports."""
    counted = {path for stage in STAGES for path in closure([f"tasks.{stage}"], stage=stage, choice=ANY)}
    dynamic = {
        path: calls
        for path in counted
        if path.endswith(".py") and (calls := [*dynamic_imports((REPOSITORY / path).read_bytes())])
    }
    assert dynamic == {
        file_of(models.CustomCode): ["importlib.import_module(module)"],
        file_of(inspect.unwrap(kind_named)): ["import_module(module)"],
        file_of(ingest_function): ["import_module(module)"],
    }


def test_imports_of_ours_are_absolute() -> None:
    for folder in ("src/ratchet", "tasks"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            nodes = normal_nodes(path.read_bytes()) or ()
            assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes), path


CALLED = """
import atexit, inspect, json, os, runpy, sys, threading

called, left_out, root = set(), set(), os.getcwd()


def note(frame, event, argument):
    name = frame.f_code.co_filename
    if name in called or name in left_out:
        return
    if not name.startswith(root):
        left_out.add(name)
        return
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class
        return
    if frame.f_code.co_name == "__getattr__" and os.path.basename(name) == "__init__.py":
        return  # an import asks a package for a module that is not loaded yet
    caller = frame.f_back
    while caller is not None and caller.f_code.co_name != "<module>":
        caller = caller.f_back
    if caller is None or caller.f_globals["__name__"] == "__main__":  # not while a module is imported
        called.add(name)


def write():
    sys.settrace(None)
    with open(os.path.join(root, f"called-{os.getpid()}.json"), "w") as file:
        json.dump(sorted(os.path.relpath(name, root) for name in called), file)


atexit.register(write)
sys.settrace(note)  # unlike setprofile, it is not called for each C function and each return
threading.settrace(note)
runpy.run_module(f"tasks.{sys.argv[1]}", run_name="__main__", alter_sys=True)
"""


def table(root: Path) -> tuple[str, ...]:
    rows = "".join(f"{row % 7},{row * row % 11},{'no' if row % 3 else 'yes'}\n" for row in range(300))
    (root / "data/raw/rows.csv").write_text(f"a,b,label\n{rows}")
    return "data.kind=table", "data.path=data/raw/rows.csv"


def texts(root: Path) -> tuple[str, ...]:
    samples = ("good film", "bad film", "fine play", "poor play")
    rows = "".join(f"{samples[row % 4]} number {row},{'no' if row % 2 else 'yes'}\n" for row in range(300))
    (root / "data/raw/texts.csv").write_text(f"text,label\n{rows}")
    return "data.kind=text", "data.path=data/raw/texts.csv"


def stream(root: Path) -> tuple[str, ...]:
    (root / "data/raw/play.txt").write_text("".join(f"line {row} of a play\n" for row in range(2000)))
    return "data.kind=tokens", "data.path=data/raw/play.txt"


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("source", [None, table, texts, stream])
def test_every_function_that_a_stage_calls_is_counted(
    source: Callable[[Path], tuple[str, ...]] | None, new_project: Callable[[str], Any]
) -> None:
    """But those of modules that are marked as unable to change a result."""
    project = new_project(source.__name__ if source else "images")
    short = "training.max_steps=4", "training.epochs=1", "gate.minimum_metric=none", "gate.constant=report"
    project.good("ratchet", "set", *short, *(source(project.root) if source else ()))
    project.good(*project.stage("code"))
    by_stage = json.loads(project.workspace.code.read_text())["files"]
    for stage in STAGES:
        project.good(sys.executable, "-c", CALLED, stage, DVC_STAGE=stage)
        called: set[str] = set()
        for path in project.root.glob("called-*.json"):
            called |= set(json.loads(path.read_text()))
            path.unlink()
        assert len(called) > 5
        names = {
            path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path
            for path in called
        }
        missing = [
            path
            for name, path in names.items()
            if path not in by_stage[stage] and module_path(name) and not without_result(name, stage)
        ]
        assert not missing, f"{stage}: {missing}"
