"""The search's closed forms agree with the cost models that they stand for."""

import numpy as np
import pytest

from scalebench.costmodel.pipeline_schedule import plan_schedule
from scalebench.costmodel.pipeline_step import dry_run, equal_times
from scalebench.costmodel.stage_split import layers_of_stages
from scalebench.costmodel.step import CommRequest, replay
from scalebench.search.choice import Choice, columns_of
from scalebench.search.model import SearchModel
from scalebench.search.prediction.passes import Passes, bubble_s
from scalebench.search.prediction.step import exposed_hops, hidden_behind
from scalebench.spec.presets import PRESETS, GptShape, MoeShape
from tests.examples import cases

SCHEDULES = [
    ("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("looped-bfs", 2), ("looped-bfs", 4),
    ("zero-bubble", 1),
]  # fmt: skip


@cases("p, m", (2, 4), (4, 8), (4, 16), (8, 16))
@cases("name, v", *SCHEDULES)
def test_bubble_and_messages_of_schedules_are_those_of_a_dry_run(name, v, p, m):
    schedule = plan_schedule(name, p, m, v)
    seconds = equal_times(p * v, 1.0 / v, 2.0 / v)
    bare, sent = dry_run(schedule, seconds), dry_run(schedule, seconds, transfer_s=0.01)
    of = columns_of([Choice(data=1, pipeline=p, schedule=name, chunks=v, microbatches=m)])
    passes = Passes(np.array([1.0]), np.array([2.0]), np.array([1.0]))
    assert 3 * m + bubble_s(of, passes, np.zeros(1))[0] == pytest.approx(bare.step_s)
    assert 0.01 * exposed_hops(of)[0] == pytest.approx(sent.step_s - bare.step_s)


@cases("num", 1, 2, 7)
@cases("each_s", 0.01, 0.3, 2.0)
def test_what_buckets_hide_is_what_a_replay_shows(num, each_s):
    window = 1.0
    asked = [CommRequest("all_reduce", 1, (i + 1) * window / num, window, None) for i in range(num)]
    stalled = replay(asked, [each_s] * num, window).stalled_s
    found = hidden_behind(np.array([num]), np.array([each_s]), np.array([window]))
    assert found[0] == pytest.approx(stalled)


@cases("stages", 2, 3, 5, 8)
@cases("vocabulary", 256, 50_000)
def test_the_fullest_stage_is_that_of_the_balanced_split(stages, vocabulary):
    model = SearchModel(
        name="m", layers=16, heads=4, width=128, context=64, vocabulary=vocabulary, kv_heads=4,
        inner=512,
    )  # fmt: skip
    costs = [*[model.block_flops] * model.layers]
    costs[-1] += model.head_flops
    split = layers_of_stages("balanced", costs, stages)
    dearest = max(sum(costs[begin:end]) for begin, end in split)
    # The split may leave the last stage the logits alone; costs here keep a layer with them.
    assert model.fullest_stage(stages)[1] <= dearest * (1 + 1e-12)
    if vocabulary == 256:
        assert model.fullest_stage(stages)[1] == pytest.approx(dearest)


@cases("name", *[n for n, s in PRESETS.items() if isinstance(s, GptShape | MoeShape)])
def test_parameters_are_those_of_the_presets_without_small_vectors(name):
    shape = PRESETS[name]
    assert isinstance(shape, GptShape | MoeShape)
    model = SearchModel.of_preset(shape)
    places = shape.context * shape.width
    assert model.num_parameters + places == pytest.approx(shape.num_parameters, rel=0.02)


@cases("p, m", (2, 4), (4, 8), (4, 16))
def test_the_bubble_with_long_passes_of_weights_is_that_of_a_dry_run(p, m):
    schedule = plan_schedule("zero-bubble", p, m)
    seconds = {(kind, stage): s for kind, s in (("F", 1.0), ("I", 2.0), ("W", 7.0))
               for stage in range(p)}  # fmt: skip
    of = columns_of([Choice(data=1, pipeline=p, schedule="zero-bubble", microbatches=m)])
    passes = Passes(np.array([1.0]), np.array([9.0]), np.array([7.0]))
    found = 10 * m + bubble_s(of, passes, np.zeros(1))[0]
    assert found == pytest.approx(dry_run(schedule, seconds).step_s)
