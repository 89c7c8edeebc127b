"""What is stored: what ranks write, what a launch leaves, what a run is.

Raw samples only; everything derived (medians, efficiency, verdicts) is worked out again from
these at every reading. Times are seconds, sizes bytes. ``*_ns`` are nanoseconds of the machine's
monotonic clock, comparable between processes of one machine and with nothing else.

What NCCL's log says of the wires that it took: transports, adapters, channels, algorithms.
"""

from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from scalebench.records.measured.recovery import RecoveryRecord
from scalebench.records.measured.trace import ClockAlignment, Trace
from scalebench.spec.base import LARGE, Record, RowPart

Pair = tuple[int, int]
"""Sender and receiver, as NCCL numbers the ranks of their communicator."""


class NodeLinks(RowPart):
    """What the machine itself says of its links, whatever NCCL makes of them.

    Attributes:
        host: As NCCL spells it: up to the first dot.
        adapters: Active ports of InfiniBand and RoCE adapters in sysfs: ``mlx5_0:1``.
        nvlinks: Pairs of GPUs, by their number in nvidia-smi, that its topology joins by NVLink.
            Null: nvidia-smi did not answer.
        num_gpus: In that topology.
    """

    host: str
    adapters: list[str]
    nvlinks: list[Pair] | None = None
    num_gpus: int = 0


class Transport(RowPart):
    """The pairs of ranks that use one transport.

    Attributes:
        name: ``P2P/NVLink``, ``P2P/PCIe``, ``P2P`` (nothing says over which of the two), ``SHM``,
            ``NET/IB``, ``NET/Socket``, or what else NCCL calls it.
        pairs: In order, each once.
        adapters: Adapters or interfaces, as far as the log has their names; else their numbers.
        gdr: Whether the adapters read and write GPU memory by themselves (GPUDirect RDMA). Null:
            the transport uses no adapter that could.
    """

    name: str
    pairs: list[Pair]
    adapters: list[str] = []
    gdr: bool | None = None


class NodeWires(RowPart):
    """What NCCL says of one node.

    Attributes:
        num_ranks: That wrote the log there.
        adapters: InfiniBand and RoCE ports that NCCL found.
        interfaces: That NCCL found for its sockets.
        used: Of both, those that a channel goes through.
        links: What the machine says itself; null: it was not asked.
    """

    host: str
    num_ranks: int = Field(ge=0, lt=LARGE)
    adapters: list[str] = []
    interfaces: list[str] = []
    used: list[str] = []
    links: NodeLinks | None = None


class WireFinding(RowPart):
    """A wire that is slower than what the machine has, and what to set.

    Attributes:
        rule: ``sockets``, ``no nvlink``, ``no gdr``, ``few adapters`` or ``interface``.
    """

    rule: str
    text: str
    remedy: str


class NcclWires(RowPart):
    """The wires of one launch, from NCCL's own log. Null and empty: the log does not say.

    Attributes:
        version: Of NCCL.
        network: What NCCL chose between nodes, whether or not anything goes over it.
        num_channels: For collectives; of several communicators the largest number.
        algorithms: For which NCCL connected the ranks, and those that it names for a call.
        communicator_sizes: Ranks in each; with several, a pair's numbers are those of its own.
        transports: What pairs of ranks are joined by.
        nvlink_unused: Pairs that NVLink joins and whose messages go another way.
        nodes: By name.
        failed: The log has a connection that failed.
        findings: What is wrong; in a row of the summary.
    """

    version: str | None = None
    network: str | None = None
    num_channels: int | None = Field(None, ge=1, lt=LARGE)
    algorithms: list[str] = []
    communicator_sizes: list[int] = []
    transports: list[Transport] = []
    nvlink_unused: list[Pair] = []
    nodes: list[NodeWires] = []
    failed: bool = False
    findings: list[WireFinding] = []


class GradientNorms(Record):
    """Squared norms of gradients of equal batches, all at the same parameters.

    Attributes:
        num_batches: How many.
        batch_size: Samples of each.
        mean_square: Mean of the squared norms of their gradients.
        square_of_mean: Squared norm of the mean of their gradients.
    """

    num_batches: int = Field(ge=2)
    batch_size: int = Field(ge=1)
    mean_square: FiniteFloat = Field(ge=0)
    square_of_mean: FiniteFloat = Field(ge=0)


