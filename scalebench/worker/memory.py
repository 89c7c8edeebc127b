"""Peak memory of a rank: allocated, reserved, device and resident are different numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.records import Memory
from scalebench.worker.process import peak_rss_bytes


def read_memory(device: torch.device) -> Memory:
    """Return the peaks of this process so far; CUDA counts from the start of the process."""
    if device.type == "cpu":
        return Memory(rss_bytes=peak_rss_bytes())
    free, total = torch.cuda.mem_get_info(device)
    return Memory(
        allocated_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        device_bytes=total - free,
        rss_bytes=peak_rss_bytes(),
    )


class CpuTensorPeak:
    """The largest number of bytes that the CPU allocator had handed out at once.

    Attributes:
        bytes: Known after the block that was counted.
    """

    bytes: int | None = None


@contextmanager
def count_cpu_tensors(device: torch.device) -> Iterator[CpuTensorPeak]:
    """Count what the CPU allocator hands out inside the block, by the profiler's own events.

    Tensors allocated before are not counted; freeing them inside is not, either. On CUDA nothing
    is counted: its allocator keeps count by itself.
    """
    peak = CpuTensorPeak()
    if device.type != "cpu":
        yield peak
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield peak
    tree = profiler.profiler.kineto_results.experimental_event_tree()
    peak.bytes = max(_totals(tree), default=0)


def _totals(events: list[Any]) -> Iterator[int]:
    stack = list(events)
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event.extra_fields.total_allocated
