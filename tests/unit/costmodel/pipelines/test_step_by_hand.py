"""A pipeline's step with stages, messages and links that all differ, worked out by hand."""

import math

import pytest

from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.pipelines.layers import Layers, TiedParameter
from scalebench.costmodel.pipelines.step import (
    PipelineShape,
    longer_than_modelled_s,
    predict_pipeline,
    rehearsal_of,
    stages_of,
    textbook_pipeline_s,
)
from scalebench.costmodel.replay import CommRequest
from scalebench.records.probes import RehearsedPipeline
from scalebench.spec import Pipeline

LAYERS = Layers(
    costs=(1.0, 2.0, 3.0, 2.0),
    output_bytes=(10, 30, 20, 90),
    tied=(TiedParameter((0, 3), 48), TiedParameter((2, 3), 64), TiedParameter((0, 1, 2), 80)),
)
"""Two stages of even size have 3 and 5 of 8 parts; three stages 3, 3 and 2."""


def shape(**changes):
    settings = {"schedule": "gpipe", "microbatches": 2, "split": "even"}
    strategy = Pipeline(**{**settings, **changes.pop("settings", {})})
    fields = {
        "passes_s": {"F": 8.0, "B": 16.0},
        "between_s": 0.5,
        "after_s": 4.0,
        "num_samples": 6,
        **changes,
    }
    return PipelineShape(
        strategy,
        changes.get("layers", LAYERS),
        **{name: value for name, value in fields.items() if name != "layers"},
    )


def per_byte(op, num_ranks, size_bytes):
    """A hundredth of a second a byte at 2 ranks, half as much above; ± a part of it."""
    takes = size_bytes / 100 * (2 / num_ranks)
    of_sums = op == "all_reduce"
    outside = f"{op} of {size_bytes}" if of_sums else None
    dof = 7.0 if of_sums else 11.0
    return LinkTime(takes, 0.8 * takes, 1.5 * takes, (num_ranks, 9), outside, dof)


def free(op, num_ranks, size_bytes):
    return LinkTime(0.0, 0.0, 0.0, (num_ranks,))


def test_the_whole_step_on_one_rank():
    """Two microbatches of 24 s, twice two passes of half a second, and the optimizer."""
    assert shape().computing_s == 2 * 24 + 4 * 0.5 + 4
    chunked = shape(settings={"schedule": "interleaved-1f1b", "chunks": 3})
    assert chunked.computing_s == 2 * 24 + 2 * 3 * 2 * 0.5 + 4


def test_a_slowed_pipeline_computes_longer_in_all_its_parts():
    slowed = shape(longer_s=3.0).slowed(1.5)
    assert slowed == shape(
        passes_s={"F": 12.0, "B": 24.0}, between_s=0.75, after_s=6.0, longer_s=3.0
    )


def test_another_batch_has_longer_passes_and_larger_outputs():
    found = shape().with_batch(9)
    assert (found.passes_s, found.num_samples) == ({"F": 12.0, "B": 24.0}, 9)
    assert found.layers.output_bytes == (15, 45, 30, 135)
    assert (found.between_s, found.after_s) == (0.5, 4.0)


def test_an_output_has_a_byte_at_least():
    assert shape().with_microbatches(80).layers.output_bytes == (1, 1, 1, 2)


def test_more_microbatches_have_shorter_passes():
    found = shape(longer_s=3.0).with_microbatches(5)
    assert found.strategy.microbatches == 5
    assert found.passes_s == pytest.approx({"F": 3.2, "B": 6.4})
    assert found.layers.output_bytes == (4, 12, 8, 36)
    assert (found.longer_s, found.num_samples) == (7.5, 6)


def test_a_step_of_two_stages_by_hand():
    """Of 8 parts the first stage has 3: passes of 3 and 6 s, the second of 5 and 10 s.

    Rank 0 does F0 from 0.5 to 3.5. Rank 1 then has F0, F1, B0 and B1, each with half a second
    before it: F0 from 4 to 9, F1 to 14.5, B0 to 25, B1 to 35.5. Rank 0 ends with B1 from 36 to 42.
    The optimizer takes the second stage's part of 4 s, 2.5 s.
    """
    bare = shape(layers=Layers(LAYERS.costs, LAYERS.output_bytes))
    step = predict_pipeline(bare, free, 2)
    assert step.step_s == step.low_s == step.high_s == step.computing_s == pytest.approx(44.5)
    assert step.stalled_s == 0
    # Rank 0 works 18 s and four halves, rank 1 30 s and four halves, of 42 s.
    assert step.bubble_s == pytest.approx(((42 - 20) + (42 - 32)) / 2)
    assert step.requests == (CommRequest("send_recv", 30, 0.0, 0.0),)
    assert (step.world_sizes, step.outside, step.link_dof) == ((2,), (), math.inf)


