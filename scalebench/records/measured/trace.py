"""What a traced window leaves of a rank, and what is stored of the node while ranks train.

What is stored of the node while ranks train: its GPUs as NVML tells, its processors.

Raw readings in columns, as short in the file as they can be; everything derived (energy, clocks
in the clean window, stamps) is worked out again at every reading. SI units, the unit is the suffix
of the name. ``*_ns`` are nanoseconds of the machine's monotonic clock, the same clock as that of
`Block`. What could not be read is null and ``unavailable`` has the reason; it is never 0.

NVML's utilisation is not stored: it says that a kernel was resident, nothing of how well the
device was used.
"""

from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from scalebench.spec.base import LARGE, Record

THROTTLE_REASONS = {
    0x001: "GPU idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability limit",
}
"""NVML's ``nvmlClocksEventReason*`` (before: ``nvmlClocksThrottleReason*``), bit → name."""


class TracedOperation(Record):
    """A collective or point-to-point operation as one rank traced it.

    Attributes:
        kind: ``all_reduce``, …, ``unknown``; see `scalebench.trace.events.Operation`.
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


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Return the names of the reasons in one reading of ``throttle_bits``.

    A bit that a later driver added is named by its number.
    """
    positions = (1 << i for i in range(bits.bit_length()))
    return tuple(
        THROTTLE_REASONS.get(bit, f"unknown reason {bit:#x}") for bit in positions if bits & bit
    )


class _Columns(Record):
    time_ns: list[int] = []

    @model_validator(mode="after")
    def _columns_are_whole(self) -> Self:
        """Refuse a column that is neither empty nor as long as ``time_ns``."""
        num_readings = len(self.time_ns)
        for name in type(self).model_fields:
            if len(getattr(self, name)) not in (0, num_readings):
                raise ValueError(
                    f"{name} does not have one entry for each of {num_readings} readings"
                )
        return self


class DeviceStates(_Columns):
    """The state of one device, read ten times a second; one entry per reading in every column.

    A column that was never read is empty; a single entry that could not be read is null.

    Attributes:
        time_ns: When the energy counter, which is the first to be read, was read.
        energy_j: Counter since the driver was loaded.
        power_w: Ampere (but GA100) and newer: mean over the last second; older: the moment's.
        sm_clock_hz: Clock of the multiprocessors.
        memory_clock_hz: Clock of the device's memory.
        temperature_c: Of the die, degrees Celsius.
        throttle_bits: Why the clocks are not higher; `throttle_reasons` names them.
    """

    energy_j: list[FiniteFloat | None] = []
    power_w: list[FiniteFloat | None] = []
    sm_clock_hz: list[int | None] = []
    memory_clock_hz: list[int | None] = []
    temperature_c: list[int | None] = []
    throttle_bits: list[int | None] = []


class DeviceTraffic(_Columns):
    """What is dearer to read, about once a second; one entry per reading in every column.

    Attributes:
        time_ns: When the reading began.
        pcie_rx_byte_per_s: Mean over the 20 ms that NVML counts in each call; received.
        pcie_tx_byte_per_s: The same, sent.
        nvlink_rx_bytes: Counter over all links, payload only; received.
        nvlink_tx_bytes: The same, sent.
        memory_used_bytes: By everyone, the driver's own included.
        own_processes: Processes of this launch that compute on the device.
        foreign_processes: Processes that compute on the device and are not of this launch.
        foreign_bytes: What they hold of its memory.
    """

    pcie_rx_byte_per_s: list[int | None] = []
    pcie_tx_byte_per_s: list[int | None] = []
    nvlink_rx_bytes: list[int | None] = []
    nvlink_tx_bytes: list[int | None] = []
    memory_used_bytes: list[int | None] = []
    own_processes: list[int | None] = []
    foreign_processes: list[int | None] = []
    foreign_bytes: list[int | None] = []


class DeviceTrack(Record):
    """One GPU over one launch.

    Attributes:
        uuid: As NVML writes it, ``GPU-…`` or ``MIG-…``.
        name: The product's name.
        index: NVML's number of the device, which need not be CUDA's.
        unavailable: Field → why it is null, throughout or in some readings.
    """

    uuid: str
    name: str | None = None
    index: int | None = None
    states: DeviceStates = DeviceStates()
    traffic: DeviceTraffic = DeviceTraffic()
    unavailable: dict[str, str] = {}


class HostLoad(Record):
    """What the processors did from the start of a launch to its end.

    Only the processors that the launcher may run on are counted, by everyone on the machine.

    Attributes:
        wall_s: Length of the launch.
        num_processors: Processors that were counted.
        busy_cpu_s: Time in processes and system calls, of everybody; interrupts are left out.
        steal_cpu_s: Time that the hypervisor gave to other machines although there was work.
        job_cpu_s: CPU time of the launcher, the ranks, and everything that they started and
            waited for.
        swap_in_bytes: Read from swap by the whole machine.
        swap_out_bytes: Written to swap by the whole machine.
        unavailable: Field → why it is null.
    """

    wall_s: FiniteFloat = Field(gt=0)
    num_processors: int | None = Field(None, ge=1)
    busy_cpu_s: FiniteFloat | None = None
    steal_cpu_s: FiniteFloat | None = None
    job_cpu_s: FiniteFloat | None = None
    swap_in_bytes: int | None = None
    swap_out_bytes: int | None = None
    unavailable: dict[str, str] = {}

    @property
    def steal_fraction(self) -> float | None:
        """Share of the processors' time that the hypervisor gave to others."""
        if self.steal_cpu_s is None or self.num_processors is None:
            return None
        return self.steal_cpu_s / (self.num_processors * self.wall_s)

    @property
    def foreign_cores(self) -> float | None:
        """Mean number of processors that other processes kept busy: (busy − ours) / wall.

        A lower bound. The kernel may count the network's work on behalf of the ranks as theirs,
        which makes ours larger and is not in busy; what others do in interrupts is not counted.
        """
        if self.busy_cpu_s is None or self.job_cpu_s is None:
            return None
        return max(0.0, self.busy_cpu_s - self.job_cpu_s) / self.wall_s


class NodeTrack(Record):
    """One machine over one launch.

    Attributes:
        devices: The GPUs that the ranks used; where scalebench starts them on one machine, all that
            they could use. Times of other machines are on the clock of the session's.
        host: What the processors did.
        num_ticks: How often the sampler woke.
        sampler_cpu_s: CPU time of the sampling thread: what watching cost.
        unavailable: ``devices`` → why there are none, ``host`` likewise.
    """

    devices: list[DeviceTrack] = []
    host: HostLoad | None = None
    num_ticks: int = 0
    sampler_cpu_s: FiniteFloat | None = None
    unavailable: dict[str, str] = {}
