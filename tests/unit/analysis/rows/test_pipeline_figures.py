"""What a row says of its pipeline, figure by figure."""

import pytest

from scalebench.analysis.pipeline_trace import PipelineTrace
from scalebench.analysis.rows.pipeline import MOST_ACTIONS, pipeline_figures
from scalebench.costmodel.pipelines.dry_run import dry_run, equal_times
from scalebench.costmodel.pipelines.orders import plan_schedule
from scalebench.spec import Pipeline
from tests.unit.analysis.test_pipeline_trace import pipeline_of, trace_of

STRATEGY = Pipeline(schedule="gpipe", microbatches=2)


def pipe(times):
    timeline = dry_run(plan_schedule("gpipe", 3, 2), times)
    return pipeline_of(timeline, STRATEGY), timeline


def test_every_figure_of_a_pipeline():
    """Three stages of 2 ms forward and 4 back; in the other launch the last is twice as slow."""
    times = equal_times(3, 2, 4)
    first, timeline = pipe(times)
    second, slower = pipe({**times, ("F", 2): 4.0, ("B", 2): 8.0})
    told = pipeline_figures([first, second])
    assert (told.schedule, told.num_ranks, told.num_microbatches) == ("gpipe", 3, 2)
    assert (told.chunks, told.num_pipelines) == (1, 1)
    # (p − 1) of m + p − 1 parts are idle.
    assert told.bubble_law == pytest.approx(2 / 4)
    assert told.bubble_equal_stages == pytest.approx(2 / 4)
    ratios = [timeline.bubble_ratio, slower.bubble_ratio]
    assert told.bubble_measured_times == pytest.approx(sum(ratios) / 2)
    assert told.idle_ratio == pytest.approx((first.idle_ratio + second.idle_ratio) / 2)
    assert told.in_flight == [2, 2, 2]
    stages = [(one.stage, one.rank, one.forward_s, one.backward_s) for one in told.stages]
    assert stages == [
        (0, 0, pytest.approx(0.002), pytest.approx(0.004)),
        (1, 1, pytest.approx(0.002), pytest.approx(0.004)),
        (2, 2, pytest.approx(0.003), pytest.approx(0.006)),
    ]
    assert {one.backward_input_s for one in told.stages} == {None}
    actions = [(one.rank, one.kind, one.stage, one.microbatch) for one in told.actions]
    assert actions == [
        (rank, kind, rank, number) for rank in range(3) for kind, numbers in
        (("F", (0, 1)), ("B", (0, 1))) for number in numbers
    ]  # fmt: skip
    for one in told.actions:
        assert (one.start_s, one.end_s) == pytest.approx((one.planned_start_s, one.planned_end_s))
    assert told.actions[0].start_s == 0.0 and told.actions[0].end_s == 0.002


def test_passes_are_listed_up_to_two_thousand():
    """Two actions for each microbatch on each of two ranks."""
    assert MOST_ACTIONS == 2000
    for microbatches, listed in ((500, True), (501, False)):
        strategy = Pipeline(schedule="gpipe", microbatches=microbatches)
        timeline = dry_run(plan_schedule("gpipe", 2, microbatches), equal_times(2))
        told = pipeline_figures([pipeline_of(timeline, strategy)])
        assert (told.actions is not None) == listed


def test_several_pipelines_stand_side_by_side():
    timeline = dry_run(plan_schedule("gpipe", 3, 2), equal_times(3))
    traces = {rank: trace_of(timeline, rank % 3) for rank in range(6)}
    told = pipeline_figures([PipelineTrace(STRATEGY, (3, 4, 5), traces, {}, (0,))])
    assert told.num_pipelines == 2
    assert [one.rank for one in told.actions] == [3] * 4 + [4] * 4 + [5] * 4


def test_the_middle_one_of_the_typical_steps_is_listed():
    """Step i is i ms later than step 0, each rank's second pass i ms longer than planned."""
    timeline = dry_run(plan_schedule("gpipe", 3, 2), equal_times(3, 2, 4))
    traces = {}
    for rank in range(3):
        one = trace_of(timeline, rank)
        length = one.steps[0][1]
        actions = [
            action.model_copy(
                update={
                    "step": step,
                    "start_ns": action.start_ns + step * length + step * 1000,
                    "end_ns": action.end_ns + step * length + (step + step * (i == 0)) * 1000,
                }
            )
            for step in range(3)
            for i, action in enumerate(one.actions)
        ]
        steps = [(step * length, (step + 1) * length) for step in range(3)]
        traces[rank] = one.model_copy(update={"actions": actions, "steps": steps})
    for chosen, step in (((0, 1, 2), 1), ((1, 2), 2), ((2,), 2)):
        told = pipeline_figures([PipelineTrace(STRATEGY, (0, 1, 2), traces, {}, chosen)]).actions
        assert told[0].start_s == 0.0
        assert told[0].end_s == pytest.approx(0.002 + step * 1e-6, abs=1e-9)
