import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.shapes import NoShape, layers_of
from scalebench.costmodel import pipeline_schedule
from scalebench.costmodel.links.fitted import LinkTime, NoFit
from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.costmodel.pipeline_schedule import Action, Schedule, check
from scalebench.costmodel.pipeline_step import (
    Deadlock,
    PipelineShape,
    dry_run,
    equal_times,
    predict_pipeline,
    textbook_pipeline_s,
)
from scalebench.costmodel.stage_split import Layers, balanced_split, predict_pipeline_memory
from scalebench.records.measured.rank import Memory
from scalebench.spec import Pipeline, Plain
from tests.examples import cases

RULED = [name for name in pipeline_schedule.STYLES if name not in pipeline_schedule.FROM_TORCH]
ranks = st.integers(1, 6)
microbatches = st.integers(1, 20)
chunks = st.integers(1, 3)


def planned(name, p, m, v):
    v = 1 if pipeline_schedule.STYLES[name].chunks == "one" else v
    return (
        None
        if pipeline_schedule.why_not(name, p, m, v)
        else pipeline_schedule.plan_schedule(name, p, m, v)
    )


@given(st.sampled_from(RULED), ranks, microbatches, chunks)
def test_every_schedule_is_complete_and_ends(name, p, m, v):
    schedule = planned(name, p, m, v)
    if schedule is None:
        return
    check(schedule)
    timeline = dry_run(schedule, equal_times(schedule.num_stages))
    work_s = sum(timeline.busy_s(rank) for rank in range(p))
    assert work_s == pytest.approx(3 * m * schedule.num_stages)
    assert timeline.step_s >= work_s / p - 1e-9


@given(st.sampled_from(["gpipe", "1f1b"]), ranks, microbatches, st.floats(0.1, 9))
def test_the_bubble_of_equal_stages_is_that_of_the_law(name, p, m, backward_s):
    schedule = planned(name, p, m, 1)
    if schedule is None:
        return
    found = dry_run(schedule, equal_times(p, 1.0, backward_s)).bubble_ratio
    assert found == pytest.approx((p - 1) / (m + p - 1))
    assert pipeline_schedule.bubble_law(name, p, m, 1) == pytest.approx(found)


@given(ranks, st.integers(1, 5), chunks)
def test_interleaving_divides_the_bubble_by_the_chunks(p, rounds, v):
    m = rounds * p
    schedule = pipeline_schedule.plan_schedule("interleaved-1f1b", p, m, v)
    found = dry_run(schedule, equal_times(p * v)).bubble_ratio
    assert found == pytest.approx((p - 1) / (v * m + p - 1))
    assert pipeline_schedule.bubble_law("interleaved-1f1b", p, m, v) == pytest.approx(found)


@given(ranks, st.integers(1, 3))
def test_putting_weights_off_makes_the_bubble_smaller(p, rounds):
    m = rounds * p
    whole, split = (
        dry_run(pipeline_schedule.plan_schedule(name, p, m), equal_times(p)).bubble_ratio
        for name in ("1f1b", "zero-bubble")
    )
    assert split < whole or p == 1


def test_ranks_that_wait_for_one_another_are_found():
    crossed = Schedule(
        "crossed",
        2,
        (
            (Action(0, "F", 0), Action(0, "B", 0), Action(0, "F", 1), Action(0, "B", 1)),
            (Action(1, "F", 0), Action(1, "F", 1), Action(1, "B", 0), Action(1, "B", 1)),
        ),
    )
    check(crossed)
    with pytest.raises(Deadlock, match="rank 0 waits with 0B0 for 1B0, rank 1 waits with 1F1"):
        dry_run(crossed, equal_times(2))


@cases(
    "ranks, told",
    ([["0F0", "0B0"], ["0F1", "0B1"]], "stage 0 is on rank 0 and on 1"),
    ([["0B0", "0F0"]], "0B0 comes after nothing"),
    ([["0F0", "0B0", "0W0"]], "0W0 comes after FB"),
    ([["0F0", "0I0"]], "no backward pass for 0F0"),
    ([["0F0", "0B0"]], "0F1 is missing"),
    ([["1F0", "1B0", "1F1", "1B1"]], "not numbered"),
    ([["0F0", "0B0", "0F1", "0B1", "0F2", "0B2"]], "more than 2 microbatches"),
)
def test_a_wrong_schedule_is_refused_with_the_action(ranks, told):
    actions = [tuple(Action(int(a[0]), a[1], int(a[2])) for a in rank) for rank in ranks]
    with pytest.raises(ValueError, match=told):
        check(Schedule("wrong", 2, tuple(actions)))


