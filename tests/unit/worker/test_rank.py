"""What a rank writes down of itself."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec.probes import Sweep, Transfer
from scalebench.worker.probes import FEWEST_SIZES, TimeLimit

SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
OPERATIONS = ("all_reduce", "all_gather")
BYTE_PER_S = 1e6


def swept(limit_s: float | None, repeats: int = 2) -> tuple[Counter[tuple[str, int]], float]:
    """Return how often each operation was timed at each size, and how long that took."""
    transfers = tuple(Transfer(operation=op, size_bytes=s) for op in OPERATIONS for s in SIZES)
    job = {"world_size": 2, "device": "cpu", "backend": "gloo", "threads": 1}
    plan = Sweep(**job, transfers=transfers, repeats=repeats, time_limit_s=limit_s)  # type: ignore[arg-type]
    limit, timed, spent_s = TimeLimit(plan), Counter[tuple[str, int]](), 0.0
    for _ in range(repeats):
        for place in limit.order:
            if limit.allows(place):
                one = transfers[place]
                took_s = (one.back_to_back + 1) * one.size_bytes / BYTE_PER_S
                if limit_s is not None:
                    limit.spent(place, took_s)
                timed[one.operation, one.size_bytes] += 1
                spent_s += took_s
    return timed, spent_s


ALL_S = swept(None)[1]


@given(st.floats(min_value=1e-6, max_value=2 * ALL_S))
def test_the_limit_is_kept_and_every_operation_can_still_be_fitted(limit_s: float) -> None:
    timed, spent_s = swept(limit_s)
    fewest_s = len(OPERATIONS) * 3 * sum(SIZES[:FEWEST_SIZES]) / BYTE_PER_S
    assert spent_s <= max(limit_s, fewest_s)
    for operation in OPERATIONS:
        sizes = sorted(size for op, size in timed if op == operation)
        assert tuple(sizes) == SIZES[: len(sizes)] and len(sizes) >= FEWEST_SIZES
