"""Load of the machine: metrics that are logged once an epoch."""

import contextlib

import psutil

__all__ = ["MachineUse"]

NO_RESULT = "it measures the load of the machine, for MLflow"

_MIB = 2**20


class MachineUse:
    """Resource use of this process and its GPU, under the names of MLflow's system metrics."""

    def __init__(self, device: str = "cpu") -> None:
        """`device`: the training device, as PyTorch names it (cpu, cuda, cuda:1, mps)."""
        self._process = psutil.Process()
        self._device = device
        psutil.cpu_percent()  # the first call always returns 0

    def metrics(self) -> dict[str, float]:
        """Return utilization in percent since the last call, current memory in MiB, and the GPU's peak memory.

        Anonymous memory belongs to the process. The rest of the resident memory is file pages, such as memory-mapped
        data, which the kernel can take back.
        """
        memory = self._process.memory_info()
        shared = getattr(memory, "shared", 0)  # only Linux has it
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
        with contextlib.suppress(pynvml.NVMLError):  # a MIG slice has no utilization
            used["system/gpu_utilization_percentage"] = float(torch.cuda.utilization(device))
        return used
