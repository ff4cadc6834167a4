"""Cost of a training: wall time, CPU time, GPU time, and energy where the hardware measures it."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["CostMeter", "TrainingCost", "add", "time_text"]

NO_RESULT = {"train": "it measures time and energy; the cost is no output of this stage"}

POWERCAP = Path("/sys/class/powercap")  # energy counters of the processor, on Linux


@dataclass(frozen=True)
class TrainingCost:
    """Cost in seconds and joules."""

    wall: float
    cpu: float  # of the process, its threads and its children
    gpu: float  # wall time of the GPUs used
    energy: Mapping[str, float] = field(default_factory=dict)  # joules, by device: GPU, processor
    attempts: int = 1

    @property
    def summary(self) -> str:
        """One line: "23 s wall, 41 CPU-seconds"."""
        parts = [time_text("wall", self.wall), time_text("cpu", self.cpu)]
        if self.gpu:
            parts.append(time_text("gpu", self.gpu))
        if self.energy:
            parts.append(f"{_rounded(sum(self.energy.values()) / 3600)} Wh ({' and '.join(sorted(self.energy))})")
        attempts = f", in {self.attempts} attempts" if self.attempts > 1 else ""
        return ", ".join(parts) + attempts

    def metrics(self) -> dict[str, float]:
        """Return the known values by their names in MLflow, in hours and watt-hours."""
        times = {"wall": self.wall, "cpu": self.cpu, "gpu": self.gpu}
        metrics = {f"cost/{name}_hours": seconds / 3600 for name, seconds in times.items()}
        return metrics | ({"cost/energy_wh": sum(self.energy.values()) / 3600} if self.energy else {})

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return {"wall": self.wall, "cpu": self.cpu, "gpu": self.gpu, "energy": dict(self.energy)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrainingCost":
        """Read what `to_json` returned."""
        return cls(**{name: content[name] for name in ("wall", "cpu", "gpu", "energy")})


def add(costs: Iterable[TrainingCost]) -> TrainingCost | None:
    """Return the sum over attempts, or None without any. A device's energy is dropped if an attempt lacks it."""
    attempts = list(costs)
    if not attempts:
        return None
    measured = set.intersection(*(set(cost.energy) for cost in attempts))
    return TrainingCost(
        wall=sum(cost.wall for cost in attempts),
        cpu=sum(cost.cpu for cost in attempts),
        gpu=sum(cost.gpu for cost in attempts),
        energy={name: sum(cost.energy[name] for cost in attempts) for name in sorted(measured)},
        attempts=len(attempts),
    )


class _Energy(Protocol):
    """A counter of joules."""

    name: str

    def joules(self) -> float | None:
        """Return the joules since the first call, which returns 0; None if the counter cannot be read."""


class CostMeter:
    """Measures the cost of this process from now on. Energy is that of the whole device, other processes included."""

    def __init__(self, *, powercap: Path = POWERCAP) -> None:
        self.attempt = uuid.uuid4().hex[:12]
        self._began, self._cpu = time.monotonic(), _cpu_seconds()
        self._gpu_began: float | None = None
        self._gpus = 1
        self._energy: list[_Energy] = [_ProcessorEnergy(powercap)]
        self._last_due = -float("inf")
        self.spent()  # starts the counters

    def use(self, device: str, *, processes: int = 1) -> None:
        """Count this device from now on; `device` is PyTorch's name (cpu, cuda, cuda:1, mps).

        Each of several processes has a GPU of its own, of which this is the first.
        """
        if device.startswith(("cuda", "mps")):
            self._gpu_began, self._gpus = time.monotonic(), processes
        if device.startswith("cuda"):
            devices = [device] if processes == 1 else [f"cuda:{number}" for number in range(processes)]
            self._energy += map(_GpuEnergy, devices)
            self.spent()

    def spent(self) -> TrainingCost:
        """Return the cost so far."""
        now = time.monotonic()
        joules = {counter.name: counter.joules() for counter in self._energy}
        return TrainingCost(
            wall=now - self._began,
            cpu=max(0.0, _cpu_seconds() - self._cpu),
            gpu=self._gpus * (now - self._gpu_began) if self._gpu_began is not None else 0.0,
            energy={name: value for name, value in joules.items() if value is not None},
        )

    def is_due(self, *, every: float = 5.0) -> bool:
        """Return whether `every` seconds have passed since it was last due: a reading takes milliseconds."""
        if time.monotonic() - self._last_due < every:
            return False
        self._last_due = time.monotonic()
        return True


def _cpu_seconds() -> float:
    """CPU seconds of this process with its threads, and of its children, running or ended."""
    import psutil

    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)


class _ProcessorEnergy:
    """Energy of all processor packages, by RAPL (Intel and AMD).

    https://docs.kernel.org/power/powercap/powercap.html. The counters wrap around at `max_energy_range_uj`, so the
    differences of all readings are added up. The sum is right if a counter is read at least once per round.
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
        except ValueError:  # since kernel 5.10 only root can read it
            return None
        if not now:
            return None
        for before, after, span in zip(self._last or now, now, spans, strict=True):
            self._spent += after - before if after >= before else after + span - before
        self._last = now
        return self._spent / 1e6


def _read(path: Path) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class _GpuEnergy:
    """Energy of an NVIDIA GPU (Volta and later), by NVML."""

    name = "GPU"

    def __init__(self, device: str) -> None:
        self._device = device
        self._first: float | None = None

    def joules(self) -> float | None:
        import pynvml
        import torch

        try:
            pynvml.nvmlInit()
            # By UUID, because CUDA and NVML number the GPUs differently.
            identity = str(torch.cuda.get_device_properties(torch.device(self._device)).uuid)
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity}".encode())
            now = float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except pynvml.NVMLError:  # older GPUs and MIG instances have no such counter
            return None
        self._first = now if self._first is None else self._first
        return now - self._first


def time_text(kind: str, seconds: float) -> str:
    """Return a time of one kind (wall, cpu, gpu) as text: "23 s wall", "3.5 GPU-hours"."""
    units = ("s", "min", "h") if kind == "wall" else ("seconds", "minutes", "hours")
    number = 0 if seconds < 120 else 1 if seconds < 7200 else 2
    value = _rounded(seconds / 60**number)
    return f"{value} {units[number]} wall" if kind == "wall" else f"{value} {kind.upper()}-{units[number]}"


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
