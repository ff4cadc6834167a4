""".ratchet/servers.json: what `up` started and has not yet been stopped."""

from dataclasses import dataclass, field
from pathlib import Path

from ratchet import files
from ratchet.errors import PlatformError
from ratchet.platform.processes import Part
from ratchet.workspace import Workspace

__all__ = ["Record"]


@dataclass
class Record:
    """The parts by name, and what the deployments were made from. Written after every change."""

    path: Path
    parts: dict[str, Part] = field(default_factory=dict)
    deployed: str = ""

    @classmethod
    def read(cls, workspace: Workspace) -> "Record":
        """What the file says; nothing if there is none.

        Raises:
            PlatformError: it is damaged, so that nobody knows what was started.
        """
        path = cls.place(workspace)
        if not path.exists():
            return cls(path)
        try:
            content = files.read_json(path)
            parts = [Part.from_json(part) for part in content["parts"]]
            return cls(path, {part.name: part for part in parts}, str(content["deployed"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlatformError(
                f"{path}: damaged ({error}): end the servers by hand (`ps -ef | grep ratchet/platform/guard.py` shows "
                f"their pids), then delete {path}"
            ) from error

    @staticmethod
    def place(workspace: Workspace) -> Path:
        """Where the file is, if anything was started."""
        return workspace.state / "servers.json"

    @property
    def api(self) -> str | None:
        """Prefect's API that what was started goes by; None where nothing goes by any."""
        prefect, worker = self.parts.get("prefect"), self.parts.get("worker")
        if prefect:
            return f"{prefect.address}/api"
        return worker.address if worker else None

    def write(self) -> None:
        """Make the file say this; without parts there is no file."""
        if self.parts:
            content = {"parts": [part.to_json() for part in self.parts.values()], "deployed": self.deployed}
            files.write_json(self.path, content)
        else:
            self.path.unlink(missing_ok=True)

    def add(self, part: Part) -> None:
        self.parts[part.name] = part
        self.write()

    def end(self, name: str, *, grace: float) -> int:
        """End the part of that name, if there is one, and forget it. Returns: how many processes had to be killed."""
        part = self.parts.get(name)
        if part is None:
            return 0
        killed = part.end(grace=grace)
        del self.parts[name]
        self.write()
        return killed
