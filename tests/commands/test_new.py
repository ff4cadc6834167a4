"""`ratchet new`: a project in a folder of its own, on an installed Ratchet."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
KNOWN = {"GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "N",
         "GIT_CONFIG_KEY_1": "user.email", "GIT_CONFIG_VALUE_1": "n@example.com"}  # fmt: skip


class Installed:
    """Ratchet from a wheel, in an environment of its own above the libraries of this one."""

    def __init__(self, folder: Path) -> None:
        self.home, self.programs = folder / "home", folder / "environment" / "bin"
        self.home.mkdir()
        tools, python = Path(sys.executable).parent, self.programs / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.programs.parent)], check=True)
        where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        self.packages = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
        (self.packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
        uv = str(tools / "uv")
        build = [uv, "build", "--quiet", "--offline", "--wheel", "--no-build-isolation", "--python", sys.executable]
        subprocess.run([*build, "--out-dir", str(folder), str(REPOSITORY)], check=True)
        (wheel,) = folder.glob("*.whl")
        install = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(python)]
        subprocess.run([*install, str(wheel)], check=True)

    def run(self, folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "OMP_NUM_THREADS") if name in os.environ}
        own = {"HOME": str(self.home), "PATH": f"{self.programs}:/usr/local/bin:/usr/bin:/bin", "NO_COLOR": "1"}
        environment = kept | own | KNOWN | more
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    def good(self, folder: Path, *command: str, **more: str) -> str:
        done = self.run(folder, *command, **more)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.mark.system
def test_a_project_trains_and_outlives_an_upgrade(installed: Installed, tmp_path: Path) -> None:
    assert "next: cd pets" in installed.good(tmp_path, "ratchet", "new", "pets")
    pets = tmp_path / "pets"
    assert installed.good(pets, "git", "log", "--format=%s") == "New project\n"
    for name in ("tasks", "flows", "commands"):  # of the user, and none of Ratchet's business
        (pets / name).mkdir()
        (pets / name / "__init__.py").write_text("raise SystemExit('not mine')\n")

    short = ["training.epochs=1", "gate.minimum_metric=none", "gate.constant=report", "gate.calibration_error=1.0",
             "registry.export=none", "evaluation.resamples=100", "evaluation.explained_errors=0",
             "evaluation.robustness_rows=20"]  # fmt: skip
    installed.good(pets, "ratchet", "set", *short)
    assert "register: Passed" in installed.good(pets, "ratchet", "train")
    assert "up to date" in installed.good(pets, "python", "-P", "-m", "dvc", "repro")

    messages = installed.packages / "tasks" / "advice.py"  # an upgrade that changes no arithmetic
    messages.write_text(f"{messages.read_text()}\n# a comment\n")
    before = (pets / "ratchet.lock").read_text()
    assert "Nothing to do" in installed.good(pets, "ratchet", "train")
    assert (pets / "ratchet.lock").read_text() != before

    loop = installed.packages / "ratchet" / "training" / "loop.py"  # one that does
    loop.write_text(f"{loop.read_text()}\nNEW = 1\n")
    refused = installed.run(pets, "python", "-P", "-m", "dvc", "repro", "--force")
    assert refused.returncode != 0
    assert "ratchet.lock: names Ratchet" in refused.stderr
    assert "train: convnet" in installed.good(pets, "ratchet", "train")

    done = installed.run(pets, "ratchet", "up")
    assert done.returncode == 1
    assert "__init__.py: Prefect would import it in place of Ratchet's" in done.stdout + done.stderr


@pytest.mark.system
def test_examples_are_used_in_a_project(installed: Installed, tmp_path: Path) -> None:
    installed.good(tmp_path, "ratchet", "new", "two words", "--like", "tabular-regression")
    project = tmp_path / "two words"
    assert "tabular-classification" in installed.good(project, "ratchet", "use")
    installed.good(project, "ratchet", "use", "tabular-classification")
    installed.good(project, "ratchet", "use", "digits")
    text = (project / "params.yaml").read_text()
    assert "  code: own/kind.py" in text
    assert "  code: own/model.py" in text
    assert "$schema=.ratchet/params.schema.json" in text
    assert (project / ".ratchet" / "params.schema.json").exists()
    (project / "params.yaml").write_text("data:\n  path: data/raw\n")
    damaged = installed.run(project, "ratchet", "set", "seed=1").stderr
    assert "data.code: missing. Fix: add it (default: own/kind.py)" in damaged
    installed.good(project, "ratchet", "use", "digits", "--force")
    assert "  code: own/model.py" in (project / "params.yaml").read_text()
    (project / "own" / "model.py").unlink()
    warned = installed.run(project, "ratchet", "set", "model.code=gone.py")
    assert "`ratchet set model.code=own/model.py`" in warned.stdout + warned.stderr


@pytest.mark.system
def test_a_damaged_lock_is_named(installed: Installed, tmp_path: Path) -> None:
    installed.good(tmp_path, "ratchet", "new", "pets")
    lock = tmp_path / "pets" / "ratchet.lock"
    before, stage = lock.read_text(), ("python", "-P", "-m", "tasks.code")
    other = re.sub(r'"code": "\w+"', '"code": "0123456789"', before)
    for content, fault in (
        (other, r"names Ratchet \S+ \(code 01234567\), and \S+ \(code \w{8}\)"),
        ("<<<", "is damaged"),
    ):
        lock.write_text(content)
        assert re.search(rf"ratchet.lock: {fault}", installed.run(lock.parent, *stage).stderr)
    lock.unlink()
    assert "ratchet.lock: is missing" in installed.run(lock.parent, *stage).stderr
    lock.write_text(before)
    installed.good(lock.parent, *stage)
    assert "onnxruntime==" in (installed.packages / "ratchet" / "project_files" / "requirements.txt").read_text()


@pytest.mark.system
def test_a_project_is_made_whatever_git_says(installed: Installed, tmp_path: Path) -> None:
    unknown = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.useConfigOnly", "GIT_CONFIG_VALUE_0": "true"}
    signed = {"GIT_CONFIG_COUNT": "3", "GIT_CONFIG_KEY_2": "commit.gpgsign", "GIT_CONFIG_VALUE_2": "true"}
    cases = {
        "git cannot be run": {"PATH": str(installed.programs)},
        "git does not know you": unknown,
        "git commit failed": signed,
    }
    (tmp_path / "0" / ".draft-killed" / "own").mkdir(parents=True)
    for number, (reason, environment) in enumerate(cases.items()):
        output = installed.good(tmp_path, "ratchet", "new", str(number), **environment)
        note, last = " ".join(output.split()).partition("not committed: ")[2].split(" next: ")
        assert note.startswith(reason), output
        assert ". Fix: " in note
        assert last == f"cd {number}, then ratchet train"
        folder = tmp_path / str(number)
        assert not (folder / ".draft-killed").exists()
        for fix in (("init",), ("add", "--all"), ("commit", "--message", "New")):
            installed.good(folder, "git", *fix)
    names = {f"GIT_{role}_{key}": "me" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    assert "not committed" not in installed.good(tmp_path, "ratchet", "new", "named", **unknown, **names)


@pytest.mark.system
def test_a_folder_with_files_is_not_touched(project, tmp_path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    assert "Allowed: a folder that does not exist, or is empty" in project.refused("ratchet", "new", str(full))
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    assert "Allowed: cifar10" in project.refused("ratchet", "new", str(tmp_path / "a"), "--like", "dogs")
    assert not (tmp_path / "a").exists()
    cloned = tmp_path / "cloned"
    subprocess.run(["git", "init", "--quiet", str(cloned)], check=True)
    project.good("ratchet", "new", str(cloned), **KNOWN)
    assert (cloned / "ratchet.lock").exists()
    below = project.good("ratchet", "new", str(cloned / "below"))
    assert f"it is a folder of the git repository {cloned}" in " ".join(below.split())
    shutil.rmtree(cloned)
