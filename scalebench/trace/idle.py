"""Why a GPU, and each of its streams, did nothing between two kernels.

The causes are those of HolisticTraceAnalysis 0.5.0 (``get_idle_time_breakdown``): the host was
late if it launched the next kernel after the one before had ended; else a gap below 30 µs is what
one kernel after another costs; the rest is other. Of that rest, the gaps that end when a kernel of
another stream has just ended are distinguished: the stream waited for it, by an event for example.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scalebench.trace.events import Events
from scalebench.trace.intervals import Indices
from scalebench.trace.operations.gpu_work import gpu_events
from scalebench.trace.operations.kernel_launches import NEVER, runtime_calls

KERNEL_AFTER_KERNEL_NS = 30_000
"""HolisticTraceAnalysis' ``consecutive_kernel_delay``."""

Cause = Literal["host", "kernel", "stream", "other"]
_CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True)
class IdleTime:
    """Seconds between the first kernel and the last in which nothing ran, by cause.

    Attributes:
        host_wait_s: The launch came late.
        kernel_wait_s: Short gaps between kernels that had been launched in time.
        stream_wait_s: It waited for work of another stream.
        other_wait_s: Nothing tells why. HolisticTraceAnalysis' ``other`` is this and the waiting
            for another stream.
    """

    host_wait_s: float = 0.0
    kernel_wait_s: float = 0.0
    stream_wait_s: float = 0.0
    other_wait_s: float = 0.0


@dataclass(frozen=True)
class Gap:
    """A stretch in which nothing ran on the GPU.

    Attributes:
        begin_s: Counted from the first event of the trace.
        next_kernel: What ended it.
        host: What the thread that launched this kernel was in for more than half of the gap, the
            outermost first; empty: the trace does not tell.
    """

    begin_s: float
    length_s: float
    cause: Cause
    next_kernel: str
    host: tuple[str, ...] = ()


@dataclass(frozen=True)
class Idleness:
    """The idle time of one GPU.

    Attributes:
        device: While no stream did anything.
        streams: Stream → its own.
        largest: The longest gap of the device; None: there was none.
    """

    device: IdleTime
    streams: dict[int, IdleTime] = field(default_factory=dict)
    largest: Gap | None = None


def idleness_of(events: Events) -> Idleness | None:
    """Return why the GPU was idle; None: the trace has no kernel."""
    if not len(events.of("kernel")):
        return None
    on_gpu = gpu_events(events)
    on_gpu = on_gpu[np.argsort(events.start_ns[on_gpu], kind="stable")]
    launched_ns, threads = runtime_calls(events, on_gpu)
    ends = np.sort(events.end_ns[on_gpu])
    stream_of = events.thread[on_gpu]
    streams = {}
    for stream in np.unique(stream_of).tolist():
        mine = stream_of == stream
        own_ends = events.end_ns[on_gpu[mine]]
        streams[stream] = _sums(*_gaps(events, on_gpu[mine], launched_ns[mine], ends, own_ends))
    idle_from = np.maximum.accumulate(events.end_ns[on_gpu])
    lengths, causes = _gaps(events, on_gpu, launched_ns, ends, idle_from)
    lengths = np.maximum(lengths, 0)
    at = int(np.argmax(lengths)) if len(lengths) else 0
    largest = None
    if len(lengths) and lengths[at] > 0:
        launched = int(threads[at + 1]) if launched_ns[at + 1] != NEVER else None
        largest = _gap(events, int(on_gpu[at + 1]), int(lengths[at]), int(causes[at]), launched)
    return Idleness(_sums(lengths, causes), streams, largest)


def idle_together(ranks: Sequence[Idleness | None]) -> IdleTime:
    """Return the sums over the devices of several ranks."""
    known = [idle.device for idle in ranks if idle is not None]
    return IdleTime(*(sum(getattr(idle, f"{cause}_wait_s") for idle in known) for cause in _CAUSES))


def _gaps(
    events: Events, kernels: Indices, launched_ns: Indices, ends: Indices, begins: Indices
) -> tuple[Indices, NDArray[np.int64]]:
    """Return length and cause of the gap before each kernel but the first.

    Kernels that overlap on a stream, or seem to by rounding, make a length below 0: so
    HolisticTraceAnalysis sums them.

    ``kernels`` are by their start, of one GPU. ``launched_ns``: when the host launched each.
    ``ends``: those of all that ran on the GPU, rising. ``begins``: when the gap after each kernel
    begins.
    """
    begins = begins[:-1]
    starts = events.start_ns[kernels][1:]
    lengths = starts - begins
    last_end = ends[np.maximum(np.searchsorted(ends, starts, side="right") - 1, 0)]
    causes = np.select(
        [
            launched_ns[1:] > begins,
            lengths < KERNEL_AFTER_KERNEL_NS,
            (last_end > begins) & (starts - last_end < KERNEL_AFTER_KERNEL_NS),
        ],
        [0, 1, 2],
        3,
    )
    return lengths, causes


def _sums(lengths: Indices, causes: NDArray[np.int64]) -> IdleTime:
    sums = (int(lengths[causes == code].sum()) for code in range(len(_CAUSES)))
    return IdleTime(*(max(nanoseconds, 0) / 1e9 for nanoseconds in sums))


def _gap(events: Events, kernel: int, length: int, cause: int, thread: int | None) -> Gap:
    end = int(events.start_ns[kernel])
    begin = end - length
    host: tuple[str, ...] = ()
    if thread is not None:
        on_gpu = np.isin(np.arange(len(events)), gpu_events(events))
        covered = np.minimum(events.end_ns, end) - np.maximum(events.start_ns, begin)
        around = np.flatnonzero((covered > length / 2) & (events.thread == thread) & ~on_gpu)
        around = around[np.lexsort((-events.end_ns[around], events.start_ns[around]))]
        host = tuple(events.names[code] for code in events.name[around].tolist())
    name = events.names[int(events.name[kernel])]
    return Gap(begin / 1e9, length / 1e9, _CAUSES[cause], name, host)
