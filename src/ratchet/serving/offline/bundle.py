"""Write an offline bundle: a folder that serves one version with onnxruntime, NumPy and the server's code."""

import re
import shutil
import tempfile
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ratchet
from ratchet import files, settings
from ratchet.checksums import seal
from ratchet.errors import RegistryError, WorkspaceError
from ratchet.exports.example_rows import EXAMPLES
from ratchet.exports.program import ABOUT as PROGRAM_ABOUT
from ratchet.exports.program import PROGRAM, Program
from ratchet.exports.variants import choose
from ratchet.kinds import Input, ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.problems.abstention import ABSTENTION
from ratchet.problems.novelty import NOVELTY
from ratchet.problems.regions import CALIBRATION
from ratchet.project_files import FOLDER
from ratchet.registry.models import ModelRegistry
from ratchet.registry.provenance_record import PROVENANCE_TAG
from ratchet.registry.versions import Version
from ratchet.serving.keys import KeyStore
from ratchet.serving.offline.bundle_server import ABOUT, KEYS, MODEL
from ratchet.serving.process import configured
from ratchet.serving.versions.loaded import Identity
from ratchet.settings.model import ServingSettings
from ratchet.workspace import Workspace

__all__ = ["write_bundle"]

_PACKAGES = [
    "filelock", "httptools", "numpy", "onnxruntime", "orjson", "pillow", "prometheus-client", "psutil", "pydantic",
    "python-multipart", "starlette", "uvicorn", "uvloop",
]  # fmt: skip
_SETTINGS = {"port", "processes", "threads", "deadline", "queue", "rows", "body_mib", "keys"}  # of serving
_SCRIPT = '''"""Serve the model of this folder: python serve.py [--host HOST] [--port PORT]."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "app"))

try:
    from ratchet.serving.offline.bundle_server import main
except ModuleNotFoundError as error:
    sys.exit(f"{error}. Fix: `pip install --require-hashes -r {HERE / 'requirements.txt'}`")

sys.exit(main(HERE))
'''


def write_bundle(workspace: Workspace, reference: str | None, to: Path) -> str:
    """Write the version of a reference, or of serving.model, to the new folder `to`; return a summary.

    Raises:
        RegistryError: there is no such version, or it needs PyTorch.
        WorkspaceError: `to` exists.
    """
    if to.exists():
        raise WorkspaceError(f"--offline-bundle: {to} exists. Fix: name a new folder")
    params = settings.load(workspace.params)
    registry = ModelRegistry(workspace, params)
    version = registry.find(reference or configured(workspace, params))
    with tempfile.TemporaryDirectory(prefix="ratchet-bundle-") as place, files.draft_directory(to) as draft:
        folder = registry.copy_files(version, Path(place))
        spec = ModelSpec.from_json(files.read_json(folder / "model.json")["spec"])
        variant, program = choose(folder, params.serving.variant, called=version.uri)
        _check(version.uri, spec.input, program)
        assert isinstance(program, Program), "it was checked"
        _copy_model(folder, program.path.parent, draft / MODEL)
        source = Path(ratchet.__file__).parent
        shutil.copytree(source, draft / "app" / "ratchet", ignore=shutil.ignore_patterns("__pycache__"))
        (draft / "serve.py").write_text(_SCRIPT, encoding="utf-8")
        (draft / "requirements.txt").write_text(_requirements(spec.input), encoding="utf-8")
        _write_about(workspace, params.serving, version, variant, draft)
    return (
        f"{version.name} version {version.number} ({variant}) is in {to}. To start it: `python {to / 'serve.py'}`, in "
        "an environment with the packages of its requirements.txt"
    )


def _write_about(workspace: Workspace, serving: ServingSettings, version: Version, variant: str, bundle: Path) -> None:
    """Write bundle.json, and copy the keys if there are any."""
    store = KeyStore.of(workspace)
    if store.read():
        shutil.copy2(store.path, bundle / KEYS)
    if store.required:  # also where the bundle's file of keys is lost
        serving = serving.model_copy(update={"keys": "required"})
    identity = Identity(version.name, version.number, version.run_id, version.tags.get(PROVENANCE_TAG), variant)
    about = {
        "format": 1,
        "identity": asdict(identity),
        "checksums": files.digest_json(seal(bundle / MODEL)),
        "serving": serving.model_dump(mode="json", include=_SETTINGS),
    }
    files.write_json(bundle / ABOUT, about)


def _check(called: str, input_spec: Input, program: object) -> None:
    kind, problem = kind_of(input_spec), ""
    if kind.generates:
        problem = "is a language model, whose texts PyTorch generates"
    elif kind.has_user_code:
        problem = "has inputs of a kind of your own, whose module may need any package"
    elif not isinstance(program, Program):
        problem = "has no ONNX program"
    if problem:
        raise RegistryError(f"{called}: {problem}, so it cannot be served without PyTorch. Fix: `ratchet serve`")


def _copy_model(folder: Path, program: Path, to: Path) -> None:
    """Copy the description, the calibrations, and one program with its example rows."""
    to.mkdir()
    shutil.copy(folder / "model.json", to / "model.json")
    calibrations = (program / name for name in (CALIBRATION, ABSTENTION, NOVELTY))
    for path in (*calibrations, program / PROGRAM_ABOUT, program / EXAMPLES, *program.glob(f"{PROGRAM}*")):
        if path.exists():
            shutil.copy(path, to / path.name)


def _requirements(input_spec: Input) -> str:
    """Return the lines of Ratchet's requirements.txt for the packages that the server needs, with their hashes."""
    wanted = [*_PACKAGES, *kind_of(input_spec).packages]
    needed, path = set[str](), FOLDER / "requirements.txt"
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name not in needed:
            needed.add(name)
            wanted += _dependencies(name)
    if not path.exists():
        raise WorkspaceError(f"{path}: not found. Fix: run the command in a checkout of ratchet")
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", path.read_text(encoding="utf-8"))
    return "".join(block for block in blocks if (match := re.match(r"[\w.-]+", block)) and match[0] in needed)


def _dependencies(name: str) -> list[str]:
    try:
        parsed = map(Requirement, requires(name) or [])
    except PackageNotFoundError:  # not on this system, such as uvloop on Windows
        return []
    return [each.name for each in parsed if each.marker is None or each.marker.evaluate({"extra": ""})]
