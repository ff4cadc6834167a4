"""The modules that a result depends on: everything that its first modules import, at the top or in a function.

Two marks in a module, or in the `__init__.py` of a package for all its modules, say that it does not count. Each is a
constant, so that it moves with its file:

- `NO_RESULT = "reason"`: it cannot change a result; `NO_RESULT = {"train": "reason"}`: not that of these stages.
- `CHOSEN_BY = {"model": ("convnet",)}`: it counts if the settings choose this, or if another module with such a mark,
  or the user's own code, uses it.

A module that acts when it is imported counts in any case. So do files beside counted modules that code reads, such as
templates. A text that is the name of a module counts as an import of it.

To read the modules takes seconds, so the user's cache keeps results by the digest of all code that could be read.
"""

import ast
import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from ratchet import files
from ratchet.code.syntax import digest_code, digest_nodes, normal_nodes, source_files

__all__ = ["PACKAGES", "Choice", "closure", "digest_sources", "module_path", "without_result"]

PACKAGES = ("ratchet", "tasks", "flows", "commands")
Choice = Mapping[str, str | None]
"""What the settings choose, as `model: convnet`. None: any, so that all modules of this choice count."""
Use = tuple[str, str | None]  # a module, and the name in it that is used; None: all of it

_IS_NAME = re.compile(rf"({'|'.join(PACKAGES)})\.[\w.]+(:\w+)?$")  # of a module, or of a name in it
_READ_BY_CODE = frozenset({".css", ".csv", ".html", ".j2", ".js", ".json", ".toml", ".yaml"})  # suffixes
_KEPT = 100  # results in the cache
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)


def closure(
    roots: Iterable[str], *, stage: str, choice: Choice, code: Iterable[Path] = (), root: Path = Path()
) -> dict[str, str]:
    """Return the digest of each file that decides a result, by its path.

    Args:
        roots: the first modules, or names in packages of ours: "tasks.train", "ratchet.training.fit".
        stage: whose result it is, for the marks.
        choice: what the settings choose.
        code: files and folders of the user's own code in `root`. All their files count.
        root: the project folder.

    Raises:
        LookupError: there is no such module.
    """
    code, roots = list(code), list(roots)
    before = digest_sources(code, root)
    cached = _cache() / f"{files.digest_json([before, sys.version, roots, stage, dict(choice)])}.json"
    with contextlib.suppress(OSError, ValueError):  # there is none, or it is damaged
        content: dict[str, str] = files.read_json(cached)
        return content
    digests = _closure(roots, stage, choice, code, root)
    if before == digest_sources(code, root):  # no file was edited meanwhile
        with contextlib.suppress(OSError):  # the cache saves time only
            files.write_json(cached, digests)
            for old in sorted(cached.parent.glob("*.json"), key=lambda path: -path.stat().st_mtime)[_KEPT:]:
                old.unlink()
    return digests


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ratchet", "code")


def digest_sources(code: Iterable[Path], root: Path) -> str:
    """Return a digest of the bytes of all code: our packages, and the user's `code` in `root`."""
    packages = {path.parent: path.parents[1] for path in map(module_path, PACKAGES) if path}
    places = packages | dict.fromkeys(code, root)
    sources = {path: top for place, top in places.items() for path in source_files(place)}
    return files.digest_json({str(path.relative_to(top)): _digest(path, _stamp(path)) for path, top in sources.items()})


@functools.lru_cache(maxsize=2048)
def _digest(path: Path, _stamp: tuple[int, int]) -> str:
    return files.digest_file(path)


def _closure(roots: list[str], stage: str, choice: Choice, code: list[Path], root: Path) -> dict[str, str]:
    own = [path for place in code for path in source_files(place)]
    uses = [use for path in own if path.suffix == ".py" for use in _read(path).uses]
    counted = _counted([*((_root(name), False) for name in roots), *((use, True) for use in uses)], stage, choice)
    paths = {name: module_path(name) for name in counted}
    beside = {path for path in paths.values() if path for path in _files_beside(path)}
    deciding = {_shown(path): path for path in {*filter(None, paths.values()), *beside}}
    deciding |= {path.relative_to(root).as_posix(): path for path in own}
    without_messages = stage == "train"
    return {name: _read(path).digests[without_messages] for name, path in sorted(deciding.items())}


