"""Profile of optimizer steps by torch.profiler: a trace and a table of operators."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ratchet import files

__all__ = ["OPERATORS", "TRACE", "StepProfiler"]

NO_RESULT = "it measures steps"

TRACE = "training.pt.trace.json.gz"  # the ending by which TensorBoard's profiler plugin knows a trace
OPERATORS = "operators.txt"
_SKIPPED = 4  # steps not traced: the first allocate, choose kernels and fill caches
_WARM_UP = 1  # steps traced and discarded, in which the profiler itself starts
_ROWS = 30  # of the table


class StepProfiler:
    """Traces `steps` optimizer steps after the first few of this process, then writes the files and stops.

    `folder` gets TRACE, for chrome://tracing, Perfetto or TensorBoard, and OPERATORS, the slowest first. Earlier files
    are replaced. Tracing slows the traced steps and does not change their results.
    """

    def __init__(self, folder: Path | None, steps: int, device: torch.device) -> None:
        """Start the profiler. With `folder` None or `steps` 0 nothing is traced."""
        self._profile: profile | None = None
        if folder is None or not steps:
            return
        self._folder, self._device = folder, device
        self._left, self._traced = _SKIPPED + _WARM_UP + steps, 0
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise it prints when it starts, and that there is no GPU
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=_SKIPPED, warmup=_WARM_UP, active=steps, repeat=1),
            record_shapes=True,
            on_trace_ready=self._write,
            acc_events=True,  # otherwise it warns about earlier events, of which there are none
        )
        self._profile.start()

    def step(self) -> None:
        if self._profile is None:
            return
        self._left -= 1
        self._profile.step()
        if not self._left:
            self.close()

    def close(self) -> None:
        """Write the trace, if any step was traced."""
        if self._profile is not None:
            profiler, self._profile = self._profile, None
            profiler.stop()

    def _write(self, traced: Any) -> None:
        if traced.step_num <= _SKIPPED + _WARM_UP:  # stopped while warming up
            return
        averages = traced.key_averages(group_by_input_shape=True)
        by = "self_device_time_total" if self._device.type == "cuda" else "self_cpu_time_total"
        with files.draft_directory(self._folder) as draft:
            traced.export_chrome_trace(str(draft / TRACE))
            table = averages.table(sort_by=by, row_limit=_ROWS, max_name_column_width=60, max_shapes_column_width=60)
            files.write_text(draft / OPERATORS, table + "\n")