class RacePoint(Record):
    """An evaluation.

    Attributes:
        samples: That all ranks together had trained on.
        trained_s: Seconds of training until then, without evaluations.
        elapsed_s: Seconds since the start of the race, evaluations included.
        loss: Mean over the held-out samples; null: it was not finite.
        gradients: Norms on the held-out samples; null: not taken, as on several ranks.
        step_gradients: Norms of the gradients of the last step before it: each rank's own on its
            part of the batch, and their mean; null: not taken, as without DDP.
        sent_bytes: That the rank which sends most had sent in training, ring-equivalent; null: the
            strategy does not count them, and each step sends as many.
    """

    samples: int = Field(ge=0)
    trained_s: FiniteFloat = Field(ge=0)
    elapsed_s: FiniteFloat = Field(ge=0)
    loss: FiniteFloat | None
    gradients: GradientNorms | None = None
    step_gradients: GradientNorms | None = None
    sent_bytes: FiniteFloat | None = Field(None, ge=0)


Phase = Literal["warmup", "clean", "paired", "traced", "local", "bare", "part"]


class Block(Record):
    """Consecutive steps run without any synchronisation between them.

    The ranks agree on how to go on between blocks, so the first step of a block starts with
    empty queues: it is recorded and counts for nothing.

    Attributes:
        phase: ``warmup`` until the steady state was found, then ``clean``: the headline rests on
            these. After them come rounds of short blocks side by side, so that drift affects
            all equally: ``paired`` (like ``clean``), ``traced`` (under the profiler), ``local``
            (without synchronisation between ranks), ``bare`` (only the beginning and the end of
            the block are timed; every step but the first is given their mean), ``part`` (like
            ``paired``, on ``num_samples`` of the rank's batch: as many as a rank has at another
            N).
        first: Index of the block's first step in the rank's ``step_s``.
        count: Steps in the block, the first included.
        start_ns: When the first step of the block began; null: not noted.
        end_ns: When the last one was over.
        num_samples: Samples of each step; null: the rank's whole batch.
        cpu_s: Processor time of the rank's process meanwhile, all threads, seconds. Of a block that
            was cut in two, in proportion to the steps. Null: not noted.
    """

    phase: Phase
    first: int = Field(ge=0)
    count: int = Field(ge=1)
    start_ns: int | None = None
    end_ns: int | None = None
    num_samples: int | None = Field(None, ge=1, lt=LARGE)
    cpu_s: FiniteFloat | None = Field(None, ge=0)


class Memory(Record):
    """Peak memory of one rank in bytes; null: this device has no such number.

    The categories are those of the moment at which ``allocated_bytes`` was reached, counted in the
    ``inspect`` launch from the allocator's own events, and sum to it. See
    ``worker/inspection/memory.py`` for what belongs to which.

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
        tolerance: What the gradient's must stay below, of the worst parameter; the losses' too,
            where it is not more than the arithmetic in use needs.
        num_steps: Steps over which the losses were compared.
        worst_parameter: The parameter whose deviation is largest for what it is allowed.
    """

    status: Literal["verified", "deviates", "unverified", "reference"]
    gradient_deviation: FiniteFloat | None = None
    loss_deviation: FiniteFloat | None = None
    tolerance: FiniteFloat | None = None
    num_steps: int | None = None
    worst_parameter: str | None = None
    reason: str | None = None


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


ErrorKind = Literal[
    "exception", "oom", "usage", "unsupported", "peer", "signal", "limit", "exit", "ended"
]


class RankError(Record):
    """Why a rank ended without a result.

    Attributes:
        kind: ``peer``: a collective failed because another rank had gone; ``signal``: the
            process was killed; ``limit``: still running when the cell's time was over;
            ``usage``: the user's workload or suite is at fault; ``unsupported``: this strategy
            cannot run here; ``exit``: it left without a word; ``ended``: a user's script came to
            its end before there was enough to measure.
        time_ns: When, on the machine's monotonic clock.
    """

    kind: ErrorKind
    message: str
    traceback: str | None = None
    time_ns: int


class StepGap(Record):
    """Time between two steps of a user's script in which it did something else than train.

    Attributes:
        step: The step that came after it, by number.
        seconds: Beyond what usually lies between two steps. Version 0.1 also has what is neither
            evaluation nor saving: work that belongs to the training.
        evaluation_s: The part of it in which the script evaluated; null: not recorded.
        checkpoint_s: The part of it in which it saved; null: not recorded.
    """

    step: int = Field(ge=0)
    seconds: FiniteFloat = Field(ge=0)
    evaluation_s: FiniteFloat | None = None
    checkpoint_s: FiniteFloat | None = None

    @property
    def outside_s(self) -> float:
        """What is no training, seconds: evaluating and saving; all, where it is not recorded."""
        if self.evaluation_s is None or self.checkpoint_s is None:
            return self.seconds
        return min(self.evaluation_s + self.checkpoint_s, self.seconds)