def _counted(uses: list[tuple[Use, bool]], stage: str, choice: Choice) -> set[str]:
    """Return the modules that count, and those that act when they are imported with them.

    Each use says whether it is that of an alternative: then what it names counts, whatever the settings choose.
    """
    counted: set[str] = set()
    imported: set[str] = set()
    todo = [(resolve(*use), from_variant) for use, from_variant in uses]
    while todo:
        name, from_variant = todo.pop()
        if name in counted or module_path(name) is None:
            continue
        marks = _marks(name)
        if without_result(name, stage) or (not from_variant and not all(mark.is_chosen(choice) for mark in marks)):
            imported.add(name)
            continue
        counted.add(name)
        is_variant = any(mark.chosen_by for mark in marks)
        todo += [(resolve(*use), is_variant) for use in _module(name).uses]
        imported |= set(_packages(name))
    return counted | {name for name in _all_imported(imported | counted) if _module(name).acts}


def without_result(name: str, stage: str) -> bool:
    """Return whether a module, or a package that holds it, is marked as unable to change the result of a stage."""
    marks = [mark.no_result for mark in _marks(name)]
    return any(isinstance(mark, str) or stage in (mark or ()) for mark in marks)


def _all_imported(names: set[str]) -> set[str]:
    """Return these modules and everything of ours that they import in turn."""
    imported: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in imported and module_path(name) is not None:
            imported.add(name)
            todo += [*_packages(name), *(resolve(*use) for use in _module(name).imports)]
    return imported


def resolve(module: str, name: str | None) -> str:
    """Return the module that a use means. A module that hands a name on from another one is not used itself."""
    for _ in range(20):  # no circle without end
        if name is None or module_path(module) is None:
            return module
        if module_path(f"{module}.{name}"):
            return f"{module}.{name}"
        if len(origins := _module(module).bindings.get(name, ())) != 1:
            return module
        module, name = origins[0]
    return module


@functools.cache
def module_path(module: str) -> Path | None:
    """Return the file of a module of ours; None for any other."""
    top, *rest = module.split(".")
    if top not in PACKAGES:
        return None
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin).parent.joinpath(*rest)
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


@dataclass(frozen=True)
class _Source:
    """A parsed file."""

    digests: tuple[str, str]  # with the messages of errors, and without
    imports: tuple[Use, ...]  # everything it imports of ours
    uses: tuple[Use, ...]  # those whose names the code uses
    bindings: dict[str, tuple[Use, ...]] = field(default_factory=dict)  # name -> what it may be
    acts: bool = False  # does more than define when it is imported
    no_result: str | dict[str, str] | None = None
    chosen_by: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def is_chosen(self, choice: Choice) -> bool:
        return all(choice.get(key) is None or choice[key] in names for key, names in self.chosen_by.items())


def _module(name: str) -> _Source:
    path = module_path(name)
    assert path is not None, name
    return _read(path)


def _marks(name: str) -> list[_Source]:
    return [_module(each) for each in (*_packages(name), name)]


def _packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _root(name: str) -> Use:
    """Return the use that names a first module, or what a package hands on from one."""
    module, _, last = name.rpartition(".")
    if module_path(name) is None and resolve(module, last) == module:
        raise LookupError(f"no module {name}, and {module} imports no {last}")
    return (name, None) if module_path(name) else (module, last)