def test_ranks_that_cannot_run_a_pipeline_are_told_why():
    def why(world_size, rank_batch=8, **settings):
        asked = {"schedule": "1f1b", "microbatches": 4, **settings}
        return pipeline_schedule.why_no_pipeline(
            Pipeline.model_validate(asked), rank_batch, world_size
        )

    assert why(4) is None
    assert why(8, data_parallel=2) is None
    assert "4 for 8 stages" in str(why(8))
    assert "4 for 5 stages" in str(why(10, data_parallel=2))
    assert "9 ranks cannot be split into 2 pipelines" in str(why(9, data_parallel=2))
    assert "6 samples per pipeline cannot be split into 4" in str(why(4, rank_batch=6))
    interleaved = {"schedule": "interleaved-1f1b", "chunks": 2, "microbatches": 6}
    assert why(2, rank_batch=12, **interleaved) is None
    assert "6 cannot be split into 1 rounds" not in str(why(4, rank_batch=12, **interleaved))
    # a compiled module has its backward pass in one piece
    assert "--no-compile" in why(2, compile=True, schedule="zero-bubble")
    assert why(2, schedule="zero-bubble") is why(2, compile=True) is None


FORWARD_S, BACKWARD_S, AFTER_S = 0.08, 0.16, 0.04


def shape(strategy):
    passes = {"F": FORWARD_S, "B": BACKWARD_S}
    layers = Layers((1.0,) * 8, (1000,) * 8, ())
    return PipelineShape(strategy, layers, passes, 0.0, AFTER_S, num_samples=32)


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
    for costs, num_outputs in (("x", 1), ([1.0, 1.0], 0), ([0.0], 1), ([math.nan], 1)):
        told = {"costs": list(costs), "output_bytes": [1] * num_outputs, "tied": []}
        with pytest.raises(NoShape):
            layers_of({"layers": told})
    for nothing in (None, {"costs": [1.0]}):
        with pytest.raises(NoShape):
            layers_of({"layers": nothing})


LAYERS, PARAMETERS, KEPT, OUTPUT = 8, 100, 1000, 10
BATCH, MICROBATCHES = 16, 4
EIGHT = Layers(
    costs=(1.0,) * LAYERS,
    output_bytes=(*(OUTPUT,) * (LAYERS - 1), 0),
    parameter_bytes=(PARAMETERS,) * LAYERS,
    kept_bytes=(KEPT,) * LAYERS,
)
DATA = 7


HELD = dict.fromkeys(("activations_bytes", "activations_peak_bytes"), LAYERS * KEPT * MICROBATCHES)
ALONE = MeasuredBaseline(Plain(), BATCH, Memory(gradients_bytes=0, data_bytes=DATA, **HELD))
"""The whole model on one rank."""


def pipeline(schedule, **settings):
    return Pipeline(schedule=schedule, **{"microbatches": MICROBATCHES, **settings})


@cases(
    "strategy, changes, why",
    (pipeline("zbv", chunks=2), {}, "only torch knows the order of zbv"),
    (pipeline("gpipe"), {"layers": Layers(EIGHT.costs, EIGHT.output_bytes)}, "keep for their"),
    (pipeline("gpipe"), {"optimizer": "Adafactor"}, "Adafactor is not known"),
    (pipeline("gpipe", checkpointing=True), {}, "differs in checkpointing"),
)
def test_memory_what_cannot_be_predicted_says_why(strategy, changes, why):
    told = {"layers": EIGHT, "optimizer": "AdamW", **changes}
    with pytest.raises(ValueError, match=why):
        predict_pipeline_memory(strategy, told["layers"], 2, BATCH, told["optimizer"], ALONE)


costs = st.lists(st.integers(0, 50), min_size=1, max_size=9)


def dearest(costs, sizes):
    left, found = list(costs), []
    for size in sizes:
        found.append(sum(left[:size]))
        del left[:size]
    return max(found)


@given(costs.flatmap(lambda c: st.tuples(st.just(c), st.integers(1, len(c)))))
def test_no_other_cut_has_a_cheaper_dearest_stage(given):
    layers, stages = given
    sizes = balanced_split(layers, stages)
    assert len(sizes) == stages and sum(sizes) == len(layers) and min(sizes) >= 1
    others = (
        [b - a for a, b in zip((0, *cuts), (*cuts, len(layers)), strict=True)]
        for cuts in combinations(range(1, len(layers)), stages - 1)
    )
    assert dearest(layers, sizes) == min(dearest(layers, other) for other in others)
