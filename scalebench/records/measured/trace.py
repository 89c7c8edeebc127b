"""What a traced window of a rank leaves: operations, actions, and how its clock is aligned."""

from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from scalebench.records.base import LARGE, Record


class TracedOperation(Record):
    """A collective or point-to-point operation as one rank traced it.

    Attributes:
        kind: ``all_reduce``, …, ``unknown``; see `scalebench.trace.timeline.Operation`.
        step: Index of the step in which it began, into the trace's ``steps``.
        ordinal: Which operation of its step it was; for DDP's all-reduces, the bucket.
        start_ns: After the trace's ``origin_ns``.
        enqueued_ns: When the host asked for it; null: not known.
        num_bytes: The full size, as nccl-tests counts; null: not known.
        phase: ``forward``, ``backward``, ``optimizer`` or ``unknown``.
        sequence: Number of the operation within its group; null: the trace carries none.
        axis: Dimension of the mesh whose group carried it; null: the training has no mesh, or does
            not say.
    """

    kind: str
    name: str
    step: int = Field(ge=0)
    ordinal: int = Field(ge=0)
    start_ns: int
    end_ns: int
    enqueued_ns: int | None = None
    num_bytes: int | None = Field(None, ge=0, lt=LARGE)
    dtype: str | None = None
    group: str | None = None
    group_size: int | None = Field(None, ge=1)
    phase: str = "unknown"
    sequence: int | None = None
    axis: str | None = None


class TracedAction(Record):
    """A forward or backward pass of a pipeline's stage as its rank traced it.

    Attributes:
        kind: ``F`` forward, ``B`` backward; ``I`` and ``W`` its two parts where it is split.
        step: Index of the step, into the trace's ``steps``.
        start_ns: After the trace's ``origin_ns``. On a GPU: of its first kernel.
        end_ns: Likewise, of its last.
    """

    kind: Literal["F", "B", "I", "W"]
    stage: int = Field(ge=0)
    microbatch: int = Field(ge=0)
    step: int = Field(ge=0)
    start_ns: int = Field(gt=-LARGE, lt=LARGE)
    end_ns: int = Field(gt=-LARGE, lt=LARGE)


class TracedProduct(Record):
    """Products of an m × k by a k × n matrix in 16 bits that a GPU did, all of one shape.

    Attributes:
        count: Calls.
        total_s: Sum of what their kernels took.
    """

    m: int = Field(gt=0, lt=LARGE)
    n: int = Field(gt=0, lt=LARGE)
    k: int = Field(gt=0, lt=LARGE)
    count: int = Field(ge=1)
    total_s: float = Field(gt=0, allow_inf_nan=False)


SETS = (
    *("compute", "copies", "data", "codec", "encode", "decode"),
    *("blocked", "blocked_sending", "experts"),
)
"""Sets of intervals that a trace holds. A name that is not worked out otherwise is a mark's."""


class Trace(Record):
    """What one rank did in its traced steps, on its own clock.

    Times are nanoseconds after ``origin_ns``. The sets of intervals are flat lists (start, end,
    start, end, …), sorted and disjoint.

    Attributes:
        steps: Beginning and end of every traced step that counts: without the first of a block.
        operations: Communication in those steps.
        compute: ``aten::`` operators, or kernels that are not communication; the stages of a
            paced workload.
        copies: Copies and fills of a GPU's memory that are no kernels; on CPU none, there copying
            is computation. Null: a trace of version 0.1 of a GPU, which did not keep them.
        data: While the rank's loop waited for a batch.
        codec: Inside a communication hook that encodes or decodes.
        encode: The part of it that encodes.
        decode: The part of it that decodes.
        blocked: While a pipeline's rank stood still until sends and receives were through. On CPU
            torch's annotations of these end only when somebody waits for them, so they do not tell
            how long anything was on its way. Empty: not noted.
        blocked_sending: The part of it that was for sends, as far as torch tells.
        experts: While the rank's experts computed in the forward pass; on CPU only.
        actions: What a pipeline's stages did in those steps, in order.
        products: Matrix products of a GPU in those steps whose shapes the profiler recorded.
        unknown: Kernels that may be communication but are not known to be: name → seconds. They
            are part of ``compute``.
        num_events: The profiler's events, all steps together.
        num_launches: Launches of kernels in those steps; 0: on CPU, or no one counted.
        num_impossible: Of them, those whose kernel is not there or begins before its launch.
        clock_error_s: How far the profiler's clock and this one moved apart within a block: a
            clock that was set meanwhile shows here.
    """

    origin_ns: int
    steps: list[tuple[int, int]]
    operations: list[TracedOperation] = []
    compute: list[int] = []
    copies: list[int] | None = None
    data: list[int] = []
    codec: list[int] = []
    encode: list[int] = []
    decode: list[int] = []
    blocked: list[int] = []
    blocked_sending: list[int] = []
    experts: list[int] = []
    actions: list[TracedAction] = []
    products: list[TracedProduct] = []
    unknown: dict[str, FiniteFloat] = {}
    num_events: int = Field(0, ge=0)
    num_launches: int = Field(0, ge=0)
    num_impossible: int = Field(0, ge=0)
    clock_error_s: FiniteFloat = 0.0

    @property
    def _sets(self) -> tuple[list[int], ...]:
        return tuple(getattr(self, name) or [] for name in SETS)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(len(flat) % 2 for flat in self._sets):
            raise ValueError("an interval has no end")
        for flat in (*self._sets, *self.steps):
            if any(not 0 <= b - a < LARGE for a, b in pairwise(flat)):
                raise ValueError("intervals are not in order")
        numbers = [*(op.step for op in self.operations), *(a.step for a in self.actions)]
        if max(numbers, default=-1) >= len(self.steps):
            raise ValueError("an operation lies in no step")
        for op in self.operations:
            if not -LARGE < op.start_ns <= op.end_ns < LARGE:
                raise ValueError("an operation ends before it begins")
        if not all(abs(t) < LARGE for t in (self.origin_ns, *self.compute[:1], *self.data[:1])):
            raise ValueError("a time is out of range")
        return self


class ClockAlignment(Record):
    """How this rank's monotonic clock stood against rank 0's during a window.

    Attributes:
        method: ``shared clock``: both ranks read the same clock of one machine; ``ping-pong``:
            estimated from messages before and after the window; ``operations``: from the ends of
            operations that end on all ranks at once.
        at_ns: When ``offset_ns`` held, on this rank's clock.
        offset_ns: This rank's clock minus rank 0's.
        drift: What the offset grows by per time on this rank's clock, within the window;
            dimensionless.
        bound_ns: The offset that these numbers give anywhere in the window is at most this far
            from the true one.
        stepped: Not null: one of the two clocks jumped, and how far; the bound covers that.
    """

    method: Literal["shared clock", "ping-pong", "operations"]
    at_ns: int
    offset_ns: int = Field(gt=-LARGE * 16, lt=LARGE * 16)
    drift: FiniteFloat = Field(0.0, ge=-1e3, le=1e3)
    bound_ns: int = Field(ge=0)
    stepped: str | None = None

    def on_rank_0(self, time_ns: int) -> int:
        """Return what rank 0's clock showed when this rank's showed ``time_ns``."""
        return time_ns - self.offset_ns - round(self.drift * (time_ns - self.at_ns))
