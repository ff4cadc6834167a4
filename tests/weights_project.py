"""A project whose commands look for pretrained weights in caches of its own, and at servers on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import fork_server

from ratchet import settings
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[1]
_VARIABLES = ("TORCH_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "RATCHET_ROOT", "HF_TOKEN")


class Project:
    def __init__(self, root: Path) -> None:
        self.workspace = Workspace(root / "project")
        self.workspace.root.mkdir()
        self.workspace.params.write_text(settings.template())
        (self.workspace.root / "examples").symlink_to(REPOSITORY / "examples")
        (self.workspace.root / "data" / "raw" / "photos" / "cats").mkdir(parents=True)
        self.environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self.environment |= {"XDG_CACHE_HOME": str(root / "cache"), "PYTHONPATH": str(REPOSITORY)}
        for name in (*_VARIABLES, "HF_ENDPOINT", "HF_HUB_OFFLINE"):
            self.environment.pop(name, None)
        self.cache = root / "cache"

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "commands", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.workspace.root,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command that ends with `code`; return what it prints."""
        command, root = ["ratchet", *arguments], self.workspace.root
        done = fork_server.shared().run(command, cwd=root, environment=self.environment)
        assert done.returncode == code, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout

    @property
    def files(self) -> list[str]:
        """Names of all files in and beside data/pretrained."""
        return sorted(path.name for path in self.workspace.data.rglob("*") if path.is_file())
