"""Temporary workspace: stages run on the real project, but write elsewhere."""

from dataclasses import dataclass
from pathlib import Path

from ratchet.settings.model import BudgetSettings
from ratchet.workspace import Workspace

__all__ = ["ScratchProject"]


@dataclass(frozen=True)
class ScratchProject(Workspace):
    """The project, with settings and outputs in `folder`."""

    folder: Path

    @property
    def params(self) -> Path:
        return self.folder / "params.yaml"

    @property
    def data(self) -> Path:
        return self.folder

    @property
    def mlruns(self) -> Path:
        return self.folder / "mlruns"

    @property
    def own(self) -> dict[str, object]:
        """Settings, by dotted key, that keep MLflow's runs in the folder and remove the budget."""
        unlimited = {f"budget.{name}": 0.0 for name in BudgetSettings.model_fields}
        return {"tracking.uri": f"sqlite:///{self.mlruns / 'mlflow.db'}", "tracking.artifacts": "auto", **unlimited}

    @property
    def state(self) -> Path:
        return self.folder / "state"