def _read(path: Path) -> _Source:
    return _parse(path, _stamp(path))


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=2048)
def _parse(path: Path, _stamp: tuple[int, int]) -> _Source:
    nodes = normal_nodes(path.read_bytes()) if path.suffix == ".py" else None
    if nodes is None:
        return _Source((digest_code(path),) * 2, (), (), acts=True)
    tree = nodes[0]
    assert isinstance(tree, ast.Module)
    bindings: dict[str, tuple[Use, ...]] = {}
    for node in nodes:
        for name, use in _imports(node):
            bindings[name] = (*bindings.get(name, ()), use)
    imports = {use for uses in bindings.values() for use in uses}
    attributes = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names = [(node.id, attributes.get(id(node))) for node in nodes if isinstance(node, ast.Name)]
    names += [(name, None) for name in (*_exported(tree), *(name for name in bindings if name.startswith("*")))]
    uses = {_use(use, attribute) for name, attribute in names for use in bindings.get(name, ())}
    if path.name == "__init__.py":
        uses |= imports  # a package is used through what it imports
    marks = {
        line.targets[0].id: ast.literal_eval(line.value)
        for line in tree.body
        if isinstance(line, ast.Assign)
        and isinstance(line.targets[0], ast.Name)
        and line.targets[0].id in ("NO_RESULT", "CHOSEN_BY")
    }
    acts = any(_acts(line) for line in tree.body)
    no_result, chosen_by = marks.get("NO_RESULT"), marks.get("CHOSEN_BY", {})
    return _Source(digest_nodes(nodes), tuple(imports), tuple(uses), bindings, acts, no_result, chosen_by)


def _exported(tree: ast.Module) -> list[str]:
    lists = [
        line.value for line in tree.body if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__"
    ]
    return [str(node.value) for each in lists for node in ast.walk(each) if isinstance(node, ast.Constant)]


def _imports(node: ast.AST) -> Iterator[tuple[str, Use]]:
    """Yield each import of ours as (bound name, use). `import a.b` counts as the whole of a.b."""
    match node:
        case ast.Import(names=names):
            for alias in names:
                if alias.name.partition(".")[0] in PACKAGES:
                    yield (alias.asname or f"*{alias.name}"), (alias.name, None)
        case ast.ImportFrom(level=0, module=str(module), names=names) if module.partition(".")[0] in PACKAGES:
            for alias in names:
                if alias.name == "*":
                    yield f"*{module}", (module, None)
                else:
                    yield alias.asname or alias.name, (module, alias.name)
        case ast.Constant(value=str(text)) if _IS_NAME.match(text):
            name = text.partition(":")[0]
            if module_path(name):
                yield f"*{name}", (name, None)


def _use(bound: Use, attribute: str | None) -> Use:
    """Return what a name stands for; of a module of which one attribute is used, that attribute."""
    module = bound[0] if bound[1] is None else f"{bound[0]}.{bound[1]}"
    return (module, attribute) if attribute and module_path(module) else bound


def _acts(line: ast.stmt) -> bool:
    """Return whether a statement of a module does more than define names."""
    match line:
        case ast.Assign(targets=targets):
            return not all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        case ast.AnnAssign(target=target):
            return not isinstance(target, ast.Name)
        case ast.If(test=test) if ast.unparse(test) == "__name__ == '__main__'":
            return False
    return not isinstance(line, _DEFINITIONS)


def _files_beside(path: Path) -> Iterator[Path]:
    """Yield the files of a package that code reads: in its folder, and in folders below that are no packages."""
    for place in path.parent.iterdir():
        if place.is_file() and _is_read(place):
            yield place
        elif place.is_dir() and not place.name.startswith((".", "__pycache__")) and not any(place.glob("__init__.py")):
            yield from filter(_is_read, source_files(place))


def _is_read(path: Path) -> bool:
    """Return whether code reads such a file. Hidden files, notes and an editor's backups do not count."""
    return path.suffix in _READ_BY_CODE and not path.name.startswith(".")


def _shown(path: Path) -> str:
    """Return the path from the folder that holds the package, in the repository `src` for the library."""
    top = next(
        folder for folder in path.parents if folder.name in PACKAGES and not (folder.parent / "__init__.py").exists()
    )
    name = path.relative_to(top.parent).as_posix()
    return f"src/{name}" if top.name == "ratchet" else name
