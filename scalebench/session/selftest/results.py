"""Collectives' results: all of them right, and a wrong one is noticed."""

from collections.abc import Iterator

from scalebench.records.certificate import Line
from scalebench.records.probes import TimedTransfer
from scalebench.session.selftest.bench import Bench
from scalebench.spec.collectives import COLLECTIVES, DtypeName
from scalebench.spec.probes import InjectedFault, Sweep, Transfer

SIZES_BYTES = (24, 4096, 262144)
DTYPES: tuple[DtypeName, ...] = ("float32", "int8")
NUM_RANKS = 3
MOST_WRONG = 20


def results(bench: Bench) -> Iterator[Line]:
    """Yield how many elements were wrong, with none injected and with some."""
    found = _sweep(bench, None)
    num_wrong = sum(one.num_wrong for one in found)
    kinds = len({one.transfer.operation for one in found})
    yield _line(
        "results of collectives",
        injected=0,
        recovered=num_wrong,
        detail=f"{kinds} operations, {sum(one.num_elements for one in found)} elements",
    )
    fault = InjectedFault(
        kind="wrong_elements",
        rank=bench.random.randrange(NUM_RANKS),
        count=bench.random.randint(1, MOST_WRONG),
    )
    found = _sweep(bench, fault)
    yield _line(
        "wrong elements planted",
        injected=fault.count,
        recovered=sum(one.num_wrong for one in found),
        detail=f"rank {fault.rank} of {NUM_RANKS}",
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


def _sweep(bench: Bench, fault: InjectedFault | None) -> tuple[TimedTransfer, ...]:
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
    return bench.probe(plan, fault)[0].sweep