def test_messages_and_sums_of_two_stages_by_hand():
    """A hop of 30 bytes takes 0.3 s each way; sums of 48 and 80 bytes 0.48 and 0.8 s."""
    step = predict_pipeline(shape(longer_s=3.0), per_byte, 2)
    sums = (
        CommRequest("all_reduce", 48, 0.0, 0.0, 2),
        CommRequest("all_reduce", 80, 0.0, 0.0, 2),
    )
    assert step.requests == (CommRequest("send_recv", 30, 0.0, 0.0), *sums)
    assert step.computing_s == pytest.approx(44.5)
    longer = 2 * 0.3 + 0.48 + 0.8
    assert step.step_s == pytest.approx(44.5 + longer + 3)
    assert step.stalled_s == pytest.approx(longer + 3)
    assert step.low_s == pytest.approx(44.5 + 0.8 * longer + 3)
    assert step.high_s == pytest.approx(44.5 + 1.5 * longer + 3)
    assert [time.time_s for time in step.times] == pytest.approx([0.3, 0.48, 0.8])
    assert step.world_sizes == (2, 9)
    assert step.outside == ("all_reduce of 48", "all_reduce of 80")
    assert step.link_dof == 7.0


def test_a_sum_is_among_the_ranks_that_hold_the_parameter_and_a_hop_among_all():
    """Three stages: layers 0 and 1, layer 2, layer 3."""
    step = predict_pipeline(shape(settings={"microbatches": 3}), per_byte, 3)
    assert [(r.op, r.size_bytes, r.num_ranks) for r in step.requests] == [
        ("send_recv", 30, None),
        ("all_reduce", 48, 2),
        ("all_reduce", 64, 2),
        ("all_reduce", 80, 2),
    ]
    assert [time.time_s for time in step.times] == pytest.approx([0.2, 0.48, 0.64, 0.8])


def test_the_largest_hop_is_of_an_output_that_is_handed_on():
    """The last stage's 90 bytes go nowhere; that of layer 1 is inside the first stage."""
    sizes = {
        n: predict_pipeline(shape(settings={"microbatches": 4}), free, n).requests[0].size_bytes
        for n in (2, 3, 4)
    }
    assert sizes == {2: 30, 3: 30, 4: 30}
    inner = Layers(LAYERS.costs, (10, 5, 80, 90))
    assert predict_pipeline(shape(layers=inner), free, 2).requests[0].size_bytes == 5
    apart = Layers(LAYERS.costs, (10, 5, 7, 90))
    four = shape(layers=apart, settings={"microbatches": 4})
    assert predict_pipeline(four, free, 4).requests[0].size_bytes == 10


def test_the_optimizer_of_the_rank_with_most_layers_is_waited_for():
    """Chunks 0 and 2 are the first rank's: 1 + 3 of 8 parts; with other costs 1 + 1 of 8."""
    chunks = {"schedule": "interleaved-1f1b", "chunks": 2}
    for costs, most in (((1.0, 2.0, 3.0, 2.0), 4 / 8), ((1.0, 4.0, 1.0, 2.0), 6 / 8)):
        layers = Layers(costs, LAYERS.output_bytes)
        steps = [
            predict_pipeline(shape(layers=layers, settings=chunks, after_s=s), free, 2).step_s
            for s in (0.0, 4.0)
        ]
        assert steps[1] - steps[0] == pytest.approx(4 * most)


def test_stages_of_several_pipelines_are_those_of_one():
    strategy = {"data_parallel": 3, "schedule": "interleaved-1f1b", "chunks": 2}
    assert stages_of(shape(settings=strategy), 6) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert stages_of(shape(settings={"data_parallel": 3}), 6) == [(0, 2), (2, 4)]
    with pytest.raises(NoFit, match="5 stages need as many layers"):
        stages_of(shape(), 5)


def test_the_textbook_step_by_hand():
    """54 s on one rank, over 3 ranks, and two more slots to 2: (2 + 2) / 2."""
    assert textbook_pipeline_s(shape(), 3) == pytest.approx(54 / 3 * 4 / 2)
    assert textbook_pipeline_s(shape(settings={"data_parallel": 2}), 6) == pytest.approx(36)
    chunked = shape(settings={"schedule": "interleaved-1f1b", "chunks": 3})
    assert textbook_pipeline_s(chunked, 2) == pytest.approx(58 / 2 * 7 / 6)


def test_what_ranks_play_by_hand():
    plan = rehearsal_of(shape(), 2)
    assert (plan.schedule, plan.microbatches) == ("gpipe", 2)
    assert [(s.forward_s, s.backward_s, s.output_bytes) for s in plan.stages] == [
        (3.0, 6.0, 30),
        (5.0, 10.0, 1),
    ]


def test_a_played_step_is_held_against_schedule_and_largest_message():
    """Stages of 1 + 2, 2 + 3 and 1 + 1 s, a quarter before each; of the messages 40 bytes count.

    One microbatch goes there in 0.25 + 1 + 0.4 + 0.25 + 2 + 0.4 + 0.25 + 1 s and back in 0.25 + 1
    + 0.4 + 0.25 + 3 + 0.4 + 0.25 + 2 s: 13.1 s. At three ranks a byte takes 2/3 of a hundredth.
    """
    stages = [
        {"forward_s": 1, "backward_s": 2, "output_bytes": 60},
        {"forward_s": 2, "backward_s": 3, "output_bytes": 30},
        {"forward_s": 1, "backward_s": 1, "output_bytes": 900},
    ]
    played = RehearsedPipeline.model_validate(
        {
            "suite": "s",
            "case": "c",
            "world_size": 3,
            "plan": {"schedule": "gpipe", "microbatches": 1, "stages": stages},
            "step_s": [99.0, 20.0, 1.0],
            "action_s": 0.25,
        }
    )
    assert longer_than_modelled_s(played, per_byte) == pytest.approx(20 - 13.1)
