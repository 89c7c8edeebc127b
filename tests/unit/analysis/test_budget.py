"""The loss budget: closes exactly, and names the part that was lost."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalebench.analysis.attribution import why_not
from scalebench.analysis.summarise import summarise
from scalebench.records.rows.budget import PARTS
from scalebench.records.trace import ClockAlignment
from tests.builders.runs import make_inspection, make_result, make_run
from tests.builders.traced import (
    flat,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
    on_gpu,
)

SUMMED = tuple(part.field for part in PARTS)


def plain(clean=100.0, traced=None, compute=90.0, **changes):
    """One rank: of a step of 100 ms, 90 ms are computation, unless said otherwise."""
    step = traced or clean
    trace = make_trace(compute=[(0, compute * step / clean)], steps=[(0, step)])
    return make_traced_result(make_traced_record(0, trace, clean), case="plain", **changes)


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


def with_copies(result, *spans):
    """The same launch on a GPU whose ranks copied then; None: their traces do not say."""
    copies = None if spans == (None,) else flat(spans)
    ranks = [
        r.model_copy(update={"trace": r.trace.model_copy(update={"copies": copies})})
        for r in result.ranks
    ]
    return on_gpu(result.model_copy(update={"ranks": ranks}))


def check_closed(budget):
    total = sum(getattr(budget, name) or 0.0 for name in SUMMED)
    assert total == pytest.approx(budget.measured_s - budget.ideal_s, abs=1e-9)


def test_a_budget_by_hand():
    """T_1 = 100 ms, so 50 ms were ideal; 80 ms it is. Tracing costs nothing here."""
    row = row_of(plain(), pair())
    budget = row.budget
    assert budget.rank == 0
    assert budget.ideal_s == pytest.approx(0.050)
    assert budget.measured_s == pytest.approx(0.080)
    assert budget.compute_inflation_s == pytest.approx(0.0, abs=1e-12)
    assert budget.wait_s == pytest.approx(0.020)
    assert budget.exposed_transfer_s == pytest.approx(0.005)
    assert budget.other_idle_s == pytest.approx(0.010 - 0.005)
    assert budget.residual_s == pytest.approx(0.0, abs=1e-12)
    assert budget.points["wait"] == pytest.approx(0.25)
    assert budget.closes is True
    check_closed(budget)
    assert row.wait_s.value == pytest.approx(0.020)
    assert row.exposed_comm_s.value == pytest.approx(0.025)
    assert row.overlap_ratio.value == pytest.approx(0.0)
    assert row.comm_compute_ratio.value == pytest.approx(25 / 45)
    assert row.stragglers[0].rank == 1
    assert [rank.wait_s for rank in budget.ranks] == pytest.approx([0.020, 0.0])


def test_copies_are_a_part_of_their_own():
    """Plain copies for 4 of its 10 ms of idle time, so 2 were ideal; of 80 ms a rank copies 8:
    3 beside rank 0's communication, 5 alone."""
    row = row_of(with_copies(plain(), (92, 96)), with_copies(pair(), (60, 63), (75, 80)))
    budget = row.budget
    assert budget.copies_s == pytest.approx(0.005 - 0.5 * 0.004)
    assert budget.points["copies"] == pytest.approx(3 / 80)
    assert budget.estimates["copies_s"].value == pytest.approx(0.003)
    assert budget.other_idle_s == pytest.approx(0.010 - 0.005 - 0.5 * (0.010 - 0.004))
    assert (budget.wait_s, budget.exposed_transfer_s) == pytest.approx((0.020, 0.005))
    assert budget.closes is True
    check_closed(budget)
    assert row.copies_s.value == pytest.approx(0.008)
    assert row.comm_beside_copies_s.value == pytest.approx(0.003)
    assert row.overlap_ratio.value == pytest.approx(0.0)
    assert [rank.copies_alone_s for rank in budget.ranks] == pytest.approx([0.005, 0.005 + 0.003])
    assert [rank.comm_beside_copies_s for rank in budget.ranks] == pytest.approx([0.003, 0.0])


