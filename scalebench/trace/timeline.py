"""What one rank did when: its collectives, its computation, its steps."""

from dataclasses import dataclass, field
from typing import Literal

from scalebench.trace.intervals import Intervals, intervals, none, union

Kind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
    "send_recv",
    "dispatch",
    "combine",
    "put",
    "unknown",
]
MOST_UNSEEN = 0.01
"""Of the calls of a rank."""

Phase = Literal["forward", "backward", "optimizer", "unknown"]


@dataclass(frozen=True)
class Operation:
    """One collective or point-to-point operation, as one rank saw it.

    Attributes:
        kind: ``dispatch`` and ``combine``: tokens to their experts and back; ``put``: one-sided;
            ``unknown``: certainly communication, but of unknown kind.
        name: As the trace calls it.
        start_ns: When it began on this rank: the kernel, or gloo's annotation.
        end_ns: When it ended on this rank.
        enqueued_ns: When the host asked for it; None: the trace does not tell.
        num_bytes: Handed to the operation by this rank (all-gather: gathered; reduce-scatter:
            before scattering: the *full* size, as nccl-tests counts); None: not known.
        dtype: As torch spells it (``float32``); None: not known.
        group: Name of the process group; None: not known.
        group_size: Ranks in the group; None: not known.
        sequence: Number of the operation within its group, where the trace carries one.
        phase: What the rank was doing when it asked for the operation.
        stream: CUDA stream, or host thread.
    """

    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    enqueued_ns: int | None = None
    num_bytes: int | None = None
    dtype: str | None = None
    group: str | None = None
    group_size: int | None = None
    sequence: int | None = None
    phase: Phase = "unknown"
    stream: int = 0


@dataclass(frozen=True)
class Calls:
    """Calls of a backend that queues kernels, or whose marks are missing, between several ranks.

    Attributes:
        num_unseen: Those of which neither kernel nor copy, or no mark, is in the trace.
        backend: ``NCCL``, ``XCCL``, …
        lack: What the unseen ones have none of.
    """

    num: int = 0
    num_unseen: int = 0
    backend: str = ""
    lack: str = "kernel"

    @property
    def are_missing(self) -> bool:
        """Whether so many are missing that there is no overlap to speak of."""
        return self.num_unseen > MOST_UNSEEN * self.num


@dataclass(frozen=True)
class Timeline:
    """One rank over the whole trace; every set of intervals is tidy.

    Attributes:
        operations: In the order of their start.
        compute: Running kernels other than communication; without a GPU, ``aten::`` operators.
        copies: Copies and fills of a GPU's memory; they count as neither.
        steps: Profiler steps, where the trace has them; not tidy: neighbours may touch.
        annotations: scalebench's own marks: name without ``scalebench.`` → intervals.
        unknown: Kernels that may be communication but are not known to be: name → seconds. They
            are counted as compute.
        apart: Kernels on a stream of their own, likewise.
        num_early: Kernels that begin before their launch: their times cannot be true.
        calls: Of the backend, as the host made them.
        num_named: Kernels that the reader's own ``--communication`` made communication.
        extent: (start, end) of everything in the trace.
        on_gpu: Whether kernels were traced; otherwise everything ran on the host.
        rank: By the trace's own word; None: it does not say.
        world_size: Likewise.
        num_groups: Process groups that the trace lists; 0: it lists none.
    """

    operations: tuple[Operation, ...]
    compute: Intervals
    copies: Intervals = field(default_factory=none)
    steps: Intervals = field(default_factory=none)
    annotations: dict[str, Intervals] = field(default_factory=dict)
    unknown: dict[str, float] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    num_early: int = 0
    calls: Calls = Calls()
    num_named: int = 0
    extent: tuple[int, int] = (0, 0)
    on_gpu: bool = False
    rank: int | None = None
    world_size: int | None = None
    num_groups: int = 0

    @property
    def communication(self) -> Intervals:
        """The union of all operations."""
        return union(intervals([(op.start_ns, op.end_ns) for op in self.operations]))
