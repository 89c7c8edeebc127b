"""One traced step of a pipeline by hand: who waits from when to when, and what passes take.

Two ranks, two microbatches, a step of 60 ms. Rank 0 has its first results at 10 and 20 ms and waits
for rank 1's backward pass, which is made at 36. Rank 1 waits for the first result until 10 ms.
"""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.pipeline_shape import layers_of, pipeline_shape_of
from scalebench.analysis.pipeline_trace import PipelineTrace, pipelines_of
from scalebench.analysis.step_shape import NoShape
from scalebench.costmodel.pipelines.layers import Layers, TiedParameter
from scalebench.costmodel.pipelines.schedule import Action
from scalebench.records.trace import ClockAlignment, Trace, TracedAction
from scalebench.spec import Pipeline
from tests.builders.runs import make_cell, make_result
from tests.builders.traced import MS, flat, make_traced_record

TWO = Pipeline(schedule="gpipe", microbatches=2)
FIRST = [("F", 0, 10), ("F", 10, 20), ("B", 38, 48), ("B", 48, 58)]
SECOND = [("F", 12, 20), ("F", 22, 30), ("B", 30, 36), ("B", 36, 44)]


def actions(rows, stage=0, step=0, at=0):
    """Actions of a stage in order; microbatches of each kind are counted."""
    counts, found = {}, []
    for kind, start, end in rows:
        microbatch = counts[kind] = counts.get(kind, -1) + 1
        found.append(
            TracedAction(
                stage=stage, kind=kind, microbatch=microbatch, step=step,
                start_ns=round((at + start) * MS), end_ns=round((at + end) * MS),
            )
        )  # fmt: skip
    return found


def trace(found, steps=((0, 60),), origin=0, **changes):
    spans = [(round(a * MS), round(b * MS)) for a, b in steps]
    return Trace(origin_ns=origin * MS, steps=spans, actions=found, **changes)


def pipeline(clocks=None, chosen=(0,), strategy=TWO, **traces):
    whole = {0: trace(actions(FIRST)), 1: trace(actions(SECOND, 1))}
    whole |= {int(name.removeprefix("rank_")): one for name, one in traces.items()}
    return PipelineTrace(strategy, tuple(whole), whole, clocks or {}, chosen)


def ms(intervals):
    return [[start / MS, end / MS] for start, end in intervals.tolist()]


def test_ranks_wait_from_the_end_of_an_action_until_what_the_next_one_needs_was_made():
    found = pipeline()
    assert ms(found.waiting(0)) == [[20, 36]]
    assert ms(found.waiting(1)) == [[0, 10]]
    assert found.waiting_ratios == [pytest.approx(26 / 120)]
    assert found.idle_ratio == pytest.approx(1 - 70 / 120)


def test_a_pass_takes_the_median_over_its_microbatches():
    assert pipeline().seconds == pytest.approx(
        {("F", 0): 0.010, ("B", 0): 0.010, ("F", 1): 0.008, ("B", 1): 0.007}
    )


def test_the_bubble_is_the_idle_time_of_the_dry_run():
    """By the schedule: rank 1 from 10 to 42, rank 0 until 20 and from 35 to 55."""
    found = pipeline()
    assert found.timeline.step_s == pytest.approx(0.055)
    assert found.bubble_s(0) == pytest.approx(0.015)
    assert found.bubble_s(1) == pytest.approx(0.055 - 2 * 0.008 - 2 * 0.007)


def test_a_send_holds_its_rank_up_until_the_other_one_comes_for_it():
    """Rank 1's last result is made at 44; rank 0 comes for it at 48. Its send blocks from 42 on."""
    held_up = trace(actions(SECOND, 1), blocked_sending=flat([(42, 50)]))
    assert ms(pipeline(rank_1=held_up).waiting(1)) == [[0, 10], [44, 48]]
    elsewhere = trace(actions(SECOND, 1), blocked_sending=flat([(48, 50)]))
    assert ms(pipeline(rank_1=elsewhere).waiting(1)) == [[0, 10]]


def test_an_action_that_began_before_what_it_needs_was_made_did_not_wait_longer():
    """Rank 1's first pass begins at 8, although rank 0 ends the one before at 10."""
    early = [("F", 8, 20), *SECOND[1:]]
    assert ms(pipeline(rank_1=trace(actions(early, 1))).waiting(1)) == [[0, 8]]


