import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.shapes import NoShape, layers_of
from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.pipelines.stage_split import Layers, TiedParameter
from scalebench.costmodel.pipelines.step import (
    PipelineShape,
    longer_than_modelled_s,
    predict_pipeline,
    rehearsal_of,
    textbook_pipeline_s,
)
from scalebench.records.probes import RehearsedPipeline
from scalebench.spec import Pipeline

FORWARD_S, BACKWARD_S, AFTER_S = 0.08, 0.16, 0.04


def shape(strategy, costs=(1.0,) * 8, output_bytes=None, between_s=0.0, tied=()):
    layers = Layers(tuple(costs), tuple(output_bytes or (1000,) * len(costs)), tuple(tied))
    passes = {"F": FORWARD_S, "B": BACKWARD_S}
    return PipelineShape(strategy, layers, passes, between_s, AFTER_S, num_samples=32)


def free(op, num_ranks, size_bytes):
    return LinkTime(0.0, 0.0, 0.0, (num_ranks,))


def link_of(**seconds):
    """A link on which an operation takes some time, whatever its size, within ± 10 %."""

    def time(op, num_ranks, size_bytes):
        takes = seconds[op]
        return LinkTime(takes, 0.9 * takes, 1.1 * takes, (num_ranks,))

    return time


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@given(ranks=st.sampled_from([2, 4, 8]), more=st.integers(0, 8))
def test_equal_stages_on_free_links_follow_the_law_of_the_bubble(schedule, ranks, more):
    m = ranks + more
    one = shape(Pipeline(schedule=schedule, microbatches=m))
    step = predict_pipeline(one, free, ranks)
    law = (m + ranks - 1) * (FORWARD_S + BACKWARD_S) / ranks + AFTER_S / ranks
    assert step.step_s == pytest.approx(law)
    assert step.stalled_s == 0
    assert step.bubble_s == pytest.approx((ranks - 1) * (FORWARD_S + BACKWARD_S) / ranks)
    textbook = textbook_pipeline_s(one, ranks)
    assert textbook == pytest.approx((m + ranks - 1) / m * one.computing_s / ranks)


def test_every_hop_of_the_first_and_the_last_microbatch_is_waited_for():
    one = shape(Pipeline(schedule="gpipe", microbatches=6))
    step = predict_pipeline(one, link_of(send_recv=0.01), 4)
    bare = predict_pipeline(one, free, 4)
    assert step.stalled_s == pytest.approx(2 * 3 * 0.01)
    assert step.computing_s == bare.step_s
    assert step.low_s == pytest.approx(bare.step_s + 0.9 * step.stalled_s)
    assert step.high_s == pytest.approx(bare.step_s + 1.1 * step.stalled_s)
    assert [(r.op, r.size_bytes) for r in step.requests] == [("send_recv", 1000)]
    assert step.world_sizes == (4,)


def test_the_dearest_stage_sets_the_pace():
    costs = (4.0, 1.0, 1.0, 1.0, 1.0)
    one = shape(Pipeline(schedule="gpipe", microbatches=50), costs)
    uneven = predict_pipeline(one, free, 2).step_s
    # The first stage, 4 of 8, has all microbatches; the second its last one only.
    assert uneven == pytest.approx(51 * (FORWARD_S + BACKWARD_S) / 2 + AFTER_S / 2)
    bad = shape(Pipeline(schedule="gpipe", microbatches=50, split="unbalanced"), (1.0,) * 8)
    assert predict_pipeline(bad, free, 2).step_s > 1.7 * uneven


def test_what_lies_between_passes_stays_on_every_rank():
    strategy = Pipeline(schedule="1f1b", microbatches=8)
    bare, with_it = shape(strategy), shape(strategy, between_s=0.001)
    longer = predict_pipeline(with_it, free, 2).step_s - predict_pipeline(bare, free, 2).step_s
    assert longer == pytest.approx((8 + 1) * 2 * 0.001)
    assert with_it.computing_s == pytest.approx(bare.computing_s + 16 * 0.001)


def test_gradients_of_tied_parameters_are_summed_where_several_ranks_hold_them():
    strategy = Pipeline(schedule="gpipe", microbatches=4)
    tied = [TiedParameter((0, 7), 4096)]
    links = link_of(send_recv=0.0, all_reduce=0.5)
    apart = predict_pipeline(shape(strategy, tied=tied), links, 2)
    assert apart.step_s == pytest.approx(predict_pipeline(shape(strategy), free, 2).step_s + 0.5)
    assert [(r.op, r.size_bytes, r.num_ranks) for r in apart.requests[1:]] == [
        ("all_reduce", 4096, 2)
    ]
    together = predict_pipeline(shape(strategy, tied=[TiedParameter((0, 1), 4096)]), links, 2)
    assert len(together.requests) == 1


