"""What one launch tells of its steps: exact values of what is derived from its ranks' records."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution, attribute, why_not
from scalebench.records.rank import Block
from scalebench.records.trace import ClockAlignment
from scalebench.spec import Compressed, Ddp, Fsdp, Script, Zero1
from tests.builders.traced import (
    MS,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
    on_gpu,
)


def one_of(*operations, steps=((0, 100),), **changes):
    """One rank with these operations, none of which it hides."""
    return make_traced_record(0, make_trace(operations, steps=steps), **changes)


def launch_of(*operations, ranks=2, result=None, **changes):
    """Ranks that all have the same trace."""
    trace = make_trace(operations, **changes)
    records = [make_traced_record(rank, trace) for rank in range(ranks)]
    return LaunchAttribution(make_traced_result(*records, **(result or {})))


def test_bytes_are_summed_over_the_operations_and_divided_by_the_steps():
    """Three steps: 1000 and 600 bytes reduced among four, 300 gathered by all ranks, no barrier."""
    found = launch_of(
        make_operation(10, 20, num_bytes=1000, group_size=4),
        make_operation(110, 120, step=1, num_bytes=600, group_size=4),
        make_operation(210, 220, step=2, kind="all_gather", num_bytes=300, group_size=None),
        make_operation(230, 240, step=2, kind="barrier", num_bytes=None, group_size=None),
        steps=((0, 100), (100, 200), (200, 300)),
        ranks=3,
    )
    assert found.wire_bytes(0) == pytest.approx((1.5 * 1600 + 200) / 3)
    assert found.payload_bytes(0) == pytest.approx((1600 + 100) / 3)


def test_an_exchange_around_the_ring_sends_all_that_it_is_handed():
    found = launch_of(make_operation(10, 20, kind="send_recv_ring", num_bytes=700, group_size=4))
    assert (found.wire_bytes(0), found.payload_bytes(0)) == (700, 700)


def test_an_operation_without_a_law_was_handed_its_bytes_and_nothing_is_known_of_the_wire():
    found = launch_of(make_operation(10, 20, kind="gather", num_bytes=700))
    assert (found.wire_bytes(0), found.payload_bytes(0)) == (None, 700)


def test_an_operation_of_no_bytes_sends_none():
    found = launch_of(make_operation(10, 20, num_bytes=0), make_operation(30, 40, num_bytes=500))
    assert (found.wire_bytes(0), found.payload_bytes(0)) == (500, 500)


def test_of_an_operation_without_a_size_nothing_is_known():
    found = launch_of(make_operation(10, 20, num_bytes=None))
    assert (found.wire_bytes(0), found.payload_bytes(0)) == (None, None)


@pytest.mark.parametrize(("end", "apart"), [(2, True), (2.1, False)])
def test_two_percent_of_a_step_may_be_exposed_in_operations_of_unknown_root(end, apart):
    """Rank 0 hides all of it, rank 1 computes nothing; half is gathered, half is scattered."""
    operations = [
        make_operation(0, 1, kind="gather"),
        make_operation(1, end, kind="scatter", ordinal=1),
    ]
    records = [
        make_traced_record(rank, make_trace(operations, compute=compute))
        for rank, compute in enumerate(([(0, 50)], []))
    ]
    found = LaunchAttribution(make_traced_result(*records))
    assert (found.not_apart is None) is apart
    assert apart or found.not_apart.startswith("operations with a root, or between two ranks")


@pytest.mark.parametrize(
    ("strategy", "wrappers", "root"),
    [
        (Ddp(), None, 0),
        (Fsdp(), None, None),
        (Compressed(method="noop"), None, 0),
        (Zero1(), None, "in turn"),
        (Script(), None, None),
        (Script(), ["DistributedDataParallel"], 0),
        (Script(), ["DistributedDataParallel", "ZeroRedundancyOptimizer"], "in turn"),
        (Script(), ["ZeroRedundancyOptimizer"], None),
    ],
)
def test_who_broadcasts_follows_from_the_strategy_and_of_a_script_from_its_wrappers(
    strategy, wrappers, root
):
    facts = {"wrappers": [{"kind": kind} for kind in wrappers]} if wrappers else {}
    records = [make_traced_record(rank, make_trace(), facts=facts) for rank in range(3)]
    found = LaunchAttribution(make_traced_result(*records, strategy=strategy))
    assert found.broadcast_root == root
    assert (found.broadcast_root is None) is (root is None)


def test_a_script_whose_ranks_wrap_their_models_differently_has_no_known_root():
    facts = [{"wrappers": [{"kind": "DistributedDataParallel"}, "text"]}, {}]
    records = [make_traced_record(rank, make_trace(), facts=facts[rank]) for rank in range(2)]
    assert LaunchAttribution(make_traced_result(*records, strategy=Script())).broadcast_root is None
    both = [one.model_copy(update={"facts": facts[0]}) for one in records]
    assert LaunchAttribution(make_traced_result(*both, strategy=Script())).broadcast_root == 0


@pytest.mark.parametrize("strategy", [Ddp(), Fsdp()])
def test_waits_in_a_broadcast_are_known_where_its_root_is(strategy):
    found = launch_of(make_operation(50, 75, kind="broadcast"), result={"strategy": strategy})
    assert (found.not_apart is None) is isinstance(strategy, Ddp)


def test_a_profilers_clock_may_move_by_a_millisecond():
    def moved(by_s):
        traces = [make_trace([make_operation(50, 75)], clock_error_s=s) for s in (0.0, by_s)]
        records = [make_traced_record(rank, trace) for rank, trace in enumerate(traces)]
        return LaunchAttribution(make_traced_result(*records)).not_apart

    assert moved(1e-3) is None
    assert moved(1.5e-3) == "the profiler's clock of rank 1 moved by 1.50 ms within a block"


def test_operations_that_are_not_found_on_all_ranks_are_counted():
    own = [make_operation(50, 60, ordinal=i, num_bytes=1000 + i) for i in range(2)]
    other = [make_operation(50, 60, ordinal=i, num_bytes=2000 + i) for i in range(2)]
    records = [make_traced_record(i, make_trace(ops)) for i, ops in enumerate((own, other))]
    found = LaunchAttribution(make_traced_result(*records))
    assert found.not_apart == "4 operations were not found on all ranks of their group"


def test_one_rank_alone_has_nothing_to_tell_apart():
    assert launch_of(make_operation(0, 90, kind="reduce"), ranks=1).not_apart is None


def test_the_bound_of_the_clocks_is_that_of_the_two_worst_and_of_one_its_own():
    def bound(*bounds_us):
        clocks = [
            ClockAlignment(method="ping-pong", at_ns=0, offset_ns=0, bound_ns=us * 1000)
            for us in bounds_us
        ]
        trace = make_trace()
        records = [make_traced_record(r, trace, clock=clock) for r, clock in enumerate(clocks)]
        return LaunchAttribution(make_traced_result(*records)).clock_bound_s

    assert bound(7) == pytest.approx(7e-6)
    assert bound(7, 3) == pytest.approx(10e-6)
    assert bound(2, 7, 5) == pytest.approx(12e-6)


def test_where_memory_was_copied_is_known_on_cpu_and_where_every_rank_tells():
    def result(*copies):
        traces = [make_trace(copies=one) for one in copies]
        return make_traced_result(*(make_traced_record(r, t) for r, t in enumerate(traces)))

    assert LaunchAttribution(result(None, None)).knows_copies
    assert LaunchAttribution(on_gpu(result([], [0, 5]))).knows_copies
    assert not LaunchAttribution(on_gpu(result([], None))).knows_copies
    assert not LaunchAttribution(on_gpu(result(None, None))).knows_copies


def in_turns():
    """Five steps. Rank 0 takes 10 to 50 ms, rank 1 30 and four times 20.

    After the first step of the block, rank 0 has done them at 10, 30, 60, 100 and 150 ms, rank 1 at
    30, 50, 70, 90 and 110 ms: the job at 30, 50, 70, 100 and 150, so its steps are 30, 20, 20, 30
    and 50. The shortest, the second, and the longest, the last, are left out.
    """
    spans = [
        [(0, 10), (10, 30), (30, 60), (60, 100), (100, 150)],
        [(0, 30), (30, 50), (50, 70), (70, 90), (90, 110)],
    ]
    return LaunchAttribution(
        make_traced_result(
            *(
                make_traced_record(rank, make_trace(compute=[(0, 1)], steps=own), clean=25)
                for rank, own in enumerate(spans)
            )
        )
    )


def test_the_typical_steps_are_the_middle_half_by_the_jobs_time():
    found = in_turns()
    assert found.typical_steps == [0, 2, 3]
    assert found.own_traced_step_s(0) == pytest.approx(0.080 / 3)
    assert found.own_traced_step_s(1) == pytest.approx(0.070 / 3)
    assert found.skew(0) == pytest.approx(0.0, abs=1e-12)
    assert found.skew(1) == pytest.approx(1 / 7)
    assert {rank: one.num_steps for rank, one in found.breakdowns.items()} == {0: 3, 1: 3}
    assert found.breakdowns[1].step_s == pytest.approx(0.070 / 3)


def test_what_tracing_costs_is_the_jobs_traced_step_over_the_one_next_to_it():
    """Traced, the middle half is 20, 30 and 30 ms; next to it steps take 25."""
    found = in_turns()
    assert found.paired_step_s == pytest.approx(0.025)
    assert found.trace_overhead == pytest.approx(80 / 3 / 25 - 1)


def test_the_probe_effect_is_the_median_over_the_rounds():
    """Of three rounds the steps with a mark take 30, 22 and 24 ms, those without 20."""
    phases = [("clean", [20])]
    phases += [pair for ms in (30, 22, 24) for pair in (("paired", [ms]), ("bare", [20]))]
    blocks, step_s = [], []
    for phase, counted in phases:
        blocks.append(Block(phase=phase, first=len(step_s), count=len(counted) + 1))
        step_s += [5.0, *(ms / 1e3 for ms in counted)]
    record = one_of(step_s=step_s, loss=[1.0] * len(step_s), blocks=blocks)
    found = LaunchAttribution(make_traced_result(record, case="plain"))
    assert found.probe_effect == pytest.approx(24 / 20 - 1)


def test_without_synchronisation_a_step_is_shorter_by_what_the_local_steps_say():
    traces = [make_trace(), make_trace()]
    records = [
        make_traced_record(0, traces[0], paired=80, local=60),
        make_traced_record(1, traces[1], paired=90, local=65),
    ]
    found = LaunchAttribution(make_traced_result(*records))
    assert found.without_synchronisation_s(0) == pytest.approx(0.020)
    assert found.without_synchronisation_s(1) == pytest.approx(0.025)
    assert launch_of().without_synchronisation_s(0) is None


def test_what_ddps_logger_says_is_each_ranks_own():
    records = [make_traced_record(r, make_trace(), logged_exposed_s=s)
               for r, s in enumerate((0.021, None, 0.023))]  # fmt: skip
    found = LaunchAttribution(make_traced_result(*records))
    assert [found.logged_exposed_s(rank) for rank in range(3)] == [0.021, None, 0.023]


def test_steps_on_parts_of_the_batch_are_the_jobs_middle_half_by_their_samples():
    """Two blocks on 8 samples: 12, 12, and 14 and 20 ms by the slower of two; one on 4: 7 ms."""
    base = one_of()
    blocks = list(base.blocks)
    extra = {0: [], 1: []}
    for samples, of_ranks in (
        (8, ([12, 10], [10, 14])),
        (4, ([7], [6])),
        (8, ([14, 20], [14, 20])),
        (None, ([90], [90])),
    ):
        first = len(base.step_s) + len(extra[0])
        count = len(of_ranks[0]) + 1
        blocks.append(Block(phase="part", first=first, count=count, num_samples=samples))
        for rank, own in enumerate(of_ranks):
            extra[rank] += [5.0, *(ms / 1e3 for ms in own)]
    records = [
        one_of(step_s=[*base.step_s, *extra[rank]], blocks=blocks).model_copy(
            update={"rank": rank, "loss": [1.0] * (len(base.step_s) + len(extra[0]))}
        )
        for rank in range(2)
    ]
    found = LaunchAttribution(make_traced_result(*records))
    # The job's four steps on 8 samples: 12, then 24 - 12 by rank 1; 14 and 20. Middle: 12 and 14.
    assert found.part_step_s == {8: pytest.approx(0.013), 4: pytest.approx(0.007)}
    assert launch_of().part_step_s == {}


def test_without_ranks_or_with_traces_of_no_step_a_launch_was_not_traced():
    found = make_traced_result(*(one_of().model_copy(update={"rank": r}) for r in range(2)))
    assert why_not(found.model_copy(update={"ranks": []})) == "no launch of this row was traced"
    empty = found.ranks[1].model_copy(update={"trace": make_trace(steps=())})
    ranks = [found.ranks[0], empty]
    assert why_not(found.model_copy(update={"ranks": ranks})) == "no launch of this row was traced"


def test_traces_have_to_have_the_steps_that_the_loop_counted():
    told = "the traces do not match the steps of the ranks"
    operation = make_operation(50, 75)
    good = [one_of(operation, steps=[(0, 100), (100, 200)]) for _ in range(2)]
    assert why_not(make_traced_result(*good)) is None
    short = make_trace([operation], steps=[(0, 100)])
    assert why_not(make_traced_result(good[0], good[1].model_copy(update={"trace": short}))) == told
    cut = good[1].model_copy(update={"step_s": good[1].step_s[:-1]})
    assert why_not(make_traced_result(good[0], cut)) == told


def test_several_ranks_of_which_none_communicates_are_not_believed():
    silent = "the traces of several ranks show no communication at all"
    operation = make_operation(50, 75)
    assert why_not(make_traced_result(one_of(), one_of())) == silent
    assert why_not(make_traced_result(one_of(operation), one_of(operation))) is None
    # The ranks differ: that is told of the row, and the rest of it is known.
    assert why_not(make_traced_result(one_of(operation), one_of())) is None
    assert why_not(make_traced_result(one_of())) is None
    assert attribute(make_traced_result(one_of(), one_of())) is None


def test_waits_stand_on_each_ranks_own_clock():
    """Rank 0 comes 20 ms before rank 1; its trace's origin is 5 ms earlier."""
    traces = [
        make_trace([make_operation(55, 80)], origin=0),
        make_trace([make_operation(70, 75)], origin=5),
    ]
    records = [make_traced_record(rank, trace) for rank, trace in enumerate(traces)]
    found = LaunchAttribution(make_traced_result(*records))
    assert found.waiting[0].tolist() == [[55 * MS, 75 * MS]]
    assert found.breakdowns[0].wait_s == pytest.approx(0.020)
    assert found.breakdowns[1].wait_s == pytest.approx(0.0)
    assert found.pipelines == ()
