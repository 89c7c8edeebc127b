"""The strategies of other frameworks, as data."""

import pytest
from pydantic import ValidationError

from scalebench.spec import Accelerate, DeepSpeed, Fabric


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