class RankRecord(Record):
    """Everything one rank measured in one launch.

    Attributes:
        step_s: Duration of every step in seconds, warm-up included, by step number.
        data_s: How long the rank waited for the batches of each step, seconds; null: not recorded.
            Of ``bare`` steps nothing is known, and 0 stands.
        loss_scale: In float16, the steps from which on each scale of the loss was in force, up to
            the clean window's end; where it falls, the step before was skipped. Null: not scaled.
        loss: Loss of every step, mean over the rank's batch; null: it was not finite.
        blocks: How the steps were grouped; see `Block`.
        steady: Whether the steady state was found before the warm-up limits; null in an
            ``inspect`` launch.
        first_step_ns: When the first training step began.
        trace: What happened inside traced steps; null: none were traced, see
            ``trace_unavailable``.
        another_rank_left: Whether the trace is missing because another rank left, which then says
            why; null: not recorded.
        clock: How this rank's clock stood against rank 0's while steps were traced.
        logged_exposed_s: Exposed communication per step by DDP's own logging data, seconds.
        num_parameters: Parameters of the module, shared ones counted once.
        flops_per_sample: Floating-point operations of forward and backward of the bare model on
            one sample, counted in the ``inspect`` launch on rank 0; see
            ``worker/workloads/flops.py``.
            Null: not counted there, or no operator of the model is known to the counter.
        convolution_flops_per_sample: Of these, in convolutions, which have a TF32 setting of their
            own; null: not counted, as in older runs.
        compression: What compressed training handed over in its last measured step; null: the
            strategy compresses nothing.
        gradient_error: Of compressed training, from the ``inspect`` launch, on rank 0.
        race: Evaluations of a race, in order; null: the launch was none.
        recovery: Of a launch that saves or restores; null: any other.
        samples_per_step: Of a user's script: samples that this rank trained on in a step; null:
            not counted.
        gaps: Of a user's script: when it evaluated or saved between steps; null: not known, as of
            any other run.
        ended_after: Of a user's script that ended before everything was measured: its steps.
        wires: From NCCL's log, which the ``inspect`` launch writes; null: none was written.
        wires_unavailable: Why NCCL wrote no log that could be read.
        facts: What was in force in the rank: threads, affinity, scheduling class, device name,
            resolved backend, TF32, optimizer, …
    """

    rank: int = Field(ge=0)
    local_rank: int = Field(ge=0)
    pid: int
    host: str
    error: RankError | None = None
    step_s: list[FiniteFloat] = []
    data_s: list[FiniteFloat] | None = None
    loss_scale: list[tuple[int, FiniteFloat]] | None = None
    loss: list[FiniteFloat | None] = []
    blocks: list[Block] = []
    steady: bool | None = None
    first_step_ns: int | None = None
    num_parameters: int | None = Field(None, ge=0, lt=LARGE)
    tokens_per_sample: FiniteFloat | None = Field(None, gt=0, lt=LARGE)
    trace: Trace | None = None
    trace_unavailable: str | None = None
    another_rank_left: bool | None = None
    clock: ClockAlignment | None = None
    logged_exposed_s: FiniteFloat | None = None
    flops_per_sample: FiniteFloat | None = Field(None, gt=0)
    convolution_flops_per_sample: FiniteFloat | None = Field(None, ge=0)
    memory: Memory = Memory()
    verification: Verification | None = None
    compression: CompressionTraffic | None = None
    gradient_error: GradientError | None = None
    race: list[RacePoint] | None = None
    recovery: RecoveryRecord | None = None
    samples_per_step: FiniteFloat | None = Field(None, gt=0)
    gaps: list[StepGap] | None = None
    ended_after: int | None = Field(None, ge=1)
    wires: NcclWires | None = None
    wires_unavailable: str | None = None
    facts: dict[str, Any] = {}

    @cached_property
    def times_s(self) -> NDArray[np.float64]:
        """``step_s`` as an array, converted once."""
        return np.array(self.step_s)

    @property
    def has_own_reason(self) -> bool:
        """Whether ``trace_unavailable`` is about this rank, and not about one that left.

        Records of version 0.1 say it in words.
        """
        if self.another_rank_left is None:
            return not (self.trace_unavailable or "").startswith("another rank")
        return not self.another_rank_left

    @property
    def skipped(self) -> set[int]:
        """Steps without an update: their gradients overflowed in float16."""
        scales = self.loss_scale or []
        return {step - 1 for (_, a), (step, b) in pairwise(scales) if b < a}

    @property
    def num_trained(self) -> int:
        """Steps up to the end of the clean window; later ones may be without synchronisation."""
        ends = [b.first + b.count for b in self.blocks if b.phase in ("warmup", "clean")]
        return max(ends, default=0)
