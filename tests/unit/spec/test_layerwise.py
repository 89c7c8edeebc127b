"""The naive model split as data: a pipeline with one microbatch, whose size follows N."""

import pytest
from pydantic import ValidationError

from scalebench.costmodel.pipelines.dry_run import dry_run, equal_times
from scalebench.costmodel.pipelines.orders import plan_schedule, why_no_pipeline
from scalebench.spec import LayerWise, Pipeline


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_one_rank_works_at_a_time(ranks):
    strategy = LayerWise()
    schedule = plan_schedule(strategy.schedule, ranks, strategy.microbatches, strategy.chunks)
    timeline = dry_run(schedule, equal_times(ranks))
    assert timeline.bubble_ratio == pytest.approx((ranks - 1) / ranks)


def test_more_ranks_than_size_are_copies_of_the_model():
    assert [LayerWise().num_shards(n) for n in (1, 2, 4)] == [1, 1, 1]
    assert [LayerWise(size=2).num_shards(n) for n in (1, 2, 4, 8)] == [1, 1, 2, 4]
    assert LayerWise(size=2).why_not("cpu", 4) is None
    assert why_no_pipeline(LayerWise(size=2), 8, 4) is None


def test_it_is_a_pipeline_that_cannot_be_given_another_schedule():
    assert isinstance(LayerWise(), Pipeline)
    for changes in ({"schedule": "1f1b"}, {"microbatches": 2}, {"data_parallel": 2}):
        with pytest.raises(ValidationError):
            LayerWise(**changes)
    assert LayerWise.model_validate_json(LayerWise(size=2).model_dump_json()) == LayerWise(size=2)
