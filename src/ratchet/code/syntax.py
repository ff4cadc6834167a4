"""Digest of a source file by its normalised syntax tree.

These do not count: comments, formatting, docstrings, blocks of `if TYPE_CHECKING`, messages of assertions, and
annotations that nothing reads at run time, which are those of local variables and of functions without a decorator.
Class bodies keep theirs: dataclasses and pydantic read them. Empty fields are left out, so that a version of Python
that adds one gives the same digest.
"""

import ast
import hashlib
from pathlib import Path
from typing import Any

__all__ = ["digest_code", "digest_nodes", "normal_nodes", "source_files"]

_IGNORED = frozenset({"ctx", "kind", "type_comment"})
_READ_NO_ANNOTATION = frozenset({"abstractmethod", "cached_property", "classmethod", "property", "staticmethod"})
_READ = 2  # marks an annotation of a class body, in a field of the node that is 0 or 1
_FATAL = frozenset({"CheckpointError", "TrainingError"})


def source_files(place: Path) -> list[Path]:
    """Return the file, or the files in a folder, without hidden and compiled ones."""
    if place.is_file():
        return [place]
    paths = ((path, path.relative_to(place).parts) for path in place.rglob("*") if path.is_file())
    return sorted(path for path, names in paths if not any(name.startswith((".", "__pycache__")) for name in names))


def digest_code(path: Path) -> str:
    """Return the digest of a file: of a Python file what it does, of any other file its bytes."""
    content = path.read_bytes()
    nodes = normal_nodes(content) if path.suffix == ".py" else None
    return digest_nodes(nodes)[0] if nodes else hashlib.sha256(content).hexdigest()[:16]


def digest_nodes(nodes: list[ast.AST]) -> tuple[str, str]:
    """Return two digests of what `normal_nodes` returned: of all of it, and without the texts of fatal errors.

    Those errors end a training, so that no weight depends on their texts; a report may.
    """
    whole = _digest(nodes[0], messages=True)
    has_fatal = any(isinstance(node, ast.Raise) and _is_fatal(node.exc) for node in nodes)
    return whole, _digest(nodes[0], messages=False) if has_fatal else whole


def _digest(node: ast.AST, *, messages: bool) -> str:
    return hashlib.sha256(repr(_plain(node, messages)).encode(errors="surrogatepass")).hexdigest()[:16]


def normal_nodes(content: bytes) -> list[ast.AST] | None:
    """Parse Python and remove what does not count. Return all nodes, the module first; None if it is not valid."""
    try:
        todo: list[ast.AST] = [ast.parse(content)]
    except (SyntaxError, ValueError):
        return None
    nodes = []
    while todo:
        nodes.append(node := todo.pop())
        _strip(node)
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                todo.append(value)
            elif isinstance(value, list):
                value[:] = [item for line in value for item in _counting(line)]
                todo += [item for item in value if isinstance(item, ast.AST)]
    return nodes


def _strip(node: ast.AST) -> None:
    match node:
        case ast.ClassDef():
            for line in node.body:
                if isinstance(line, ast.AnnAssign):
                    line.simple = _READ
        case ast.AnnAssign() if node.simple != _READ:
            node.annotation = ast.Constant(None)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
            if decorators <= _READ_NO_ANNOTATION:
                node.returns = None
                rest = [argument for argument in (node.args.vararg, node.args.kwarg) if argument]
                for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *rest):
                    argument.annotation = None
        case ast.Assert():
            node.msg = None


def _counting(line: Any) -> list[Any]:
    """Return the statements that count in place of one."""
    if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
        return []
    if isinstance(line, ast.If) and ast.unparse(line.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return [statement for other in line.orelse for statement in _counting(other)]
    return [line]


def _plain(node: Any, messages: bool) -> Any:
    """Return a node as nested tuples, without places in the file and empty fields."""
    if not isinstance(node, ast.AST):
        return [_plain(item, messages) for item in node] if isinstance(node, list) else node
    if isinstance(node, ast.Constant):
        return ("Constant", node.value)
    if not messages and isinstance(node, ast.Raise) and _is_fatal(node.exc):
        parts = [part for argument in node.exc.args for part in _values(argument)]  # type: ignore[union-attr]
        return ("Raise", ast.unparse(node.exc.func), _plain(parts, messages), _plain(node.cause, messages))  # type: ignore[union-attr]
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if value is not None and value != [] and name not in _IGNORED:
            fields.append((name, _plain(value, messages)))
    return (type(node).__name__, *fields)


def _is_fatal(error: ast.expr | None) -> bool:
    return isinstance(error, ast.Call) and not error.keywords and ast.unparse(error.func) in _FATAL


def _values(argument: ast.expr) -> list[ast.expr]:
    """Return what a message computes: the values in it, without its words."""
    if isinstance(argument, ast.JoinedStr):
        return [part for part in argument.values if not isinstance(part, ast.Constant)]
    return [] if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else [argument]
