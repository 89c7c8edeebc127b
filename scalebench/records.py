"""What is stored: what ranks write, what a launch leaves, what a run is.

Raw samples only; everything derived (medians, efficiency, verdicts) is worked out again from
these at every reading. Times are seconds, sizes bytes. ``*_ns`` are nanoseconds of the machine's
monotonic clock, comparable between processes of one machine and with nothing else.
"""

from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from scalebench.certificate import Certificate
from scalebench.samples import NodeTrack
from scalebench.spec import Cell, Device, Scaling, StepPlan, Suite
from scalebench.virtual_hosts import VirtualHosts
from scalebench.world import World

RUN_FORMAT = "scalebench.run/1"
CELL_FORMAT = "scalebench.cell/1"
LARGE = 1 << 60
"""No count of bytes, parameters or tokens in a record reaches this; a file that says so lies."""

Status = Literal["ok", "oom", "failed", "skipped"]


class Record(BaseModel):
    """Base of every stored record; fields of newer versions are kept out, not refused."""

    model_config = ConfigDict(frozen=True, extra="ignore")


Phase = Literal["warmup", "clean", "paired", "traced", "local", "bare", "part"]


class Block(Record):
    """Consecutive steps run without any synchronisation between them.

    The ranks agree on how to go on between blocks, so the first step of a block starts with
    empty queues: it is recorded and counts for nothing.

    Attributes:
        phase: ``warmup`` until the steady state was found, then ``clean``: the headline rests on
            these. After them come rounds of short blocks side by side, so that what drifts hits
            all alike: ``paired`` (like ``clean``), ``traced`` (under the profiler), ``local``
            (without synchronisation between ranks), ``bare`` (only the beginning and the end of
            the block are timed; every step but the first is given their mean), ``part`` (like
            ``paired``, on ``num_samples`` of the rank's batch: as many as a rank has at another
            N).
        first: Index of the block's first step in the rank's ``step_s``.
        count: Steps in the block, the first included.
        start_ns: When the first step of the block began; null: not noted.
        end_ns: When the last one was over.
        num_samples: Samples of each step; null: the rank's whole batch.
    """

    phase: Phase
    first: int = Field(ge=0)
    count: int = Field(ge=1)
    start_ns: int | None = None
    end_ns: int | None = None
    num_samples: int | None = Field(None, ge=1, lt=LARGE)


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


class Trace(Record):
    """What one rank did in its traced steps, on its own clock.

    Times are nanoseconds after ``origin_ns``. The sets of intervals are flat lists (start, end,
    start, end, …), sorted and disjoint.

    Attributes:
        steps: Beginning and end of every traced step that counts: without the first of a block.
        operations: Communication in those steps.
        compute: ``aten::`` operators, or kernels that are not communication; the stages of a
            paced workload.
        data: While the rank's loop waited for a batch.
        codec: Inside a communication hook that encodes or decodes.
        encode: The part of it that encodes.
        decode: The part of it that decodes.
        blocked: While a pipeline's rank stood still until sends and receives were through. On CPU
            torch's annotations of these end only when somebody waits for them, so they do not tell
            how long anything was on its way. Empty: not noted.
        blocked_sending: The part of it that was for sends, as far as torch tells.
        actions: What a pipeline's stages did in those steps, in order.
        unknown: Kernels that may be communication but are not known to be: name → seconds. They
            are part of ``compute``.
        num_events: The profiler's events, all steps together.
        clock_error_s: How far the profiler's clock and this one moved apart within a block: a
            clock that was set meanwhile shows here.
    """

    origin_ns: int
    steps: list[tuple[int, int]]
    operations: list[TracedOperation] = []
    compute: list[int] = []
    data: list[int] = []
    codec: list[int] = []
    encode: list[int] = []
    decode: list[int] = []
    blocked: list[int] = []
    blocked_sending: list[int] = []
    actions: list[TracedAction] = []
    unknown: dict[str, FiniteFloat] = {}
    num_events: int = Field(0, ge=0)
    clock_error_s: FiniteFloat = 0.0

    @property
    def _sets(self) -> tuple[list[int], ...]:
        ranked = (self.compute, self.data, self.codec, self.encode, self.decode)
        return (*ranked, self.blocked, self.blocked_sending)

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
            raise ValueError("a time is beyond all clocks")
        return self


