import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalebench.analysis.summarise import summarise
from scalebench.records.measured.trace import ClockAlignment
from scalebench.records.rows.budget import PARTS
from scalebench.spec import Mesh
from tests.builders.runs import make_inspection, make_run
from tests.builders.tracing.traced import (
    flat,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
    on_gpu,
)
from tests.examples import cases


def plain(traced=100, repeat=0):
    """One rank: of a step of 100 ms, 90 % are computation."""
    trace = make_trace(compute=[(0, 0.9 * traced)], steps=[(0, traced)])
    return make_traced_result(make_traced_record(0, trace, 100), case="plain", repeat=repeat)


def pair(clean=80.0, compute=(45.0, 45.0), starts=(50.0, 70.0), end=75.0, traced=None, **changes):
    """Two ranks that reduce once; the first waits for the second."""
    records = []
    for rank in range(2):
        operation = make_operation(starts[rank], end)
        trace = make_trace([operation], compute=[(0, compute[rank])], steps=[(0, traced or clean)])
        records.append(make_traced_record(rank, trace, clean, **changes))
    return make_traced_result(*records)


def row_of(*results):
    summary = summarise(make_run([make_inspection(results[0].cell), *results]))
    return next(row for row in summary.rows if row.world_size == 2)


def with_ranks(result, *changes):
    ranks = [
        rank.model_copy(update=change) for rank, change in zip(result.ranks, changes, strict=True)
    ]
    return result.model_copy(update={"ranks": ranks})


def with_traces(result, *changes):
    """The same launch with fields of its ranks' traces changed, in their order."""
    return with_ranks(
        result,
        *(
            {"trace": rank.trace.model_copy(update=change)}
            for rank, change in zip(result.ranks, changes, strict=True)
        ),
    )


def with_copies(result, *spans):
    """The same launch on a GPU whose ranks copied then; None: their traces do not say."""
    copies = None if spans == (None,) else flat(spans)
    return on_gpu(with_traces(result, *[{"copies": copies}] * len(result.ranks)))


def check_closed(budget):
    total = sum(getattr(budget, part.field) or 0.0 for part in PARTS)
    assert total == pytest.approx(budget.measured_s - budget.ideal_s, abs=1e-9)


def test_copies_are_a_part_of_their_own():
    """Plain copies for 4 of its 10 ms of idle time, so 2 were ideal; of 80 ms a rank copies 8:
    3 beside rank 0's communication, 5 alone."""
    row = row_of(with_copies(plain(), (92, 96)), with_copies(pair(), (60, 63), (75, 80)))
    budget = row.budget
    assert budget.copies_s == pytest.approx(0.005 - 0.5 * 0.004)
    assert budget.other_idle_s == pytest.approx(0.010 - 0.005 - 0.5 * (0.010 - 0.004))
    assert (budget.wait_s, budget.exposed_transfer_s) == pytest.approx((0.020, 0.005))
    assert budget.closes is True
    check_closed(budget)
    assert row.copies_s.value == pytest.approx(0.008)
    assert [rank.copies_alone_s for rank in budget.ranks] == pytest.approx([0.005, 0.005 + 0.003])
    assert [rank.comm_beside_copies_s for rank in budget.ranks] == pytest.approx([0.003, 0.0])


STEPPED = ClockAlignment(
    method="ping-pong", at_ns=0, offset_ns=0, bound_ns=10**7, stepped="by 20 ms"
)
OTHER_SIZE = {"operations": [make_operation(70, 75, num_bytes=7)]}
SENT = {"operations": [make_operation(50, 75, kind="send"), make_operation(76, 77)]}


