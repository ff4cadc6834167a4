"""Import of a user's own function or class from the project, or from the copy in a saved model.

The copy makes the folder of a model complete: it loads in any process, even if the file of the project has changed.
"""

import importlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ratchet import files
from ratchet.code.syntax import digest_code, source_files
from ratchet.errors import TrainingError

__all__ = ["CustomCode"]

_OUR_PACKAGES = ("commands", "flows", "ratchet", "tasks")
_imported: dict[str, str] = {}  # name in sys.modules -> digest of all the code imported with it


@dataclass(frozen=True)
class CustomCode:
    """The user's code: the file or folder `place` in `root`, named by the setting `code` of a section."""

    root: Path
    place: str
    setting: str = "model.factory"  # that names the function or class: also data.kind, training.loss ...

    @property
    def section(self) -> str:
        """The section whose setting `code` names the place: model and functions for it share model.code."""
        return "data" if self.setting == "data.kind" else "model"

    def files(self) -> list[Path]:
        """Return its files as paths from `root`, without hidden and compiled ones.

        Raises:
            TrainingError: there is no such file or folder in `root`.
        """
        place = (self.root / self.place).resolve()
        if not place.exists() or self.root.resolve() not in place.parents:
            raise TrainingError(
                f"{self.section}.code: {self.place} is not a file or folder in the project folder "
                f"{self.root.resolve()}. Fix: set it to the one that holds the module of {self.setting}"
            )
        return [path.relative_to(self.root.resolve()) for path in source_files(place)]

    def digests(self) -> dict[str, str]:
        """Return the digest of each file by its path: of Python files what they do, without comments."""
        return {path.as_posix(): digest_code(self.root / path) for path in self.files()}

    def load(self, name: str) -> Callable[..., Any]:
        """Import and return the function `name` ("package.module:function") from these files.

        A changed file, or the same name in another root, is imported again.

        Raises:
            TrainingError: there is no such module or function, the import fails, or it needs other files. DVC
                would not see a change of those, and a saved model would lack them.
        """
        module_name, _, function = name.partition(":")
        self._require_file(module_name)
        module = self._import(module_name)
        attribute: Callable[..., Any] | None = getattr(module, function, None)
        if not callable(attribute):
            raise TrainingError(
                f"{self.setting}: {module_name} has no function or class {function}. Allowed: {_functions(module)}"
            )
        return attribute

    def _require_file(self, module: str) -> None:
        top = module.partition(".")[0]
        if _is_taken(top):
            raise TrainingError(
                f"{self.setting}: the name {top} is taken by an installed package. Fix: rename your file or folder"
            )
        path = _file_of(module, self.root)
        if path is None:
            wanted = module.replace(".", "/")
            raise TrainingError(
                f"{self.setting}: no module {module}: there is neither {wanted}.py nor {wanted}/__init__.py "
                f"in the project folder {self.root.resolve()}"
            )
        if path.relative_to(self.root) not in self.files():
            raise self._outside(module, path.relative_to(self.root))

    def _outside(self, module: str, path: Path) -> TrainingError:
        return TrainingError(
            f"{self.setting}: {module} ({path}) is outside {self.section}.code ({self.place}), so DVC "
            f"would not see a change of it. Fix: set {self.section}.code to {path.parts[0]}, or to the file or "
            "folder that holds all its code"
        )

    def _import(self, module: str) -> ModuleType:
        before = sys.modules.copy()
        try:
            with self._importing():
                imported = importlib.import_module(module)
                self._require_inside(_new(before))
        except (Exception, SystemExit) as error:
            for name in _new(before):
                if _file_of(name, self.root) is not None:
                    del sys.modules[name]  # otherwise the next attempt would not import it again
            if isinstance(error, TrainingError):
                raise
            raise TrainingError(  # the user's code may raise anything
                f"{self.setting}: {module} does not import ({type(error).__name__}: {error}). Fix: "
                f"correct {_file_of(module, self.root)}"
            ) from error
        return imported

    @contextmanager
    def _importing(self) -> Iterator[None]:
        """Let modules be imported from `root`, before others of the same name."""
        inside = self.files()
        digest = files.digest_json(
            {str(self.root.resolve() / path): files.digest_file(self.root / path) for path in inside}
        )
        modules = [
            ".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in inside if path.suffix == ".py"
        ]
        tops = {name.partition(".")[0] for name in modules}
        for name, module in sys.modules.copy().items():  # another thread may import at the same time
            if name in modules:
                stale = _imported.get(name) != digest
            else:
                stale = name.partition(".")[0] in tops and not _is_of(module, name, self.root)
            if stale:
                del sys.modules[name]
        search, writes_bytecode = str(self.root.resolve()), sys.dont_write_bytecode
        sys.path.insert(0, search)
        sys.dont_write_bytecode = True  # the folder may be an output of DVC, whose content must not change
        importlib.invalidate_caches()
        try:
            yield
            _imported.update(dict.fromkeys(modules, digest))
        finally:
            sys.path.remove(search)
            sys.dont_write_bytecode = writes_bytecode

    def _require_inside(self, names: list[str]) -> None:
        """Refuse modules of the project that are not among these files."""
        inside = self.files()
        for name in names:
            path = _file_of(name, self.root)
            if (
                path is None
                or name.partition(".")[0] in _OUR_PACKAGES
                or not _is_of(sys.modules[name], name, self.root)
            ):
                continue
            if path.relative_to(self.root) not in inside:
                raise self._outside(name, path.relative_to(self.root))


def _file_of(module: str, root: Path) -> Path | None:
    place = root.joinpath(*module.split("."))
    candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _is_taken(top: str) -> bool:
    """Whether the standard library, Ratchet or an imported package has this name, which must not be replaced."""
    if top in sys.stdlib_module_names or top in _OUR_PACKAGES:
        return True
    origin = getattr(sys.modules.get(top), "__file__", None)
    return origin is not None and any(
        Path(sysconfig.get_path(kind)) in Path(origin).parents for kind in ("purelib", "platlib")
    )


def _new(before: dict[str, ModuleType]) -> list[str]:
    now = sys.modules.copy().items()  # a list of the items lets the garbage collector run, and another thread import
    return sorted(name for name, module in now if before.get(name) is not module)


def _is_of(module: ModuleType, name: str, root: Path) -> bool:
    """Whether an imported module was read from `root`."""
    path, origin = _file_of(name, root), getattr(module, "__file__", None)
    return path is not None and origin is not None and path.resolve() == Path(origin).resolve()


def _functions(module: ModuleType) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    ]
    return ", ".join(own) or "none"
