"""Traces of pipelines made by hand from a dry run: what is known comes out again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.budget import loss_budget
from scalebench.analysis.pipeline_trace import PipelineTrace
from scalebench.analysis.rows.attribution import StepTimes, attribute_row
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.costmodel.pipelines.dry_run import Timeline, dry_run, equal_times
from scalebench.costmodel.pipelines.orders import plan_schedule
from scalebench.records.trace import Trace, TracedAction
from scalebench.spec import Pipeline, Plain
from tests.builders.runs import make_cell, make_result
from tests.builders.traced import make_operation, make_traced_record

MS = 1_000_000


def trace_of(timeline: Timeline, rank: int, shift_ms: int = 0) -> Trace:
    """The trace that a rank leaves of a dry run whose unit is a millisecond.

    A send is on its way all the time, as far as its annotation tells; the rank is
    blocked whenever no action runs, and computes otherwise.
    """
    actions, blocked, compute = [], [], []
    reached, end_ns = 0, round(timeline.step_s * MS)
    rows = zip(
        timeline.schedule.ranks[rank], timeline.start_s[rank], timeline.end_s[rank], strict=True
    )
    for action, start, end in rows:
        begin, until = round(start * MS), round(end * MS)
        blocked += [reached, begin] if begin > reached else []
        compute += [begin, until]
        actions.append(TracedAction(**action._asdict(), step=0, start_ns=begin, end_ns=until))
        reached = until
    blocked += [reached, end_ns] if end_ns > reached else []
    return Trace(
        origin_ns=shift_ms * MS,
        steps=[(0, end_ns)],
        compute=compute,
        blocked=blocked,
        actions=actions,
        operations=[make_operation(0, timeline.step_s, kind="send", name="gloo:send")],
    )


def pipeline_of(timeline: Timeline, strategy: Pipeline) -> PipelineTrace:
    ranks = tuple(range(timeline.schedule.num_ranks))
    traces = {rank: trace_of(timeline, rank) for rank in ranks}
    return PipelineTrace(strategy, ranks, traces, {}, (0,))


def launch_of(timeline: Timeline, strategy: Pipeline) -> LaunchAttribution:
    p = timeline.schedule.num_ranks
    step_ms = timeline.step_s
    cell = make_cell("1f1b", p, strategy=strategy, global_batch=32, rank_batch=32)
    records = [
        make_traced_record(rank, trace_of(timeline, rank), clean=step_ms) for rank in range(p)
    ]
    return LaunchAttribution(make_result(cell, ranks=records))


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_the_bubble_does_not_grow_with_the_time_of_transfers(
    name: str, p: int, rounds: int, transfer_ms: int
) -> None:
    v = 2 if name == "interleaved-1f1b" else 1
    schedule = plan_schedule(name, p, rounds * p, v)
    times = equal_times(p * v, 2, 4)
    strategy = Pipeline(schedule=name, microbatches=rounds * p, chunks=v)
    found = pipeline_of(dry_run(schedule, times, transfer_s=transfer_ms), strategy)
    assert found.schedule == schedule
    alone = dry_run(schedule, times)
    assert found.timeline is not None
    assert found.timeline.bubble_ratio == pytest.approx(alone.bubble_ratio, abs=1e-9)
    for rank in range(p):
        assert found.bubble_s(rank) == pytest.approx(alone.idle_s(rank) / 1e3, abs=1e-9)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 3))
def test_ranks_wait_until_a_result_is_made_and_no_longer(
    p: int, rounds: int, transfer_ms: int
) -> None:
    strategy = Pipeline(schedule="1f1b", microbatches=rounds * p)
    schedule = plan_schedule("1f1b", p, rounds * p)
    timeline = dry_run(schedule, equal_times(p, 2, 4), transfer_s=transfer_ms)
    found = pipeline_of(timeline, strategy)
    for rank in range(p):
        waiting = found.waiting(rank)
        waited_ns = int((waiting[:, 1] - waiting[:, 0]).sum())
        gaps = len(waiting)
        idle_ns = round(timeline.idle_s(rank) * MS)
        after_last_ns = round((timeline.step_s - timeline.end_s[rank][-1]) * MS)
        assert waited_ns <= idle_ns - after_last_ns
        if transfer_ms == 0:
            assert waited_ns == idle_ns - after_last_ns
        assert gaps <= 2 * rounds * p


def test_the_parts_of_a_pipelines_budget_are_its_gap() -> None:
    strategy = Pipeline(schedule="1f1b", microbatches=4)
    timeline = dry_run(plan_schedule("1f1b", 2, 4), equal_times(2, 10, 20), transfer_s=1)
    launch = launch_of(timeline, strategy)
    alone = 2 * 4 * 30
    plain = make_cell("plain", 1, strategy=Plain(), global_batch=32, rank_batch=32)
    whole = Trace(origin_ns=0, steps=[(0, alone * MS)], compute=[0, alone * MS])
    baseline = LaunchAttribution(
        make_result(plain, ranks=[make_traced_record(0, whole, clean=alone)])
    )
    steps = (timeline.step_s / 1e3, alone / 1e3)
    budget = loss_budget([(launch, baseline)], 0, steps, 0.5, over=(0, 1))
    assert budget.residual_s == pytest.approx(0, abs=1e-6)
    assert budget.compute_inflation_s == pytest.approx(0, abs=1e-6)
    bubble_s = 30e-3
    assert budget.bubble_s <= bubble_s + 1e-9
    rest = sum(part.value for part in budget.estimates.values())
    assert rest == pytest.approx((timeline.step_s - alone / 2) / 1e3, abs=1e-6)
    both = (Launches(one.result.cell, measured={0: one.result}) for one in (launch, baseline))
    row = attribute_row(*both, StepTimes(*steps))
    assert row["bubble_ratio"].value == pytest.approx(1 / 5)
    assert row["pipeline"].bubble_law == pytest.approx(1 / 5)
    assert row["pipeline"].in_flight == [2, 1]
    assert isinstance(row["overlap_ratio"], Unavailable)