def test_a_gpus_trace_of_version_0_1_has_no_number_for_copies():
    """What such a trace leaves of a step is idle time, as before; its budget closes."""
    row = row_of(with_copies(plain(), None), with_copies(pair(), None))
    assert row.budget.copies_s is None and "copies" not in row.budget.points
    assert row.budget.other_idle_s == pytest.approx(0.010 - 0.005)
    assert row.budget.closes is True
    assert row.copies_s is None and "version 0.1" in row.unavailable["comm_beside_copies_s"]
    assert [rank.copies_alone_s for rank in row.budget.ranks] == [None, None]
    check_closed(row.budget)


def test_points_and_efficiency_sum_to_one():
    row = row_of(plain(), pair())
    assert row.efficiency.value + sum(row.budget.points.values()) == pytest.approx(1.0)


def test_what_tracing_costs_is_taken_off_the_host_and_not_off_the_wire():
    """Traced, the same step takes 88 ms: 8 ms more computation, transfer and wait as before."""
    slow = pair(traced=88.0, compute=(53.0, 53.0), starts=(58.0, 78.0), end=83.0)
    row = row_of(plain(), slow)
    assert row.trace_overhead.value == pytest.approx(0.1)
    budget = row.budget
    assert budget.wait_s == pytest.approx(0.020)
    assert budget.exposed_transfer_s == pytest.approx(0.005)
    host_s = budget.compute_inflation_s + budget.other_idle_s
    assert host_s == pytest.approx(0.005)
    check_closed(budget)


def test_on_a_gpu_what_tracing_costs_is_taken_off_the_gaps():
    """A clean plain step has 10 ms of gaps, a traced one 22; a clean step of the pair 10, a traced
    one 19. All kernels take as long as without the profiler."""
    base = on_gpu(plain(traced=112.0, compute=90.0 * 100 / 112))
    traced = on_gpu(pair(traced=89.0, clean=80.0))
    budget = row_of(base, traced).budget
    assert budget.compute_inflation_s == pytest.approx(0.0, abs=1e-9)
    assert budget.other_idle_s == pytest.approx(0.010 - 0.5 * 0.010)
    assert (budget.wait_s, budget.exposed_transfer_s) == pytest.approx((0.020, 0.005))
    check_closed(budget)


def test_parts_that_do_not_add_up_leave_a_residual_and_a_stamp():
    """The loop's clock saw traced steps of 80 ms; the profiler lost 20 ms of each of them."""
    records = []
    for rank in range(2):
        operation = make_operation(40, 55)
        trace = make_trace([operation], compute=[(0, 35)], steps=[(0, 60)])
        records.append(make_traced_record(rank, trace, 80, traced=80))
    row = row_of(plain(), make_traced_result(*records))
    assert row.budget.residual_s == pytest.approx(0.020)
    assert row.budget.closes is False
    assert "budget open" in row.stamps
    check_closed(row.budget)


def test_where_wait_cannot_be_told_there_is_none_and_all_of_it_is_exposed():
    result = pair()
    stepped = ClockAlignment(
        method="ping-pong", at_ns=0, offset_ns=0, bound_ns=10**7, stepped="by 20 ms"
    )
    ranks = [result.ranks[0], result.ranks[1].model_copy(update={"clock": stepped})]
    row = row_of(plain(), result.model_copy(update={"ranks": ranks}))
    assert row.wait_s is None and row.exposed_transfer_s is None
    assert "jumped: by 20 ms" in row.unavailable["wait_s"]
    assert row.exposed_comm_s.value == pytest.approx(0.025)
    assert row.budget.wait_s is None
    assert row.budget.exposed_transfer_s == pytest.approx(0.025)
    assert "jumped" in row.budget.not_apart
    check_closed(row.budget)


def test_ranks_with_different_operations_are_told_with_the_first_of_them():
    result = pair()
    trace = result.ranks[1].trace
    bare = result.ranks[1].model_copy(update={"trace": trace.model_copy(update={"operations": []})})
    row = row_of(plain(), result.model_copy(update={"ranks": [result.ranks[0], bare]}))
    assert row.wait_s is None
    assert "rank 0 has 1 all_reduce where rank 1 has 0" in row.unavailable["wait_s"]
    assert row.step_s is not None and row.efficiency is not None