def test_times_stand_on_each_ranks_own_clock():
    """Rank 1's clock is 500 ms ahead, its trace begins 300 ms after rank 0's, which is at 1 s."""
    ahead = ClockAlignment(method="ping-pong", at_ns=0, offset_ns=500 * MS, bound_ns=0)
    shifted = [(kind, start - 300, end - 300) for kind, start, end in SECOND]
    found = pipeline(
        {1: ahead},
        rank_0=trace(actions(FIRST), origin=1000),
        rank_1=trace(actions(shifted, 1), steps=((-300, -240),), origin=1800),
    )
    assert ms(found.waiting(0)) == [[20, 36]]
    assert ms(found.waiting(1)) == [[-300, -290]]
    spans = found.spans(1, 0)
    assert list(spans) == [Action(1, k, m) for k, m in (("F", 0), ("F", 1), ("B", 0), ("B", 1))]
    assert spans[Action(1, "F", 1)] == (1022 * MS, 1030 * MS)
    assert found.spans(0, 0)[Action(0, "B", 1)] == (1048 * MS, 1058 * MS)
    assert found.spans(0, 1) == {}


def two_steps():
    """A second step of 80 ms that begins at 100; rank 1's passes take twice as long in it."""
    slow = [(kind, 2 * start - 14, 2 * end - 14) for kind, start, end in SECOND]
    late = [("F", 0, 10), ("F", 10, 20), ("B", 60, 70), ("B", 70, 80)]
    steps = ((0, 60), (100, 180))
    return {
        "rank_0": trace([*actions(FIRST), *actions(late, 0, 1, 100)], steps),
        "rank_1": trace([*actions(SECOND, 1), *actions(slow, 1, 1, 100)], steps),
    }


def test_steps_are_apart_and_only_those_that_were_chosen_count():
    """In the second step rank 1 begins at 10, when the first result is made; B is made at 158."""
    both = pipeline(chosen=(0, 1), **two_steps())
    assert ms(both.waiting(0)) == [[20, 36], [120, 158]]
    assert ms(both.waiting(1)) == [[0, 10], [100, 110]]
    assert both.waiting_ratios == pytest.approx([26 / 120, 48 / 160])
    assert both.idle_ratio == pytest.approx(1 - (70 + 40 + 60) / 280)
    assert both.seconds["B", 1] == pytest.approx(0.010)  # of 6, 8, 12 and 16 ms
    later = pipeline(chosen=(1,), **two_steps())
    assert later.waiting_ratios == pytest.approx([48 / 160])
    assert later.idle_ratio == pytest.approx(1 - 100 / 160)
    assert later.seconds["F", 1] == pytest.approx(0.016)
    assert [a.kind for a in later.schedule.ranks[1]] == ["F", "F", "B", "B"]


def test_the_schedule_is_that_of_the_first_step_which_has_to_be_whole():
    traces = two_steps()
    assert pipeline(chosen=(0, 1), **traces).schedule is not None
    cut = traces["rank_0"].actions[:3] + traces["rank_0"].actions[4:]
    traces["rank_0"] = traces["rank_0"].model_copy(update={"actions": cut})
    found = pipeline(chosen=(0, 1), **traces)
    assert (found.schedule, found.timeline, found.bubble_s(0)) == (None, None, 0.0)


def test_what_a_split_backward_pass_hands_on_is_made_by_its_first_part():
    rows = (
        [("F", 0, 10), ("I", 30, 36), ("W", 36, 40)],
        [("F", 10, 18), ("I", 18, 26), ("W", 26, 33)],
    )
    found = pipeline(
        strategy=Pipeline(schedule="zero-bubble", microbatches=1),
        rank_0=trace(actions(rows[0])),
        rank_1=trace(actions(rows[1], 1)),
    )
    assert ms(found.waiting(0)) == [[10, 26]]
    assert ms(found.waiting(1)) == [[0, 10]]
    assert found.seconds == pytest.approx(
        {("F", 0): 0.010, ("I", 0): 0.006, ("W", 0): 0.004,
         ("F", 1): 0.008, ("I", 1): 0.008, ("W", 1): 0.007}
    )  # fmt: skip


def test_pipelines_side_by_side_have_ranks_in_a_row():
    traces = {rank: trace(actions(FIRST)) for rank in (5, 0, 3, 1, 4, 2)}
    strategy = Pipeline(schedule="gpipe", microbatches=2, data_parallel=2)
    found = pipelines_of(strategy, traces, {}, (0,))
    assert [one.ranks for one in found] == [(0, 1, 2), (3, 4, 5)]
    assert [one.ranks for one in pipelines_of(TWO, traces, {}, (0,))] == [(0, 1, 2, 3, 4, 5)]
    assert pipelines_of(strategy, {**traces, 4: trace([])}, {}, (0,)) == ()


LAYERS = {"costs": [1.0, 3.0], "output_bytes": [8, 16], "tied": []}


