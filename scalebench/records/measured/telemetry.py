"""What is stored of the node while ranks train: its GPUs as NVML tells, its processors.

Raw readings in columns, as short in the file as they can be; everything derived (energy, clocks
in the clean window, stamps) is worked out again at every reading. SI units, the unit is the suffix
of the name. ``*_ns`` are nanoseconds of the machine's monotonic clock, the same clock as that of
`Block`. What could not be read is null and ``unavailable`` has the reason; it is never 0.

NVML's utilisation is not stored: it says that a kernel was resident, nothing of how well the
device was used.
"""

from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from scalebench.records.base import Record

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
