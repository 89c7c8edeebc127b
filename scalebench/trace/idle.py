"""Why a GPU, and each of its streams, did nothing between two kernels.

The causes are those of HolisticTraceAnalysis 0.5.0 (``get_idle_time_breakdown``): the host was
late if it launched the next kernel after the one before had ended; else a gap below 30 µs is what
one kernel after another costs; the rest is other. Of that rest, the gaps that end when a kernel of
another stream has just ended are distinguished: the stream waited for it, by an event for example.

Can a GPU's trace be true? CUPTI loses kernels, or shifts them, at the head of a session.

CUPTI of CUDA 12.6 Update 2 to 13.0 does so where a process profiles more than once (pytorch issues
192021 and 175790; NVIDIA's release notes of CUDA 13.1 name the mend). What gives it away: a launch
without its kernel, a kernel that begins before its launch, calls of NCCL of which no kernel came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scalebench.records.measured.trace import ClockAlignment, Trace
from scalebench.trace.events import Events, Indices, named
from scalebench.trace.files.metadata import from_metadata
from scalebench.trace.operations import communication_kernels
from scalebench.trace.operations.communication_kernels import is_of_nccl
from scalebench.trace.operations.gpu_work import gpu_events
from scalebench.trace.operations.kernel_launches import NEVER, collectives_by_copies, runtime_calls
from scalebench.trace.operations.matching import shown_on_rank_0, together

KERNEL_AFTER_KERNEL_NS = 30_000
"""HolisticTraceAnalysis' ``consecutive_kernel_delay``."""

Cause = Literal["host", "kernel", "stream", "other"]
_CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True)
class IdleTime:
    """Seconds of a trace in which nothing ran, by cause.

    Attributes:
        host_wait_s: The launch came late.
        kernel_wait_s: Short gaps between kernels that had been launched in time.
        stream_wait_s: It waited for work of another stream.
        other_wait_s: Nothing tells why. HolisticTraceAnalysis' ``other`` is this and the waiting
            for another stream.
        ends_s: Before the first kernel, and after the last.
    """

    host_wait_s: float = 0.0
    kernel_wait_s: float = 0.0
    stream_wait_s: float = 0.0
    other_wait_s: float = 0.0
    ends_s: float = 0.0


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


def idleness_of(events: Events, extent: tuple[int, int]) -> Idleness | None:
    """Return why the GPU was idle from start to end of a trace; None: it has no kernel."""
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
        gaps = _gaps(events, on_gpu[mine], launched_ns[mine], ends, own_ends)
        streams[stream] = _sums(*gaps, _ends_s(events, on_gpu[mine], extent))
    idle_from = np.maximum.accumulate(events.end_ns[on_gpu])
    lengths, causes = _gaps(events, on_gpu, launched_ns, ends, idle_from)
    lengths = np.maximum(lengths, 0)
    at = int(np.argmax(lengths)) if len(lengths) else 0
    largest = None
    if len(lengths) and lengths[at] > 0:
        launched = int(threads[at + 1]) if launched_ns[at + 1] != NEVER else None
        largest = _gap(events, int(on_gpu[at + 1]), int(lengths[at]), int(causes[at]), launched)
    return Idleness(_sums(lengths, causes, _ends_s(events, on_gpu, extent)), streams, largest)


def idle_together(ranks: Sequence[Idleness | None]) -> IdleTime:
    """Return the sums over the devices of several ranks."""
    known = [idle.device for idle in ranks if idle is not None]
    return IdleTime(*map(sum, zip(*map(astuple, known), strict=True)))


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


def _sums(lengths: Indices, causes: NDArray[np.int64], ends_s: float) -> IdleTime:
    sums = (int(lengths[causes == code].sum()) for code in range(len(_CAUSES)))
    return IdleTime(*[*(max(nanoseconds, 0) / 1e9 for nanoseconds in sums), ends_s])


def _ends_s(events: Events, kernels: Indices, extent: tuple[int, int]) -> float:
    before = events.start_ns[kernels].min() - extent[0]
    return float(before + extent[1] - events.end_ns[kernels].max()) / 1e9


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


MOST_IMPOSSIBLE = 0.01
"""Of all launches: a trace with more shows something else than what happened."""
REMEDY = (
    "CUPTI of CUDA 12.6 to 13.0 does this where a process profiles more than once; use a torch "
    "built for CUDA 13.1 or later, or --no-trace"
)
SILENT = (
    "CUPTI gave no GPU kernel of these steps: another profiler (Nsight, DCGM, a debugger) holds "
    "the GPU, or the driver keeps profiling to administrators "
    "(NVreg_RestrictProfilingToAdminUsers); the rank's log has CUPTI's own words. Stop the other "
    "profiler, or use --no-trace"
)
ENDS_TOGETHER_NS = 100_000
ENDS_TOGETHER_SHARE = 0.1
"""The last pieces of an all-reduce reach its ranks one after another: so much of its time later."""


