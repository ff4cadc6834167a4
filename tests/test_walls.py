"""The walls between the rooms, held by processes of their own: a room is shown to work without what it may not know."""

import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.settings.model import TrainingSettings

OTHERS = (
    "prefect",
    "mlflow",
    "dvc",
    "pandas",
    "polars",
    "pandera",
    "pydantic",
    "pyarrow",
    "sklearn",
    "scipy",
    "torchvision",
    "rich",
    "typer",
    "ruamel.yaml",
    "filelock",
)
# Runs before anything else. torch may import what it likes but these; the house itself, torch, NumPy and safetensors.
BARRED = f"""
import importlib.abc, importlib.machinery, sys

OTHERS = { ({name.partition(".")[0] for name in OTHERS}) }

class Bar(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        frame = sys._getframe(1)
        while frame and frame.f_code.co_filename.startswith("<frozen"):
            frame = frame.f_back
        importer = frame.f_globals.get("__name__", "").partition(".")[0] if frame else ""
        known = top in sys.stdlib_module_names or top in {{"torch", "numpy", "safetensors", "ratchet"}}
        torchs_own = top == "filelock" and importer == "torch"
        if (top in OTHERS and not torchs_own) or (importer in {{"ratchet", "__main__"}} and not known):
            return importlib.machinery.ModuleSpec(name, self)  # torch only asks whether some are there

    def exec_module(self, module):
        raise ModuleNotFoundError(f"{{module.__name__}} is barred here", name=module.__name__)

sys.meta_path.insert(0, Bar())
"""
SETTINGS = TrainingSettings(epochs=2, batch_size=8, device="cpu", precision="bf16", flip="random", checkpoint_steps=2)
TRAINS = (
    f"""
PLAN = { {"seed": 0, **SETTINGS.model_dump()}!r}
"""
    + """
import tempfile
from pathlib import Path

import numpy as np
from ratchet.kinds import image_spec
from ratchet.training import CheckpointStore, Finished, ImageSplit, Plan, TrainingInputs, fit
from ratchet.training import load_model, predict_outputs, save_model, resolve_auto

def split(name, rows, first):
    generator = np.random.default_rng(first)
    labels = generator.integers(0, 2, rows)
    images = (generator.integers(0, 100, (rows, 8, 8, 1)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    return ImageSplit.of(name, [images], labels, np.arange(first, first + rows, dtype=np.uint64))

folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
spec = image_spec("convnet", ("dark", "bright"), 1, 8, 8, (100.0,), (60.0,))
train, validation = split("train", 24, 0), split("validation", 8, 100)
plan = resolve_auto(Plan(**PLAN), spec.target)
store = CheckpointStore(folder / "checkpoints")
inputs = TrainingInputs(train, validation, spec, plan, identity={"data": "made here"})
*_, finished = fit(inputs, store=store)
assert isinstance(finished, Finished) and finished.step == 6
save_model(folder, finished.weights, spec, about={})
assert predict_outputs(load_model(folder)[0], validation).shape == (8, 2)
assert "torch._dynamo" not in sys.modules  # the compiler: over a second, which is needless here
print("trained to step", finished.step)
"""
)


def python(program: str, *arguments: str) -> str:
    """Run a program in a process of its own; what it printed."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_needs_torch_numpy_and_safetensors_alone(tmp_path) -> None:
    assert python(BARRED + TRAINS, str(tmp_path)).splitlines()[-1] == "trained to step 6"


@pytest.mark.parametrize("name", OTHERS)
def test_the_bar_bars(name: str) -> None:
    """Each is installed, so that only the bar keeps it out."""
    assert importlib.util.find_spec(name) is not None
    with pytest.raises(AssertionError, match="is barred here"):
        python(f"{BARRED}\nimport {name}")


# REST paths of Prefect's server, and what automations and blocks are written in.
PREFECT = re.compile(
    r"/(automations|block_(documents|types|schemas)|collections/views|concurrency_limits|deployments/|events\b(?!/in)"
    r"|flow_runs|flows/|set_state|work_pools|work_queues)"
    r"|base_job_template|block_document|block_schema|block_type|call-webhook|match_related|posture|send-notification"
)


def test_library_has_no_prefect_paths_automations_or_blocks() -> None:
    """All that speaks to Prefect's server is in flows/."""
    root = Path(__file__).parents[1]
    hits = {
        folder: [
            f"{path.relative_to(root)}:{number}: {match[0]}"
            for path in sorted((root / folder).rglob("*"))
            if path.suffix in (".py", ".j2", ".yaml", ".toml", ".json")
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if (match := PREFECT.search(line))
        ]
        for folder in ("src", "tasks", "flows/server")
    }
    assert hits["flows/server"], "the pattern finds what it looks for where it is allowed"
    assert hits["src"] + hits["tasks"] == []


# A test waits for a condition, never for a time; no other process can take its port before its server does.
BANNED = {
    r"\bsleep\(|import.*\bsleep\b": ("waiting.py", "reaper.py"),
    r"\bfree_port\(|import.*\bfree_port\b": (),
}


@pytest.mark.parametrize(("pattern", "allowed"), BANNED.items(), ids=["sleep", "free_port"])
def test_tests_use_until_and_reserved_port(pattern: str, allowed: tuple[str, ...]) -> None:
    tests = Path(__file__).parent
    hits = [
        f"{path.relative_to(tests)}:{number}"
        for path in sorted(tests.rglob("*.py"))
        if path.relative_to(tests).as_posix() not in allowed
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line) and path != Path(__file__)
    ]
    assert hits == [], "use `until` of tests/waiting.py, and `reserved_port` of tests/ports.py"


def test_help_imports_none_of_the_heavy_ones() -> None:
    program = """
import sys
sys.argv = ["ratchet", "--help"]
from commands.cli import main
try:
    main()
except SystemExit as leaving:
    assert leaving.code in (0, None), leaving.code
heavy = {
    "torch", "torchvision", "mlflow", "matplotlib", "prefect", "dvc", "pandas", "polars", "pandera", "sklearn",
    "scipy", "numpy",
}
print("heavy:", sorted(heavy & set(sys.modules)))
"""
    printed = python(program)
    assert "Usage" in printed
    assert printed.splitlines()[-1] == "heavy: []"


def modules(room: str) -> list[str]:
    package = importlib.import_module(room)
    return [room, *(module.name for module in pkgutil.walk_packages(package.__path__, f"{room}."))]


@pytest.mark.parametrize("name", modules("ratchet.training"))
def test_public_names_are_what_all_says(name: str) -> None:
    """Every name in __all__ is there, once."""
    module = importlib.import_module(name)
    assert len(module.__all__) == len(set(module.__all__))
    missing = [public for public in module.__all__ if not hasattr(module, public)]
    assert not missing


def test_the_training_room_offers_exactly_its_public_names() -> None:
    from ratchet import training

    inner = {name.rpartition(".")[2] for name in modules("ratchet.training")}
    offered = {name for name in vars(training) if not name.startswith("_")} - inner
    assert offered == set(training.__all__) - inner
    namespace: dict[str, object] = {}
    exec("from ratchet.training import *", namespace)
    assert {name for name in namespace if not name.startswith("__")} == set(training.__all__)
