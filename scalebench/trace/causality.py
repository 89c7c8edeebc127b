"""Can a GPU's trace be true? CUPTI loses kernels, or shifts them, at the head of a session.

CUPTI of CUDA 12.6 Update 2 to 13.0 does so where a process profiles more than once (pytorch issues
192021 and 175790; NVIDIA's release notes of CUDA 13.1 name the mend). What gives it away: a launch
without its kernel, a kernel that begins before its launch, calls of NCCL of which no kernel came.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scalebench.records.measured.trace import ClockAlignment, Trace
from scalebench.trace.events import Events
from scalebench.trace.files.metadata import from_metadata
from scalebench.trace.intervals import named
from scalebench.trace.operations import names
from scalebench.trace.operations.communication_kernels import is_of_nccl
from scalebench.trace.operations.kernel_launches import NEVER, collectives_by_copies, runtime_calls
from scalebench.trace.operations.matching import shown_on_rank_0, together

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
    is_launch = named(events, [names.launches_kernel(name) for name in events.names])
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
        if events.names[events.name[index]].startswith(names.COMMS_RECORD)
        and begin_ns <= events.start_ns[index] < end_ns
    ]
    return sum(call.kind != "unknown" and (call.group_size or 1) > 1 for call in calls)


def shows_no_gpu(events: Events) -> bool:
    """Tell whether NCCL was called, or kernels launched, and the trace has no kernel at all."""
    telling = (names.launches_kernel(n) or names.works_on_device(n) for n in events.names)
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
