"""What a rank's clock shows when rank 0's shows something else: offset, drift, and their error.

Monotonic clocks of different machines have nothing in common but roughly their rate. A rank asks
rank 0 for its time, several times, and notes on its own clock when it asked and when the answer
came. Rank 0 has read its clock somewhere in between: the offset is known within half of the
shortest round trip (Cristian 1989, "Probabilistic clock synchronization"). Done before and after
a window, this tells the drift as well, and whether one of the clocks jumped.

Ranks on one machine read one clock, and need no messages.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from scalebench.records.measured.trace import ClockAlignment
from scalebench.spec import Job
from scalebench.worker.process.context import JobContext

ROUND_TRIPS = 16
"""The first of them also makes the connection; the shortest is the one that counts."""

MAX_DRIFT = 200e-6
"""Two quartz oscillators differ by less: each is within 100 ppm of its rate."""

Clock = Callable[[], int]


@dataclass(frozen=True)
class ClockOffset:
    """This rank's clock minus rank 0's at one time.

    Attributes:
        bound_ns: The true offset is at most this far from it.
        at_ns: When, on this rank's clock.
    """

    offset_ns: int
    bound_ns: int
    at_ns: int
    method: Literal["shared clock", "ping-pong"]


@dataclass(frozen=True)
class Exchange:
    """One question to rank 0 and its answer.

    Attributes:
        sent_ns: When the question was sent, on this rank's clock.
        there_ns: What rank 0's clock showed in between.
        received_ns: When the answer had come, on this rank's clock.
    """

    sent_ns: int
    there_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        """From question to answer, on this rank's clock."""
        return self.received_ns - self.sent_ns


def offset_of(exchanges: Sequence[Exchange]) -> ClockOffset:
    """Return the offset that the exchange with the shortest round trip tells.

    Rank 0 read its clock between question and answer. Taking the middle is wrong by at most half
    of the round trip, and half a nanosecond of rounding.
    """
    best = min(exchanges, key=lambda exchange: exchange.round_trip_ns)
    middle = (best.sent_ns + best.received_ns) // 2
    bound = best.round_trip_ns // 2 + 1
    return ClockOffset(middle - best.there_ns, bound, middle, "ping-pong")


def measure_offset(
    context: JobContext[Job], clock: Clock = time.monotonic_ns, force: bool = False
) -> ClockOffset:
    """Compare this rank's clock with rank 0's; every rank has to call this at the same time.

    Costs `ROUND_TRIPS` small messages there and back per rank on another machine, one rank after
    the other, and two small collectives in any case.

    ``clock`` tells nanoseconds and never goes backwards. ``force``: exchange messages even between
    ranks that share a clock.
    """
    alike = {0} if force else _ranks_with_the_clock_of_rank_0(context, clock)
    if context.rank == 0:
        for rank in range(1, context.job.world_size):
            if rank not in alike:
                _answer(rank, context, clock)
    if context.rank in alike:
        return ClockOffset(0, 0, clock(), "shared clock")
    return offset_of([_ask(context, clock) for _ in range(ROUND_TRIPS)])


def combine(before: ClockOffset, after: ClockOffset) -> ClockAlignment:
    """Return how the clocks stood between two measurements.

    The offset is taken to grow linearly from the one to the other. A straight line between two
    values that are wrong by at most b is nowhere wrong by more than b.

    When the offset changed by more than both errors and `MAX_DRIFT` explain, a clock has jumped
    at an unknown time: then the offset is the middle of both, and the bound reaches to either.

    Raises:
        ValueError: ``after`` was not measured later than ``before``.
    """
    elapsed_ns = after.at_ns - before.at_ns
    if elapsed_ns <= 0:
        raise ValueError(f"measured {-elapsed_ns} ns before the first measurement")
    change_ns = after.offset_ns - before.offset_ns
    bound_ns = max(before.bound_ns, after.bound_ns)
    explained_ns = before.bound_ns + after.bound_ns + MAX_DRIFT * elapsed_ns
    alignment = ClockAlignment(
        method="shared clock" if before.method == after.method == "shared clock" else "ping-pong",
        at_ns=before.at_ns,
        offset_ns=before.offset_ns,
        drift=change_ns / elapsed_ns,
        bound_ns=bound_ns,
    )
    if abs(change_ns) <= explained_ns:
        return alignment
    jump = {
        "offset_ns": before.offset_ns + change_ns // 2,
        "drift": 0.0,
        "bound_ns": bound_ns + abs(change_ns) // 2 + 1,
        "stepped": (
            f"this rank's clock and rank 0's moved by {change_ns / 1e6:+.3f} ms against each other "
            f"within {elapsed_ns / 1e9:.1f} s; drift and measurement error explain at most "
            f"{explained_ns / 1e6:.3f} ms"
        ),
    }
    return alignment.model_copy(update=jump)


def _ranks_with_the_clock_of_rank_0(context: JobContext[Job], clock: Clock) -> set[int]:
    """Return the ranks whose clock is the one that rank 0 reads; the same set on every rank.

    Machines that were restored from one snapshot have the same name and separate clocks.
    So the readings have to be in order, too: none that was taken before the ranks exchanged them
    may be later than one taken after.
    """
    if context.control is None:
        return {0}
    stated = context.gather((clock_name(), clock()))
    now = clock()
    name_of_0, _ = stated[0]
    alike = {rank for rank, (name, _) in enumerate(stated) if rank == 0 or name == name_of_0 != ""}
    out_of_order = context.rank in alike and any(stated[rank][1] > now for rank in alike)
    (disproved,) = context.agree_max([float(out_of_order)])
    return {0} if disproved else alike


def clock_name() -> str:
    """Return what names the monotonic clock of this process; empty where nothing does.

    The kernel's boot, and the time namespace, whose offset is added to the clock.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    try:
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except FileNotFoundError:  # a kernel before 5.6: there are no time namespaces
        return boot
    except OSError:
        return ""


def _ask(context: JobContext[Job], clock: Clock) -> Exchange:
    message = torch.zeros(1, dtype=torch.int64)
    sent = clock()
    dist.send(message, dst=0, group=context.control)
    dist.recv(message, src=0, group=context.control)
    received = clock()
    return Exchange(sent, int(message.item()), received)


def _answer(rank: int, context: JobContext[Job], clock: Clock) -> None:
    message = torch.zeros(1, dtype=torch.int64)
    for _ in range(ROUND_TRIPS):
        dist.recv(message, src=rank, group=context.control)
        message.fill_(clock())
        dist.send(message, dst=rank, group=context.control)
