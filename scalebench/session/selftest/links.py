"""Links of known rate: does what operations take tell the rate, and which host is behind it?"""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from scalebench.records.certificate import Line
from scalebench.records.measured.probes import TimedTransfer
from scalebench.session.selftest.bench import Bench
from scalebench.spec.collectives import CollectiveName
from scalebench.spec.probes import Sweep, Transfer
from scalebench.spec.virtual_hosts import BOTH_WAYS_SHARE, PAYLOAD_SHARE, VirtualHosts, rate_text
from scalebench.stats import median_with_noise

NUM_RATES = 3
MBIT = 1_000_000
RATES_MBIT = (50, 150)
SLOW_MBIT, FAST_MBIT = (20, 60), 150
LARGE_S, SMALLER = 0.06, 4
"""The larger of two messages takes a link 60 ms, the smaller a quarter of it."""

LIMIT = 0.02
NUM_HOSTS = 3


def rates(bench: Bench) -> Iterator[Line]:
    """Yield, for each of three random rates, the rate that transfers and all-reduces tell."""
    for _ in range(NUM_RATES):
        rate = bench.random.randint(*RATES_MBIT) * MBIT
        hosts = VirtualHosts(link_bit_per_s=(rate,))
        names: tuple[CollectiveName, ...] = ("send_recv", "all_reduce")
        transfers = [t for name in names for t in _two_sizes(name, rate)]
        found = _sweep(bench, hosts, 2, transfers)
        for name, share, pair in (
            ("send to recv", PAYLOAD_SHARE, found[:2]),
            ("all-reduce", BOTH_WAYS_SHARE, found[2:]),
        ):
            yield rate_line(f"link rate, {name}", rate * share, pair, f"{rate_text(rate)}, 2 hosts")


def slower_host(bench: Bench) -> Iterator[Line]:
    """Yield the host that is behind a slower link, and the rate of that."""
    slow = bench.random.randrange(NUM_HOSTS)
    rate = bench.random.randint(*SLOW_MBIT) * MBIT
    links = tuple(rate if host == slow else FAST_MBIT * MBIT for host in range(NUM_HOSTS))
    pairs = list(combinations(range(NUM_HOSTS), 2))
    transfers = [t for pair in pairs for t in _two_sizes("send_recv", rate, pair)]
    found = _sweep(bench, VirtualHosts(link_bit_per_s=links), NUM_HOSTS, transfers)
    by_pair = dict(zip(pairs, zip(found[::2], found[1::2], strict=True), strict=True))
    named = slowest_host({pair: measured_rate(*two)[0] for pair, two in by_pair.items()})
    behind = [two for pair, two in by_pair.items() if named in pair]
    told = f"host {named} of {NUM_HOSTS}, {rate_text(rate)}"
    line = rate_line("slower link to one host", rate * PAYLOAD_SHARE, behind[0], told)
    if named != slow:
        wrong = f"host {named} was named, and host {slow} has the slower link"
        line = line.model_copy(update={"passed": False, "reason": wrong})
    yield line


def slowest_host(rate_of_pair: dict[tuple[int, int], float]) -> int:
    """Return the host whose fastest connection is slowest: all of its own are slow."""
    hosts = sorted({host for pair in rate_of_pair for host in pair})
    best = {h: max(r for pair, r in rate_of_pair.items() if h in pair) for h in hosts}
    return min(hosts, key=best.__getitem__)


def rate_line(name: str, injected: float, pair: Sequence[TimedTransfer], detail: str) -> Line:
    """Return the line of one rate, bits of payload per second.

    ``injected`` is the rate that was set; ``pair``: the same operation at a smaller and a larger
    size.
    """
    found, noise_ratio = measured_rate(*pair)
    return Line(
        name=name,
        unit="bit/s",
        injected=injected,
        recovered=found,
        error_ratio=found / injected - 1,
        noise_ratio=noise_ratio,
        limit=LIMIT,
        detail=f"{detail}, {len(pair[0].time_s)} repeats",
    )


def measured_rate(smaller: TimedTransfer, larger: TimedTransfer) -> tuple[float, float]:
    """Return the rate that two sizes tell, bits per second, and its noise as a ratio.

    From what the larger takes longer: what every operation costs, and what a link lets through at
    once after a pause, is the same in both.
    """
    bits = (larger.size_bytes - smaller.size_bytes) * 8
    longer_s = np.subtract(larger.time_s, smaller.time_s)
    found_s, noise_s = median_with_noise(longer_s.tolist())
    found_s = max(found_s, np.finfo(float).tiny)
    return bits / found_s, noise_s / found_s


def _two_sizes(
    name: CollectiveName, bit_per_s: int, peers: tuple[int, int] = (0, 1)
) -> list[Transfer]:
    large = round(bit_per_s / 8 * LARGE_S)
    return [
        Transfer(operation=name, size_bytes=size, peers=peers) for size in (large // SMALLER, large)
    ]


def _sweep(
    bench: Bench, hosts: VirtualHosts, num_ranks: int, transfers: Sequence[Transfer]
) -> tuple[TimedTransfer, ...]:
    plan = Sweep(
        world_size=num_ranks,
        device="cpu",
        backend="gloo",
        threads=1,
        virtual_hosts=hosts,
        transfers=tuple(transfers),
        repeats=bench.effort.repeats,
    )
    return bench.probe(plan)[0].sweep
