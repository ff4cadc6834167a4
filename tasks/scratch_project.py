"""A place to run stages in where nothing of it stays."""

from dataclasses import dataclass
from pathlib import Path

from ratchet.settings.model import BudgetSettings
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
    def data(self) -> Path:
        return self.folder

    @property
    def mlruns(self) -> Path:
        return self.folder / "mlruns"

    @property
    def own(self) -> dict[str, object]:
        """The settings, by dotted key, under which MLflow's runs stay in the folder, and no budget cuts them off."""
        unlimited = {f"budget.{name}": 0.0 for name in BudgetSettings.model_fields}
        return {"tracking.uri": f"sqlite:///{self.mlruns / 'mlflow.db'}", "tracking.artifacts": "auto", **unlimited}

    @property
    def state(self) -> Path:
        return self.folder / "state"
