"""What a piece of work costs: time on the clock, on processors and on GPUs, and energy where the hardware tells."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Cost", "Meter", "add", "spoken"]

POWERCAP = Path("/sys/class/powercap")  # where Linux shows the processor's energy, if it lets us read it


@dataclass(frozen=True)
class Cost:
    """What was spent, in seconds and joules."""

    wall: float
    cpu: float  # of the process, its threads and its children
    gpu: float  # on the clock, times the GPUs used
    energy: Mapping[str, float] = field(default_factory=dict)  # joules, by what was measured: GPU, processor
    attempts: int = 1

    @property
    def words(self) -> str:
        """One line for a person: "23 s wall, 41 CPU-seconds"."""
        parts = [spoken("wall", self.wall), spoken("cpu", self.cpu)]
        if self.gpu:
            parts.append(spoken("gpu", self.gpu))
        if self.energy:
            parts.append(f"{_rounded(sum(self.energy.values()) / 3600)} Wh ({' and '.join(sorted(self.energy))})")
        again = f", in {self.attempts} attempts" if self.attempts > 1 else ""
        return ", ".join(parts) + again

    def metrics(self) -> dict[str, float]:
        """What is known of it, under MLflow's names for it."""
        hours = {"wall": self.wall / 3600, "cpu": self.cpu / 3600, "gpu": self.gpu / 3600}
        told = {f"cost/{name}_hours": value for name, value in hours.items()}
        return told | ({"cost/energy_wh": sum(self.energy.values()) / 3600} if self.energy else {})

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` reads it."""
        return {"wall": self.wall, "cpu": self.cpu, "gpu": self.gpu, "energy": dict(self.energy)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Cost":
        """The cost that `to_json` wrote."""
        return cls(**{name: content[name] for name in ("wall", "cpu", "gpu", "energy")})


def add(costs: Iterable[Cost]) -> Cost | None:
    """Several attempts' together; None of none. Energy that one of them does not know, all do not know."""
    known = list(costs)
    if not known:
        return None
    measured = set.intersection(*(set(one.energy) for one in known))
    return Cost(
        wall=sum(one.wall for one in known),
        cpu=sum(one.cpu for one in known),
        gpu=sum(one.gpu for one in known),
        energy={name: sum(one.energy[name] for one in known) for name in sorted(measured)},
        attempts=len(known),
    )


class _Energy(Protocol):
    """Something that counts joules."""

    name: str

    def joules(self) -> float | None:
        """Since the first call, which gives 0; None: it cannot be read."""


class Meter:
    """What this process spends from now on. Energy is that of the whole device: whoever else uses it is counted in."""

    def __init__(self, *, powercap: Path = POWERCAP) -> None:
        self.attempt = uuid.uuid4().hex[:12]
        self._began, self._cpu = time.monotonic(), _cpu_seconds()
        self._gpu_began: float | None = None
        self._energy: list[_Energy] = [_ProcessorEnergy(powercap)]
        self._told = -float("inf")
        self.spent()  # from here on the counters count

    def use(self, device: str) -> None:
        """From now on it works on this device, as PyTorch names it (cpu, cuda, cuda:1, mps)."""
        if device.startswith(("cuda", "mps")):
            self._gpu_began = time.monotonic()
        if device.startswith("cuda"):
            self._energy.append(_GpuEnergy(device))
            self.spent()

    def spent(self) -> Cost:
        """What was spent so far."""
        now = time.monotonic()
        joules = {one.name: one.joules() for one in self._energy}
        return Cost(
            wall=now - self._began,
            cpu=max(0.0, _cpu_seconds() - self._cpu),
            gpu=now - self._gpu_began if self._gpu_began is not None else 0.0,
            energy={name: value for name, value in joules.items() if value is not None},
        )

    def is_due(self, *, every: float = 5.0) -> bool:
        """Whether so many seconds went by since it last was: reading it takes milliseconds."""
        if time.monotonic() - self._told < every:
            return False
        self._told = time.monotonic()
        return True


def _cpu_seconds() -> float:
    """Of this process with its threads, its children that ended, and those that still run."""
    import psutil

    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended just now
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)


class _ProcessorEnergy:
    """RAPL, by which processors of Intel and AMD count their energy: all packages of the machine.

    https://docs.kernel.org/power/powercap/powercap.html. The counters begin again at `max_energy_range_uj`, so what
    was spent is added up at every reading, and read often enough it is right.
    """

    name = "processor"

    def __init__(self, powercap: Path) -> None:
        self._zones = [
            zone for zone in sorted(powercap.glob("intel-rapl:*")) if _read(zone / "name").startswith("package")
        ]
        self._last: list[int] | None = None
        self._spent = 0

    def joules(self) -> float | None:
        try:
            now = [int(_read(zone / "energy_uj")) for zone in self._zones]
            spans = [int(_read(zone / "max_energy_range_uj")) for zone in self._zones]
        except ValueError:  # kernels since 5.10 let root alone read it
            return None
        if not now:
            return None
        for before, after, span in zip(self._last or now, now, spans, strict=True):
            self._spent += after - before if after >= before else after + span - before
        self._last = now
        return self._spent / 1e6


def _read(path: Path) -> str:
    """A file's text; none where it may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class _GpuEnergy:
    """What an NVIDIA GPU (Volta and later) counts since its driver was loaded, by NVML."""

    name = "GPU"

    def __init__(self, device: str) -> None:
        self._device = device
        self._first: float | None = None

    def joules(self) -> float | None:
        import pynvml
        import torch

        try:
            pynvml.nvmlInit()
            # By its UUID: CUDA's numbers are not NVML's.
            identity = str(torch.cuda.get_device_properties(torch.device(self._device)).uuid)
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity}".encode())
            now = float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except pynvml.NVMLError:  # an older one, or a slice of one (MIG), has no such counter
            return None
        self._first = now if self._first is None else self._first
        return now - self._first


def spoken(what: str, seconds: float) -> str:
    """Time of one kind (wall, cpu, gpu) for a person: "23 s wall", "3.5 GPU-hours"."""
    name = what.upper()
    short, middle, long = (
        (" s wall", " min wall", " h wall")
        if what == "wall"
        else (f" {name}-seconds", f" {name}-minutes", f" {name}-hours")
    )
    if seconds < 120:
        return _rounded(seconds) + short
    return _rounded(seconds / 60) + middle if seconds < 7200 else _rounded(seconds / 3600) + long


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