class Memory(Record):
    """Peak memory of one rank in bytes; null: this device has no such number.

    The categories are those of the moment at which ``allocated_bytes`` was reached, counted in the
    ``inspect`` launch from the allocator's own events, and sum to it. See
    ``worker/memory.py`` for what belongs to which.

    Attributes:
        allocated_bytes: Peak of live tensors. CUDA: the allocator's ``max_memory_allocated``
            over the launch; in the ``inspect`` launch, and on CPU, counted from the allocator's
            events.
        reserved_bytes: CUDA: what the caching allocator held.
        device_bytes: CUDA: what the device reports as used, by everyone, after the window.
        rss_bytes: Peak resident set of the process.
        parameters_bytes: The module's parameters and buffers.
        gradients_bytes: Gradients alive at the peak; buckets that gradients are views into
            count here.
        optimizer_bytes: Tensors of the optimizer's state.
        communication_bytes: What the strategy's wrapper keeps between steps besides the above:
            DDP's buckets where the gradients are copies of them.
        data_bytes: Samples that the workload holds on the device.
        activations_bytes: Derived: all the rest. Activations, and whatever operators, optimizer
            and collectives allocate for the moment.
        activations_peak_bytes: The most that this rest came to at any moment of a step; it need
            not be the moment of ``allocated_bytes``, and is no part of the sum.
        allocator_retries: CUDA: how often the allocator had to free its cache and try again
            (``num_alloc_retries``) during warm-up and clean window of a ``measure`` launch. More
            than none: the device is full, and the steps were slowed by it.
    """

    allocated_bytes: int | None = Field(None, ge=0, lt=LARGE)
    reserved_bytes: int | None = Field(None, ge=0, lt=LARGE)
    device_bytes: int | None = Field(None, ge=0, lt=LARGE)
    rss_bytes: int | None = Field(None, ge=0, lt=LARGE)
    parameters_bytes: int | None = Field(None, ge=0, lt=LARGE)
    gradients_bytes: int | None = Field(None, ge=0, lt=LARGE)
    optimizer_bytes: int | None = Field(None, ge=0, lt=LARGE)
    communication_bytes: int | None = Field(None, ge=0, lt=LARGE)
    data_bytes: int | None = Field(None, ge=0, lt=LARGE)
    activations_bytes: int | None = Field(None, ge=0, lt=LARGE)
    activations_peak_bytes: int | None = Field(None, ge=0, lt=LARGE)
    allocator_retries: int | None = Field(None, ge=0, lt=LARGE)


class Verification(Record):
    """How far this rank's result is from the single-process reference.

    Attributes:
        status: ``verified``: within tolerance; ``deviates``: outside; ``unverified``: a
            comparison would mean nothing, see ``reason``; ``reference``: this is the reference.
        gradient_deviation: Largest over parameters of ‖g − g_ref‖ / max(‖g_ref‖, 1e-3·‖all g_ref‖)
            after one step; dimensionless.
        loss_deviation: Largest over the steps of abs(loss − loss_ref) / abs(loss_ref).
        tolerance: What both must stay below.
        num_steps: Steps over which the losses were compared.
        worst_parameter: The parameter with the largest gradient deviation.
    """

    status: Literal["verified", "deviates", "unverified", "reference"]
    gradient_deviation: FiniteFloat | None = None
    loss_deviation: FiniteFloat | None = None
    tolerance: FiniteFloat | None = None
    num_steps: int | None = None
    worst_parameter: str | None = None
    reason: str | None = None


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


class CompressionTraffic(Record):
    """What a rank handed to the collectives in one step of compressed training.

    Bytes as they were handed over: indices, scales, padding and counts included.

    Attributes:
        num_buckets: Buckets of the step.
        gradient_bytes: The gradients before compression.
        all_reduce_bytes: Handed to all-reduces.
        all_gather_bytes: Handed to all-gathers, this rank's own part.
    """

    num_buckets: int = Field(ge=0)
    gradient_bytes: int = Field(ge=0, lt=LARGE)
    all_reduce_bytes: int = Field(ge=0, lt=LARGE)
    all_gather_bytes: int = Field(ge=0, lt=LARGE)


class GradientError(Record):
    """How far the mean gradient after compression is from the exact one, in one step.

    Attributes:
        relative_l2: ‖g − g_exact‖ / ‖g_exact‖ over all parameters.
        cosine: g · g_exact / (‖g‖·‖g_exact‖); null: one of them is zero or not finite.
        step: In which step of the training; what error feedback kept until then is in g.
    """

    relative_l2: FiniteFloat
    cosine: FiniteFloat | None
    step: int = Field(ge=0)


ErrorKind = Literal["exception", "oom", "usage", "unsupported", "peer", "signal", "limit", "exit"]


class RankError(Record):
    """Why a rank ended without a result.

    Attributes:
        kind: ``peer``: a collective failed because another rank had gone; ``signal``: the
            process was killed; ``limit``: still running when the cell's time was over;
            ``usage``: the user's workload or suite is at fault; ``unsupported``: this strategy
            cannot run here; ``exit``: it left without a word.
        time_ns: When, on the machine's monotonic clock.
    """

    kind: ErrorKind
    message: str
    traceback: str | None = None
    time_ns: int


