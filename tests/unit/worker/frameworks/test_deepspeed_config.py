"""The configuration that DeepSpeed is given: nothing hidden, buckets in its own unit."""

from types import SimpleNamespace
from typing import Any

import torch

from scalebench.spec import DeepSpeed
from scalebench.worker.frameworks.deepspeed_engine import engine_config


def config(strategy: DeepSpeed, device: str = "cpu") -> dict[str, Any]:
    context: Any = SimpleNamespace(device=torch.device(device), cell=SimpleNamespace(rank_batch=8))
    return engine_config(strategy, context)


def test_nothing_is_clipped_and_buckets_are_elements():
    made = config(DeepSpeed(stage=2, bucket_mb=1, accumulate=2))
    assert made["gradient_clipping"] == 0.0
    assert made["zero_optimization"]["reduce_bucket_size"] == 2**18
    assert made["train_micro_batch_size_per_gpu"] == 4
    assert made["gradient_accumulation_steps"] == 2


def test_stage_3_gives_parameters_up_as_fsdp2_does():
    zero = config(DeepSpeed(stage=3))["zero_optimization"]
    assert zero["stage3_max_reuse_distance"] == zero["stage3_param_persistence_threshold"] == 0
    assert zero["stage3_prefetch_bucket_size"] == 0
    ahead = config(DeepSpeed(stage=3, bucket_mb=1), "cuda")["zero_optimization"]
    assert ahead["stage3_prefetch_bucket_size"] == 2**18


def test_as_shipped_sets_nothing_that_has_a_default():
    made = config(DeepSpeed(stage=2, bucket_mb=None, as_shipped=True))
    assert made["zero_optimization"] == {"stage": 2}
    assert "gradient_clipping" not in made and "steps_per_print" not in made


def test_offload_moves_the_optimizer_and_with_stage_3_the_parameters():
    assert "offload_param" not in config(DeepSpeed(stage=2, offload=True))["zero_optimization"]
    zero = config(DeepSpeed(stage=3, offload=True))["zero_optimization"]
    assert zero["offload_param"] == zero["offload_optimizer"] == {"device": "cpu"}
