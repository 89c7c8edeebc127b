"""Collectives' results: all of them right, and a wrong one is noticed."""

from collections.abc import Iterator

from scalebench.certificate import Line
from scalebench.collectives import COLLECTIVES, DtypeName
from scalebench.planted import Planted
from scalebench.probe import Sweep, TimedTransfer, Transfer
from scalebench.selftest.bench import Bench

SIZES_BYTES = (24, 4096, 262144)
DTYPES: tuple[DtypeName, ...] = ("float32", "int8")
NUM_RANKS = 3
MOST_WRONG = 20


def results(bench: Bench) -> Iterator[Line]:
    """Yield how many elements were wrong, with none planted and with some."""
    found = _sweep(bench, None)
    num_wrong = sum(one.num_wrong for one in found)
    kinds = len({one.transfer.operation for one in found})
    yield _line(
        "results of collectives",
        injected=0,
        recovered=num_wrong,
        detail=f"{kinds} operations, {sum(one.num_elements for one in found)} elements",
    )
    planted = Planted(
        kind="wrong_elements",
        rank=bench.random.randrange(NUM_RANKS),
        count=bench.random.randint(1, MOST_WRONG),
    )
    found = _sweep(bench, planted)
    yield _line(
        "wrong elements planted",
        injected=planted.count,
        recovered=sum(one.num_wrong for one in found),
        detail=f"rank {planted.rank} of {NUM_RANKS}",
    )


def _line(name: str, injected: int, recovered: int, detail: str) -> Line:
    error = recovered - injected
    return Line(
        name=name,
        unit="elements",
        injected=injected,
        recovered=recovered,
        error_ratio=error / max(injected, 1),
        limit=0.0,
        limit_of="elements",
        detail=detail,
    )


def _sweep(bench: Bench, planted: Planted | None) -> tuple[TimedTransfer, ...]:
    transfers = tuple(
        Transfer(operation=name, size_bytes=size, dtype=dtype, back_to_back=1)
        for name in COLLECTIVES
        for size in SIZES_BYTES
        for dtype in DTYPES
    )
    plan = Sweep(
        world_size=NUM_RANKS,
        device="cpu",
        backend="gloo",
        threads=1,
        transfers=transfers,
        repeats=1,
    )
    return bench.probe(plan, planted)[0].sweep
