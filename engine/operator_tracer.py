"""Torch's profiler around the first steps of a recording, and NVTX ranges on CUDA.

Must not know what a recording is for. Start and stop on the thread that runs the steps.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from engine.trace_times import PART_LABEL


class OperatorTracer:
    """Call order: ``start``, ``stretch`` as often as wanted, ``stop``, ``export``."""

    def __init__(self, device: str) -> None:
        self._is_cuda = device == "cuda"
        activities = [ProfilerActivity.CPU]
        if self._is_cuda:
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities)

    def start(self) -> None:
        self._profiler.start()
        # The first slice of a process takes a millisecond more, which would lie between the begin
        # of a step here and by our own clock.
        with record_function("profiler started"):
            pass

    @contextmanager
    def stretch(self, name: str) -> Iterator[None]:
        """A slice of the trace, and an NVTX range for NVIDIA's own profilers."""
        label = PART_LABEL + name
        if self._is_cuda:
            torch.cuda.nvtx.range_push(label)
        try:
            with record_function(label):
                yield
        finally:
            if self._is_cuda:
                torch.cuda.nvtx.range_pop()

    def stop(self) -> None:
        """Waits for the device."""
        if self._is_cuda:
            torch.cuda.synchronize()
        self._profiler.stop()

    def export(self, max_bytes: int) -> bytes | None:
        """Chrome's trace format as JSON, None if it is longer; on any thread. Takes a while."""
        with tempfile.TemporaryDirectory(prefix="trace-") as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))
            return path.read_bytes() if path.stat().st_size <= max_bytes else None