def test_a_rank_without_a_trace_takes_only_the_attribution_away():
    result = pair()
    untraced = result.ranks[1].model_copy(update={"trace": None})
    row = row_of(plain(), result.model_copy(update={"ranks": [result.ranks[0], untraced]}))
    assert row.budget is None and row.comm_s is None
    assert row.unavailable["budget"] == "no launch of this row was traced"
    assert row.step_s is not None


@pytest.mark.parametrize(
    ("left", "told"),
    [((True, False), "rank 1"), ((False, True), "rank 0"), ((True, True), "rank 0")],
)
def test_why_a_launch_has_no_attribution_is_what_the_first_rank_with_a_reason_says(left, told):
    result = pair()
    ranks = [
        rank.model_copy(
            update={"trace_unavailable": f"rank {rank.rank}", "another_rank_left": gone}
        )
        for rank, gone in zip(result.ranks, left, strict=True)
    ]
    assert why_not(result.model_copy(update={"ranks": ranks})) == told


def test_without_a_traced_baseline_there_is_no_budget_but_all_else():
    row = row_of(make_result(plain().cell, 0.1), pair())
    assert row.budget is None
    told = "the plain baseline was not traced: no launch of this row was traced"
    assert row.unavailable["budget"] == told
    assert row.wait_s.value == pytest.approx(0.020)


def test_estimates_of_exposed_communication_side_by_side():
    row = row_of(plain(), pair(local=60.0, logged_exposed_s=0.021))
    found = row.exposed_comm_estimates
    assert found.trace.value == pytest.approx(0.025)
    assert found.differential.value == pytest.approx(0.020)
    assert found.ddp_logger.value == pytest.approx(0.021)
    assert found.disagree is None  # one launch has no intervals


def test_a_probe_effect_that_cannot_be_chance_is_stamped():
    def launches(bare):
        return [
            pair(bare=value).model_copy(
                update={"cell": pair().cell.model_copy(update={"repeat": i})}
            )
            for i, value in enumerate(bare)
        ]

    certain = row_of(plain(), *launches([78.0, 78.1, 77.9]))
    assert certain.probe_effect.value == pytest.approx(80 / 78 - 1, rel=1e-2)
    assert [s.partition(":")[0] for s in certain.stamps] == ["probe effect"]
    doubtful = row_of(plain(), *launches([70.0, 80.0, 90.0]))
    assert doubtful.stamps == []


def test_bytes_by_the_law_of_the_ring():
    row = row_of(plain(), pair())
    assert row.payload_bytes == 1000
    assert row.wire_bytes == 1000  # 2(N-1)/N at N=2
    unsized = pair()
    ranks = [
        r.model_copy(
            update={
                "trace": r.trace.model_copy(
                    update={"operations": [make_operation(50, 75, num_bytes=None)]}
                )
            }
        )
        for r in unsized.ranks
    ]
    row = row_of(plain(), unsized.model_copy(update={"ranks": ranks}))
    assert row.wire_bytes is None and "size" in row.unavailable["wire_bytes"]


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
    budget = row_of(plain(traced=107.0), found).budget
    check_closed(budget)
    assert budget.measured_s == pytest.approx(clean / 1e3)


def test_weak_scaling_has_the_whole_step_as_its_ideal():
    base = plain(scaling="weak")
    row = pair(clean=130, compute=(90, 90), starts=(95, 115), end=120)
    cell = row.cell.model_copy(
        update={"scaling": "weak", "global_batch": 64, "rank_batch": base.cell.rank_batch}
    )
    budget = row_of(base, row.model_copy(update={"cell": cell})).budget
    assert budget.ideal_s == pytest.approx(0.100)
    assert budget.compute_inflation_s == pytest.approx(0.0, abs=1e-12)
    assert budget.wait_s == pytest.approx(0.020)
    check_closed(budget)


def with_trace(result, **changes):
    """The same launch, every rank's trace changed."""
    ranks = [
        rank.model_copy(update={"trace": rank.trace.model_copy(update=changes)})
        for rank in result.ranks
    ]
    return result.model_copy(update={"ranks": ranks})