def alone(*steps, clean=26.0, chunks=1, facts=LAYERS, batch=12):
    """A launch of one rank; of each step its length and its actions."""
    found, spans, at = [], [], 0
    for number, (length, rows) in enumerate(steps):
        for stage, own in enumerate(rows):
            found += actions(own, stage, number, at)
        spans.append((at, at + length))
        at += length + 10
    schedule = "gpipe" if chunks == 1 else "interleaved-1f1b"
    strategy = Pipeline(schedule=schedule, microbatches=2, chunks=chunks)
    cell = make_cell("pipeline", 1, strategy=strategy, global_batch=batch, rank_batch=batch)
    stored = {} if facts is None else {"layers": facts}
    record = make_traced_record(0, trace(found, spans), clean=clean, facts=stored)
    return LaunchAttribution(make_result(cell, ranks=[record]))


STAGES = (
    [("F", 1, 3), ("F", 4, 8), ("B", 20, 25), ("B", 26, 29)],  # medians of 3 and 4 ms
    [("F", 9, 11), ("F", 12, 14), ("B", 30, 36), ("B", 36, 42)],  # 2 and 6
)


def strategy_of(launch):
    return launch.result.cell.strategy


def test_the_shape_of_two_stages_in_two_steps_on_one_rank():
    """Steps of 50 and 54 ms end 8 and 12 ms after the last pass; clean ones take 26.

    Of 52 ms 10 come last. Passes take 5 and 10 ms for a microbatch, 30 for both; eight actions
    share the 12 that are left. All of it is half as long in a clean step.
    """
    launch = alone((50, STAGES), (54, STAGES), chunks=2)
    found = pipeline_shape_of(strategy_of(launch), [launch])
    assert found.passes_s == pytest.approx({"F": 0.0025, "B": 0.005})
    assert found.after_s == pytest.approx(0.005)
    assert found.between_s == pytest.approx(0.012 / 8 / 2)
    assert (found.num_samples, found.longer_s) == (12, None)
    assert found.strategy == strategy_of(launch)
    assert found.layers == Layers((1.0, 3.0), (8, 16))


def test_the_shape_of_several_launches_is_their_mean():
    """Of the quick one 3 ms lie between four passes and 11 behind them; of the slow one 0 and 8."""
    quick = alone((26, ([("F", 0, 2), ("F", 3, 5), ("B", 6, 10), ("B", 11, 15)],)))
    slow = alone((26, ([("F", 0, 3), ("F", 3, 6), ("B", 6, 12), ("B", 12, 18)],)))
    found = pipeline_shape_of(strategy_of(quick), [quick, slow])
    assert found.passes_s == pytest.approx({"F": 0.0025, "B": 0.005})
    assert found.after_s == pytest.approx((0.011 + 0.008) / 2)
    assert found.between_s == pytest.approx((0.003 / 4 + 0) / 2)


def test_passes_that_overlap_leave_nothing_between_them():
    rows = [("F", 0, 5), ("F", 3, 8), ("B", 6, 14), ("B", 10, 18)]
    launch = alone((26, (rows,)))
    assert pipeline_shape_of(strategy_of(launch), [launch]).between_s == 0


def test_without_a_launch_that_was_traced_whole_there_is_no_shape():
    told = "no launch of the pipeline at N=1 was traced completely"
    whole, missing = alone((50, STAGES)), alone((50, STAGES), (50, ()))
    nothing = alone((50, ()))
    for launches in ([], [nothing], [missing]):
        with pytest.raises(NoShape, match=told):
            pipeline_shape_of(strategy_of(whole), launches)
    assert pipeline_shape_of(strategy_of(whole), [whole, nothing]).num_samples == 12


def test_layers_as_a_rank_tells_them():
    told = {
        "costs": ["1.5", 2], "output_bytes": [8, 16.0],
        "tied": [{"layers": [0, 1], "num_bytes": 24}],
        "parameter_bytes": [32, 64], "kept_bytes": [40, 48],
    }  # fmt: skip
    assert layers_of({"layers": told}) == Layers(
        (1.5, 2.0), (8, 16), (TiedParameter((0, 1), 24),), (32, 64), (40, 48)
    )


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        (None, "does not record what the pipeline's layers cost"),
        ({**LAYERS, "tied": [{"layers": [0, 1]}]}, "does not record"),
        ({**LAYERS, "costs": ["many"]}, "does not record"),
        ({**LAYERS, "costs": [0.0, 0.0]}, "between the pipeline's layers is not known"),
        ({**LAYERS, "output_bytes": [8]}, "between the pipeline's layers is not known"),
        ({**LAYERS, "output_bytes": [8, 16, 24]}, "between the pipeline's layers is not known"),
    ],
)
def test_layers_of_which_something_is_missing_have_no_shape(layers, why):
    with pytest.raises(NoShape, match=why):
        layers_of({} if layers is None else {"layers": layers})


def test_layers_may_cost_less_than_one_whatever_the_unit():
    told = {"costs": [0.25, 0.5], "output_bytes": [8, 16], "tied": []}
    assert layers_of({"layers": told}).costs == (0.25, 0.5)
