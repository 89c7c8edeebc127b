"""The strategies of other frameworks, as data."""

import pytest
from pydantic import ValidationError

from scalebench.costmodel.pipelines.dry_run import dry_run, equal_times
from scalebench.costmodel.pipelines.orders import plan_schedule, why_no_pipeline
from scalebench.spec import (
    Accelerate,
    Ddp,
    DeepSpeed,
    Fabric,
    LayerWise,
    LocalSgd,
    ParameterServer,
    Pipeline,
)


def test_as_shipped_and_a_bucket_size_contradict_each_other():
    with pytest.raises(ValidationError, match="give bucket_mb=None"):
        Fabric(as_shipped=True)
    assert Fabric(as_shipped=True, bucket_mb=None).as_shipped


def test_a_stage_is_for_the_deepspeed_plug_in_and_it_needs_one():
    for wrong in ({"plugin": "deepspeed"}, {"plugin": "ddp", "stage": 2}):
        with pytest.raises(ValidationError, match="stage is for the DeepSpeed plug-in"):
            Accelerate(**wrong)
    assert Accelerate(plugin="deepspeed", stage=0).zero_stage == 0


def test_what_cannot_run_says_why():
    sharded = Accelerate(plugin="fsdp2")
    assert "on GPUs only" in (sharded.why_not("cpu", 2) or "")
    assert sharded.why_not("cuda", 2) is None
    assert "nothing to offload" in (DeepSpeed(stage=0, offload=True).why_not("cpu", 2) or "")


def test_engines_that_always_reduce_say_so():
    assert DeepSpeed(stage=0).always_communicates
    assert Fabric().always_communicates is None
    assert Fabric(sharding="fsdp2").always_communicates


def test_deepspeed_as_shipped_clips_and_is_not_compared():
    assert DeepSpeed().unverified_because is None
    shipped = DeepSpeed(bucket_mb=None, as_shipped=True)
    assert "clips gradients" in (shipped.unverified_because or "")


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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backup_workers": 1}, "needs staleness_bound=0"),
        ({"backup_workers": 1, "staleness_bound": 0, "servers": 2}, "needs servers=1"),
        ({"staleness_aware": True, "staleness_bound": 0}, "no gradient is stale"),
        ({"pushes": "priority"}, "needs staleness_bound=0"),
        ({"pushes": "backward", "staleness_bound": 2}, "needs staleness_bound=0"),
        (
            {"pushes": "priority", "staleness_bound": 0, "backup_workers": 1},
            "needs staleness_bound=0 and backup_workers=0",
        ),
        ({"pushes": "priority", "staleness_bound": 0, "compile": True}, "needs compile=False"),
        ({"pushes": "backward", "staleness_bound": 0, "chunk_mb": 1}, 'needs pushes="priority"'),
        ({"chunk_mb": 1}, 'chunk_mb=1 needs pushes="priority"'),
        ({"pushes": "priority", "staleness_bound": 0, "chunk_mb": 0}, "greater than 0"),
    ],
)
def test_options_that_contradict_one_another(options, told):
    with pytest.raises(ValidationError, match=told):
        ParameterServer(**options)


def test_a_step_waits_for_somebody():
    backup = ParameterServer(staleness_bound=0, backup_workers=2)
    assert backup.why_not("cpu", 3) is None
    assert "leave none of the 2 ranks" in str(backup.why_not("cpu", 2))


@pytest.mark.parametrize(
    ("strategy", "dispensable"),
    [
        (ParameterServer(), [1, 2, 3]),
        (ParameterServer(servers=2, staleness_bound=3), [2, 3]),
        (ParameterServer(staleness_bound=0, backup_workers=1), [1, 2, 3]),
        (ParameterServer(staleness_bound=0), []),
        (LocalSgd(), []),
        (Ddp(), []),
    ],
)
def test_ranks_that_serve_nothing_may_be_lost_where_no_step_needs_all(strategy, dispensable):
    assert list(strategy.dispensable(4)) == dispensable