def in_rounds(*makers):
    """One launch each of plain and DDP for every round: (plain, DDP)."""
    return [
        result.model_copy(update={"cell": result.cell.model_copy(update={"repeat": repeat})})
        for repeat, both in enumerate(makers)
        for result in both
    ]


def disturbed():
    """DDP whose steps took five times as long while they were traced."""
    return pair(clean=80, traced=400, paired=390, compute=(200, 200), starts=(210, 300), end=390)


def test_a_round_that_was_traced_while_the_machine_was_busy_is_left_out():
    quiet = row_of(*in_rounds((plain(), pair()), (plain(), pair())))
    row = row_of(*in_rounds((plain(), pair()), (plain(), pair()), (plain(), disturbed())))
    assert row.budget.rounds_left_out == 1
    assert row.budget.closes and "budget open" not in row.stamps
    assert row.budget.points == pytest.approx(quiet.budget.points)
    assert abs(row.budget.drift) < 0.25
    check_closed(row.budget)


@pytest.mark.parametrize("steady", [0, 1])
def test_where_most_rounds_were_disturbed_nothing_is_explained(steady):
    rounds = [(plain(), pair())] * steady + [(plain(), disturbed())] * 2
    row = row_of(*in_rounds(*rounds))
    assert (row.budget.rounds_left_out, row.budget.closes) == (0, False)
    assert row.budget.drift == pytest.approx(390 / 80 - 1)


def test_a_profilers_clock_that_moved_takes_only_the_waits():
    row = row_of(plain(), with_trace(pair(), clock_error_s=0.02))
    assert "moved by 20.0 ms" in row.unavailable["wait_s"]
    assert row.exposed_comm_s.value == pytest.approx(0.025)


def test_operations_that_cannot_be_matched_take_the_waits():
    result = pair()
    other = make_operation(70, 75, num_bytes=7)
    ranks = [
        result.ranks[0],
        result.ranks[1].model_copy(
            update={"trace": result.ranks[1].trace.model_copy(update={"operations": [other]})}
        ),
    ]
    row = row_of(plain(), result.model_copy(update={"ranks": ranks}))
    assert row.wait_s is None
    assert "2 operations were not found on all ranks" in row.unavailable["wait_s"]


def test_traces_without_any_communication_are_not_believed():
    row = row_of(plain(), with_trace(pair(), operations=[]))
    assert row.budget is None
    assert "no communication at all" in row.unavailable["budget"]


def test_in_a_broadcast_everybody_waits_for_the_root():
    """DDP sends buffers from rank 0, which comes 30 ms late; the all-reduce then is prompt."""
    records = []
    for rank, begin in enumerate((40, 10)):
        operations = [
            make_operation(begin, 45, kind="broadcast", num_bytes=5),
            make_operation(60, 65, ordinal=1),
        ]
        trace = make_trace(operations, compute=[(0, 8)], steps=[(0, 80)])
        records.append(make_traced_record(rank, trace, 80))
    row = row_of(plain(), make_traced_result(*records))
    assert row.budget.rank == 1
    assert row.wait_s.value == pytest.approx(0.030)
    assert row.exposed_transfer_s.value == pytest.approx(0.005 + 0.005)
    assert row.stragglers[0].rank == 0


def test_much_time_in_operations_of_unknown_root_takes_the_waits():
    sends = [make_operation(50, 75, kind="send"), make_operation(76, 77)]
    row = row_of(plain(), with_trace(pair(), operations=sends))
    assert row.wait_s is None
    assert "do not show which rank waited" in row.unavailable["wait_s"]


def test_how_far_clocks_may_be_wrong_is_the_sum_of_two_ranks_bounds():
    result = pair()
    ranks = [
        rank.model_copy(
            update={
                "clock": ClockAlignment(
                    method="ping-pong", at_ns=0, offset_ns=0, bound_ns=bound * 1000
                )
            }
        )
        for rank, bound in zip(result.ranks, (30, 40), strict=True)
    ]
    row = row_of(plain(), result.model_copy(update={"ranks": ranks}))
    assert row.budget.clock_bound_s == pytest.approx(70e-6)