@cases(
    "found, field, why",
    (with_ranks(pair(), {}, {"clock": STEPPED}), "wait_s", "jumped: by 20 ms"),
    (
        with_traces(pair(), {}, {"operations": []}),
        "wait_s",
        "rank 0 has 1 all_reduce where rank 1 has 0",
    ),
    (with_traces(pair(), {}, OTHER_SIZE), "wait_s", "2 operations were not found on all ranks"),
    (with_traces(pair(), *[{"clock_error_s": 0.02}] * 2), "wait_s", "moved by 20.0 ms"),
    (with_traces(pair(), SENT, SENT), "wait_s", "do not show which rank waited"),
    (with_ranks(pair(), {}, {"trace": None}), "budget", "no launch of this row was traced"),
    (with_traces(pair(), *[{"operations": []}] * 2), "budget", "no communication at all"),
)
def test_what_is_not_known_is_said_and_the_rest_is_kept(found, field, why):
    """Where waits are not known, all exposed communication is transfer."""
    row = row_of(plain(), found)
    assert getattr(row, field) is None and why in row.unavailable[field]
    assert row.step_s is not None and row.efficiency is not None
    if field == "wait_s":
        assert row.exposed_transfer_s is None and row.budget.wait_s is None
        assert row.budget.exposed_transfer_s == pytest.approx(row.exposed_comm_s.value)
        assert why in row.budget.not_apart
        check_closed(row.budget)


shares = st.floats(0.05, 0.95)


@given(shares, shares, shares, shares, st.floats(1.0, 1.3), st.floats(0.5, 2.0))
def test_whatever_was_measured_the_budget_closes(compute, begin, late, end, overhead, slower):
    begin, late, end = sorted((begin, late, end))
    assume(end > late)
    clean = 50.0 * slower
    step = clean * overhead
    found = pair(
        clean=clean,
        traced=step,
        compute=(compute * step, compute * step),
        starts=(begin * step, late * step),
        end=end * step,
    )
    row = row_of(plain(traced=107.0), found)
    check_closed(row.budget)
    assert row.budget.measured_s == pytest.approx(clean / 1e3)
    assert row.efficiency.value + sum(row.budget.points.values()) == pytest.approx(1.0)


def in_rounds(*makers):
    """One launch each of plain and DDP for every round: (plain, DDP)."""
    return [
        result.model_copy(update={"cell": result.cell.model_copy(update={"repeat": repeat})})
        for repeat, both in enumerate(makers)
        for result in both
    ]


def test_a_round_that_was_traced_while_the_machine_was_busy_is_left_out():
    quiet = row_of(*in_rounds((plain(), pair()), (plain(), pair())))
    # DDP's steps took five times as long while they were traced
    slow = {"traced": 400, "paired": 390, "compute": (200, 200), "starts": (210, 300), "end": 390}
    row = row_of(*in_rounds(*[(plain(), pair())] * 2, (plain(), pair(clean=80, **slow))))
    assert row.budget.rounds_left_out == 1
    assert row.budget.closes and "budget open" not in row.stamps
    assert row.budget.points == pytest.approx(quiet.budget.points)
    assert abs(row.budget.drift) < 0.25
    check_closed(row.budget)


def axes_pair(*operations, repeat=0):
    """Two ranks, steps of 80 ms; each operation is axis, its starts on both ranks, its end."""
    records = []
    for rank in range(2):
        own = [
            make_operation(starts[rank], end, ordinal=place, axis=axis, kind=kind, group=axis)
            for place, (axis, kind, starts, end) in enumerate(operations)
        ]
        trace = make_trace(own, compute=[(0, 40)], steps=[(0, 80)])
        records.append(make_traced_record(rank, trace, 80))
    return make_traced_result(*records, case="mesh", strategy=Mesh(tensor=2), repeat=repeat)


TENSOR = ("tensor", "all_reduce", (40, 50), 56)
DATA = ("data", "all_reduce", (60, 60), 64)


def test_parts_by_dimension_sum_to_the_budget_over_rounds_that_differ():
    second = axes_pair(("tensor", "all_reduce", (40, 41), 60), DATA, repeat=1)
    budget = row_of(plain(), axes_pair(TENSOR, DATA), plain(repeat=1), second).budget
    parts = budget.by_axis
    assert sum(one.exposed_transfer_s for one in parts) == pytest.approx(budget.exposed_transfer_s)
    assert sum(one.wait_s for one in parts) == pytest.approx(budget.wait_s)
    tensor = parts[0]
    assert tensor.exposed_s.value == pytest.approx(tensor.exposed_transfer_s + tensor.wait_s)
    assert tensor.exposed_s.n == 2 and tensor.exposed_s.half_width > 0
