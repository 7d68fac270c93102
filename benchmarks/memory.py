"""Peaks of memory: of the process as the system counts it, and of torch's allocator."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def resident() -> int:
    """Return the bytes of this process that lie in memory now."""
    return _status("VmRSS")


class HighWater:
    """The most memory that the process had since this object was made.

    On Linux the kernel's mark is set back; elsewhere it is that since the process began.
    """

    def __init__(self) -> None:
        if _RESET.exists():
            _RESET.write_text("5")

    def peak(self) -> int:
        """Return bytes."""
        return _status("VmHWM")


def _status(key: str) -> int:
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(key))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_of_tensors(step: Callable[[], object]) -> int:
    """Run a function and return the peak of the bytes that torch's allocator handed out in it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e["name"] == "[memory]"]
    first = [
        e["args"]["Total Allocated"] - e["args"]["Bytes"] for e in events if e["name"] == "[memory]"
    ]
    return max(totals, default=0) - (first[0] if first else 0)
