"""The prediction intervals or sets of one version, at the level that a client asks for."""

from pathlib import Path
from typing import Any

from ratchet.errors import RegistryError
from ratchet.kinds.protocol import InputError
from ratchet.problems import Target
from ratchet.problems.regions import CALIBRATION, LEVELS, REGIONS, Calibration, Regions
from ratchet.typed_json import parse

__all__ = ["VersionRegions"]

_ALLOWED = f"{LEVELS.start / 100:g} to {LEVELS[-1] / 100:g} in steps of 0.01"
_ROUNDING = 1e-9


class VersionRegions:
    """Regions of a version.

    Attributes:
        calibration: None: the version has none.
    """

    def __init__(self, called: str, target: Target, folder: Path) -> None:
        """Read the calibration from the folder of the version's verified files. `called` names it in messages.

        Raises:
            RegistryError: a newer ratchet wrote it.
        """
        self._called, self._target = called, target
        path = folder / CALIBRATION
        try:
            self.calibration = parse(Calibration, path.read_bytes()) if path.exists() else None
        except ValueError as error:
            raise RegistryError(f"{CALIBRATION}: {error}. Fix: use the ratchet that registered it") from error

    def has(self, percent: int | None) -> bool:
        """Return whether there are regions at a level; None: none is asked for."""
        return percent is None or (self.calibration is not None and percent <= self.calibration.highest)

    def percent(self, level: Any, field: str) -> int:
        """Return a level such as 0.9 in per cent.

        Raises:
            InputError: naming the field: it is no level, or the version has no regions at it.
        """
        if self._target.problem not in REGIONS:
            raise InputError(
                f"{field}: {self._called} predicts {self._target.description}; allowed for versions that predict "
                "numbers or one of several classes. Fix: leave it out"
            )
        is_number = isinstance(level, int | float) and not isinstance(level, bool)
        percent = round(100 * level) if is_number and 0 < level < 1 else 0
        if percent not in LEVELS or abs(100 * level - percent) > _ROUNDING:
            raise InputError(f"{field}: found {level!r}; allowed: {_ALLOWED}")
        if self.calibration is None:
            raise InputError(
                f"{field}: {self._called} was registered without prediction intervals. Fix: train a new version, "
                "`ratchet train --set seed=1` for example, or leave it out"
            )
        if not self.has(percent):
            raise InputError(f"{field}: found {level!r}; {self._few(self.calibration)}")
        return percent

    def at(self, percent: int) -> Regions:
        """Return the regions at a level that `percent` has returned."""
        assert self.calibration, "`percent` checks it"
        return REGIONS[self._target.problem](self._target, self.calibration.at(percent))

    def _few(self, calibration: Calibration) -> str:
        highest, rows = calibration.highest, calibration.rows
        allowed = f"up to {highest / 100:g}" if highest in LEVELS else "none"
        return (
            f"allowed: {allowed}, because {rows:,} validation samples calibrate {self._called}. Fix: a lower level, or "
            "a version with more validation samples (data.validation_fraction)"
        )