@dataclass(frozen=True)
class Launches:
    """The launches of kernels in a stretch of the host's time.

    Attributes:
        num: All of them, and calls of NCCL that should have had one.
        num_impossible: Those whose kernel is not there, or begins before its launch.
    """

    num: int = 0
    num_impossible: int = 0

    def __add__(self, other: "Launches") -> "Launches":
        return Launches(self.num + other.num, self.num_impossible + other.num_impossible)

    @property
    def why_refused(self) -> str | None:
        """Why the trace tells nothing; None: it does."""
        if self.num_impossible <= MOST_IMPOSSIBLE * self.num:
            return None
        return (
            f"{self.num_impossible} of {self.num} launches have no kernel in the trace, or one "
            f"that begins before its launch: {REMEDY}"
        )


def launches_between(events: Events, begin_ns: int, end_ns: int) -> Launches:
    """Return the launches that the host made in a stretch of time, and how many cannot be true.

    While a CUDA graph is captured, launches have no kernels: then only those present are looked at.
    """
    kernels = events.of("kernel")
    asked_ns, _ = runtime_calls(events, kernels)
    inside = (asked_ns != NEVER) & (asked_ns >= begin_ns) & (asked_ns < end_ns)
    num_early = int(np.sum(events.start_ns[kernels][inside] < asked_ns[inside]))
    calls = events.of("runtime")
    is_launch = named(
        events, [communication_kernels.launches_kernel(name) for name in events.names]
    )
    calls = calls[is_launch[calls] & (events.correlation[calls] > 0)]
    calls = calls[(events.start_ns[calls] >= begin_ns) & (events.start_ns[calls] < end_ns)]
    has_kernel = np.isin(events.correlation[calls], events.correlation[kernels])
    num_lost = 0 if any("BeginCapture" in name for name in events.names) else int(sum(~has_kernel))
    num_unseen = _unseen_calls_of_nccl(events, begin_ns, end_ns)
    return Launches(len(calls) + num_unseen, num_early + num_lost + num_unseen)


def _unseen_calls_of_nccl(events: Events, begin_ns: int, end_ns: int) -> int:
    """Return the calls of NCCL between several ranks, where no kernel or copy of any is there.

    A group of one rank launches none for an all-reduce in place: that is no loss. A call among
    several that NCCL carries out together has none of its own either, so only a trace without any
    is one that lost them.
    """
    of_nccl = [is_of_nccl(name) for name in events.names]
    kernels = events.of("kernel")
    communicating = kernels[named(events, of_nccl)[kernels]]
    copies = events.of("gpu_memcpy")
    if len(communicating) or collectives_by_copies(events, copies, communicating):
        return 0
    calls = [
        from_metadata(details)
        for index, details in events.details.items()
        if events.names[events.name[index]].startswith(communication_kernels.COMMS_RECORD)
        and begin_ns <= events.start_ns[index] < end_ns
    ]
    return sum(call.kind != "unknown" and (call.group_size or 1) > 1 for call in calls)


def shows_no_gpu(events: Events) -> bool:
    """Tell whether NCCL was called, or kernels launched, and the trace has no kernel at all."""
    telling = (
        communication_kernels.launches_kernel(n) or communication_kernels.works_on_device(n)
        for n in events.names
    )
    return not len(events.of("kernel")) and any(telling)


def ends_apart(
    traces: Mapping[int, Trace], clocks: Mapping[int, ClockAlignment], clock_bound_s: float
) -> str | None:
    """Say that all-reduces end on their ranks too far apart to be true; None: they do not.

    An all-reduce by NCCL ends everywhere at nearly the same time.

    ``clocks``: rank → how its clock stands against rank 0's. ``clock_bound_s``: how far two clocks
    may differ beyond that.
    """
    shift = {rank: shown_on_rank_0(t.origin_ns, rank, clocks) for rank, t in traces.items()}
    num = num_apart = 0
    for operation in together(traces)[0]:
        of_nccl = (is_of_nccl(op.name) for op in operation.values())
        one = next(iter(operation.values()))
        if one.kind != "all_reduce" or len(operation) < 2 or not all(of_nccl):
            continue
        ends = [op.end_ns + shift[rank] for rank, op in operation.items()]
        shortest_ns = min(op.end_ns - op.start_ns for op in operation.values())
        slack_ns = ENDS_TOGETHER_NS + ENDS_TOGETHER_SHARE * shortest_ns
        num += 1
        num_apart += max(ends) - min(ends) > clock_bound_s * 1e9 + slack_ns
    if num_apart <= MOST_IMPOSSIBLE * num:
        return None
    return (
        f"{num_apart} of {num} all-reduces end on their ranks further apart than the clocks "
        f"explain: {REMEDY}"
    )
