"""How busy the machine is: figures for an epoch's rates."""

import contextlib

import psutil

__all__ = ["MachineUse"]

_MIB = 2**20


class MachineUse:
    """What this process and its GPU use, under names that MLflow's page of system metrics shows."""

    def __init__(self, device: str = "cpu") -> None:
        """`device`: the one that trains, as PyTorch names it (cpu, cuda, cuda:1, mps)."""
        self._process = psutil.Process()
        self._device = device
        psutil.cpu_percent()  # the first answer has nothing to compare with, and is 0

    def figures(self) -> dict[str, float]:
        """Shares in percent since the last call, memory in MiB now, and the GPU's memory at its highest.

        Anonymous memory is the process's own; the rest of what is resident is file pages, memory-mapped data among
        them, which the kernel takes back when it needs them.
        """
        memory = self._process.memory_info()
        shared = getattr(memory, "shared", 0)  # Linux alone tells them apart
        return {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/process_memory_megabytes": memory.rss / _MIB,
            "system/process_anonymous_memory_megabytes": (memory.rss - shared) / _MIB,
            **self._gpu(),
        }

    def _gpu(self) -> dict[str, float]:
        if not self._device.startswith("cuda"):
            return {}
        import pynvml
        import torch

        device = torch.device(self._device)
        free, total = torch.cuda.mem_get_info(device)
        used = {
            "system/gpu_memory_megabytes": (total - free) / _MIB,
            "system/gpu_peak_allocated_megabytes": torch.cuda.max_memory_allocated(device) / _MIB,
        }
        torch.cuda.reset_peak_memory_stats(device)
        with contextlib.suppress(pynvml.NVMLError):  # a slice of a GPU (MIG) has no such figure
            used["system/gpu_utilization_percentage"] = float(torch.cuda.utilization(device))
        return used
