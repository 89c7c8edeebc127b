import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.shapes import NoShape, layers_of
from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.pipelines.stage_split import Layers
from scalebench.costmodel.pipelines.step import PipelineShape, predict_pipeline, textbook_pipeline_s
from scalebench.records.measured.probes import RehearsedPipeline
from scalebench.spec import Pipeline
from tests.examples import cases

FORWARD_S, BACKWARD_S, AFTER_S = 0.08, 0.16, 0.04


def shape(strategy, costs=(1.0,) * 8, output_bytes=None, between_s=0.0, tied=()):
    layers = Layers(tuple(costs), tuple(output_bytes or (1000,) * len(costs)), tuple(tied))
    passes = {"F": FORWARD_S, "B": BACKWARD_S}
    return PipelineShape(strategy, layers, passes, between_s, AFTER_S, num_samples=32)


def free(op, num_ranks, size_bytes):
    return LinkTime(0.0, 0.0, 0.0, (num_ranks,))


@cases("schedule", "gpipe", "1f1b")
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


@cases(
    "strategy, ranks, why",
    (Pipeline(schedule="zbv", chunks=2), 2, "only torch knows the order of zbv"),
    (Pipeline(schedule="gpipe", microbatches=16), 16, "16 stages need as many layers"),
    (Pipeline(schedule="1f1b", microbatches=2), 4, "as many microbatches as stages"),
)
def test_what_cannot_be_predicted_says_why(strategy, ranks, why):
    with pytest.raises(NoFit, match=why):
        predict_pipeline(shape(strategy), free, ranks)


@cases(
    "told",
    None,
    {"costs": [1.0]},
    {"costs": ["x"], "output_bytes": [1], "tied": []},
    {"costs": [1.0, 1.0], "output_bytes": [], "tied": []},
    {"costs": [0.0], "output_bytes": [1], "tied": []},
    {"costs": [math.nan], "output_bytes": [1], "tied": []},
)
def test_layers_that_are_not_told_are_no_ground_for_a_prediction(told):
    with pytest.raises(NoShape):
        layers_of({"layers": told})


RECORDED = {
    "gpipe": ((0.0023909, 0.0034317), (0.0025719, 0.0036915), 0.0455, 0.000083, 0.0451),
    "1f1b": ((0.0019209, 0.0030510), (0.0020664, 0.0032820), 0.0273, 0.000047, 0.0336),
}
"""Two stages' passes, a played step, what an action costs, and the measured step: two cores."""


def played(schedule):
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