class RankRecord(Record):
    """Everything one rank measured in one launch.

    Attributes:
        step_s: Duration of every step in seconds, warm-up included, by step number.
        loss: Loss of every step, mean over the rank's batch; null: it was not finite.
        blocks: How the steps were grouped; see `Block`.
        steady: Whether the steady state was found before the warm-up limits; null in an
            ``inspect`` launch.
        first_step_ns: When the first training step began.
        trace: What happened inside traced steps; null: none were traced, see
            ``trace_unavailable``.
        clock: How this rank's clock stood against rank 0's while steps were traced.
        logged_exposed_s: Exposed communication per step by DDP's own logging data, seconds.
        num_parameters: Parameters of the module, shared ones counted once.
        flops_per_sample: Floating-point operations of forward and backward of the bare model on
            one sample, counted in the ``inspect`` launch on rank 0; see ``worker/flops.py``.
            Null: not counted there, or no operator of the model is known to the counter.
        compression: What compressed training handed over in its last measured step; null: the
            strategy compresses nothing.
        gradient_error: Of compressed training, from the ``inspect`` launch, on rank 0.
        facts: What was in force in the rank: threads, affinity, scheduling class, device name,
            resolved backend, TF32, optimizer, …
    """

    rank: int = Field(ge=0)
    local_rank: int = Field(ge=0)
    pid: int
    host: str
    error: RankError | None = None
    step_s: list[FiniteFloat] = []
    loss: list[FiniteFloat | None] = []
    blocks: list[Block] = []
    steady: bool | None = None
    first_step_ns: int | None = None
    num_parameters: int | None = Field(None, ge=0, lt=LARGE)
    tokens_per_sample: int | None = Field(None, ge=1, lt=LARGE)
    trace: Trace | None = None
    trace_unavailable: str | None = None
    clock: ClockAlignment | None = None
    logged_exposed_s: FiniteFloat | None = None
    flops_per_sample: FiniteFloat | None = Field(None, gt=0)
    memory: Memory = Memory()
    verification: Verification | None = None
    compression: CompressionTraffic | None = None
    gradient_error: GradientError | None = None
    facts: dict[str, Any] = {}

    @property
    def num_trained(self) -> int:
        """Steps up to the end of the clean window; later ones may be without synchronisation."""
        ends = [b.first + b.count for b in self.blocks if b.phase in ("warmup", "clean")]
        return max(ends, default=0)


class Failure(Record):
    """The first thing that went wrong in a launch; later failures follow from it."""

    rank: int | None
    kind: ErrorKind
    message: str
    traceback: str | None = None
    log_tail: str = ""


class CellResult(Record):
    """One launch, as stored: the cell, what became of it, what each rank measured.

    Attributes:
        launch_s: From the session's decision to the last rank's first training step, seconds.
        wall_s: From the decision to the end of the last rank, seconds.
        started: UTC, ISO 8601.
        node: What the GPUs and processors of the machine did meanwhile; null: not watched.
    """

    format: str = CELL_FORMAT
    cell: Cell
    status: Status
    reason: str | None = None
    failure: Failure | None = None
    started: str
    launch_s: FiniteFloat | None = None
    wall_s: FiniteFloat | None = None
    ranks: list[RankRecord] = []
    node: NodeTrack | None = None


class RunSpec(Record):
    """What a run was asked to do, every default filled in.

    Attributes:
        launcher: Who starts ranks.
        world: The processes that it has started, and where they are; null: ranks are started for
            each launch.
        anonymise: Names of hosts and users, and paths, are taken out before anything is stored.
        keep_going: Cells are tried although a smaller one of their case ran out of memory.
    """

    suites: tuple[Suite, ...]
    world_sizes: tuple[int, ...]
    added_world_sizes: tuple[int, ...] = ()
    device: Device
    scaling: Scaling
    launcher: str = "local"
    world: World | None = None
    virtual_hosts: VirtualHosts | None = None
    oversubscribe: bool = False
    threads: int
    steps: StepPlan
    repeats: int
    budget_s: float | None = None
    quick: bool = False
    selection: str | None = None
    keep_going: bool = False
    anonymise: bool = False


class RunInfo(Record):
    """``run.json``: what was run, where, and how far it came.

    Attributes:
        command: The command line, as a list of arguments.
        spec: What the run was asked to do.
        environment: Fingerprint of machine and software.
        plan: Every cell in the order of execution.
        notices: What the reader has to know about the whole run, for example that this was CPU.
        certificate: The newest of this machine when the run began; null: there was none.
        profile_differs: In what the machine of the link profile that was given is another one.
        sealed: Every file of the run bears a checksum; older versions wrote none.
        status: ``running`` also means: was killed before it could say otherwise.
    """

    format: str = RUN_FORMAT
    run_id: str
    version: str
    created: str
    command: list[str]
    spec: RunSpec
    environment: dict[str, Any]
    plan: list[Cell]
    notices: list[str] = []
    certificate: Certificate | None = None
    profile_differs: list[str] = []
    sealed: bool = False
    status: Literal["running", "complete", "interrupted", "over budget"] = "running"
