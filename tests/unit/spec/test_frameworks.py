"""The strategies of other frameworks, as data."""

import pytest
from pydantic import ValidationError

from scalebench.spec import Accelerate, DeepSpeed, Fabric, FairScale, Horovod


def test_buckets_are_the_same_bytes_whatever_a_framework_counts_in():
    assert DeepSpeed(bucket_mb=25).elements_per_bucket == 25 * 2**20 // 4
    assert DeepSpeed(bucket_mb=None).elements_per_bucket is None


def test_as_shipped_and_a_bucket_size_contradict_each_other():
    with pytest.raises(ValidationError, match="give bucket_mb=None"):
        Fabric(as_shipped=True)
    assert Fabric(as_shipped=True, bucket_mb=None).as_shipped


def test_a_stage_is_for_the_deepspeed_plug_in_and_it_needs_one():
    for wrong in ({"plugin": "deepspeed"}, {"plugin": "ddp", "stage": 2}):
        with pytest.raises(ValidationError, match="stage is for the DeepSpeed plug-in"):
            Accelerate(**wrong)
    assert Accelerate(plugin="deepspeed", stage=0).zero_stage == 0


def test_each_says_what_it_needs_and_how_to_install_it():
    assert list(Accelerate().needs) == ["accelerate"]
    behind = Accelerate(plugin="deepspeed", stage=1)
    assert set(behind.needs) == {"accelerate", "deepspeed", "transformers"}
    assert behind.install == "pip install 'scalebench[accelerate,deepspeed]'"
    assert FairScale().install == "pip install 'scalebench[fairscale]'"
    assert Horovod().install == "make horovod"


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


def test_microbatches_are_parts_of_the_global_batch():
    assert DeepSpeed(accumulate=4).num_parts(2) == 8
