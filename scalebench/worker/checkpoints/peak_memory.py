"""The most memory that a stretch of work took on top of what the process had before."""

from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
CLEAR_PEAK = "5"
"""Sets the peak of the resident set to what is resident now (``proc_pid_clear_refs(5)``)."""


class PeakMemory:
    """Begins to look at once.

    Attributes:
        device: Whose memory is looked at besides the host's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._host = _reset_host()
        self._on_device = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._on_device = torch.cuda.memory_allocated(device)

    def extra_host_bytes(self) -> int | None:
        """Return the peak since the beginning, above what was resident then; None: not told."""
        peak = _status_bytes("VmHWM")
        if self._host is None or peak is None:
            return None
        return max(0, peak - self._host)

    def extra_device_bytes(self) -> int | None:
        """Return the same of the GPU's allocator; None: the ranks are on the CPU."""
        if self.device.type != "cuda":
            return None
        return max(0, torch.cuda.max_memory_allocated(self.device) - self._on_device)


def _reset_host() -> int | None:
    """Have the peak begin anew; return what is resident, or None where neither can be had."""
    try:
        CLEAR.write_text(CLEAR_PEAK)
    except OSError:
        return None
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else None