@pytest.mark.parametrize(
    ("strategy", "ranks", "why"),
    [
        (Pipeline(schedule="zbv", chunks=2), 2, "only torch knows the order of zbv"),
        (Pipeline(schedule="gpipe", microbatches=16), 16, "16 stages need as many layers"),
        (Pipeline(schedule="1f1b", microbatches=2), 4, "as many microbatches as stages"),
    ],
)
def test_what_cannot_be_predicted_says_why(strategy, ranks, why):
    with pytest.raises(NoFit, match=why):
        predict_pipeline(shape(strategy), free, ranks)


@pytest.mark.parametrize(
    "told",
    [
        None,
        {"costs": [1.0]},
        {"costs": ["x"], "output_bytes": [1], "tied": []},
        {"costs": [1.0, 1.0], "output_bytes": [], "tied": []},
        {"costs": [0.0], "output_bytes": [1], "tied": []},
        {"costs": [math.nan], "output_bytes": [1], "tied": []},
    ],
)
def test_layers_that_are_not_told_are_no_ground_for_a_prediction(told):
    with pytest.raises(NoShape):
        layers_of({"layers": told})


def test_more_microbatches_make_the_bubble_smaller_and_cost_what_lies_between():
    one = shape(Pipeline(schedule="gpipe", microbatches=4), between_s=0.001)
    more = one.with_microbatches(16)
    assert more.strategy.microbatches == 16
    assert more.passes_s["F"] == pytest.approx(FORWARD_S / 4)
    assert more.layers.output_bytes == (250,) * 8
    step = predict_pipeline(more, free, 4).step_s
    law = (16 + 3) * ((FORWARD_S + BACKWARD_S) / 16 + 2 * 0.001) + AFTER_S / 4
    assert step == pytest.approx(law)
    assert step < predict_pipeline(one, free, 4).step_s


RECORDED = {
    "gpipe": ((0.0023909, 0.0034317), (0.0025719, 0.0036915), 0.0455, 0.000083, 0.0451),
    "1f1b": ((0.0019209, 0.0030510), (0.0020664, 0.0032820), 0.0273, 0.000047, 0.0336),
}
"""Two stages' passes, a played step, what an action costs, and the measured step: two cores."""


def played(schedule: str) -> RehearsedPipeline:
    *stages, step_s, action_s, _ = RECORDED[schedule]
    passes = [{"forward_s": f, "backward_s": b, "output_bytes": 32768} for f, b in stages]
    plan = {"schedule": schedule, "microbatches": 4, "stages": passes}
    return RehearsedPipeline.model_validate(
        {
            "suite": "pipeline",
            "case": schedule,
            "world_size": 2,
            "plan": plan,
            "step_s": [9.0, step_s, 0.0],
            "action_s": action_s,
        }
    )


def recorded_shape(schedule: str) -> PipelineShape:
    first, last, *_ = RECORDED[schedule]
    passes_s = {"F": first[0] + last[0], "B": first[1] + last[1]}
    layers = Layers((first[0], last[0]), (32768, 32768), ())
    strategy = Pipeline(schedule=schedule, microbatches=4)
    return PipelineShape(strategy, layers, passes_s, 0.0002, 0.0015, num_samples=16)


def test_a_recorded_pipeline_is_predicted_once_its_schedule_was_played():
    """On two cores ``gpipe`` took 45.1 ms; by passes and link it would be a quarter less."""
    link = link_of(send_recv=0.0001)
    shape, measured_s = recorded_shape("gpipe"), RECORDED["gpipe"][-1]
    assert predict_pipeline(shape, link, 2).step_s < 0.76 * measured_s
    longer_s = longer_than_modelled_s(played("gpipe"), link)
    assert longer_s == pytest.approx(0.0136, abs=0.0003)
    longer = dataclasses.replace(shape, longer_s=longer_s)
    step = predict_pipeline(longer, link, 2)
    assert step.step_s == pytest.approx(measured_s, rel=0.07)
    assert step.stalled_s > longer_s
    assert step.low_s > step.computing_s + longer_s


def test_ranks_play_the_passes_of_the_stages_and_messages_of_their_size():
    layers = ((3.0, 1.0, 2.0, 2.0), (100, 200, 300, 400))
    strategy = Pipeline(schedule="interleaved-1f1b", microbatches=4, chunks=2)
    plan = rehearsal_of(shape(strategy, *layers), 2)
    assert (plan.schedule, plan.microbatches) == ("interleaved-1f1b", 4)
    assert [stage.forward_s for stage in plan.stages] == pytest.approx(
        [FORWARD_S * part / 8 for part in layers[0]]
    )
    assert plan.stages[1].backward_s == pytest.approx(BACKWARD_S / 8)
    assert [stage.output_bytes for stage in plan.stages] == [100, 200, 300, 1]
