"""A place to run stages in where nothing of it stays."""

from dataclasses import dataclass
from pathlib import Path

from ratchet.workspace import Workspace

__all__ = ["Scratch"]


@dataclass(frozen=True)
class Scratch(Workspace):
    """The project as it is, but for the settings and for everything that a stage writes: they lie in `folder`."""

    folder: Path

    @property
    def params(self) -> Path:
        return self.folder / "params.yaml"

    @property
    def packed(self) -> Path:
        return self.folder / "packed"

    @property
    def quarantine(self) -> Path:
        return self.folder / "quarantine.parquet"

    @property
    def running(self) -> Path:
        return self.folder / "running"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    @property
    def registration(self) -> Path:
        return self.folder / "registration.json"

    @property
    def mlruns(self) -> Path:
        return self.folder / "mlruns"

    @property
    def state(self) -> Path:
        return self.folder / "state"
