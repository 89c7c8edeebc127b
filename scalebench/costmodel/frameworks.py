"""What other people's frameworks send in a step, and keep, by their stage of ZeRO.

The laws are those of what the frameworks do, which is not always what their stage would allow:
DeepSpeed's stages 1 and 2 all-reduce the gradients (a reduce-scatter would send half), stages 2 and
3 in every microbatch, and they keep one buffer of a whole bucket, however small the model. Sources:
Rajbhandari et al. 2020, §7; the operations in traces of DeepSpeed 0.19.8 and FairScale 0.4.13.
"""

from dataclasses import dataclass
from typing import Literal

from scalebench.spec import Accelerate, DeepSpeed, Fabric, FairScale, FromFramework, Horovod

FP32_BYTES = 4
SHIPPED_ELEMENTS = 500_000_000
"""Of DeepSpeed's bucket (``reduce_bucket_size``), where no one sets it."""


@dataclass(frozen=True)
class Sent:
    """Full sizes that are handed to operations in a step, in multiples of the parameters."""

    all_reduce: float = 0.0
    all_gather: float = 0.0
    reduce_scatter: float = 0.0
    reduce: float = 0.0
    broadcast: float = 0.0


def runs_deepspeed(strategy: FromFramework) -> bool:
    """Tell whether DeepSpeed's engine does the step."""
    return isinstance(strategy, DeepSpeed) or (
        isinstance(strategy, Accelerate) and strategy.plugin == "deepspeed"
    )


def wraps_with(strategy: object, wrapper: Literal["ddp", "fsdp2"]) -> bool:
    """Tell whether a strategy is torch's DDP or FSDP2 behind a framework."""
    if isinstance(strategy, Accelerate):
        return strategy.plugin == wrapper
    return isinstance(strategy, Fabric) and strategy.sharding == wrapper


def sent_in_a_step(strategy: FromFramework) -> Sent | None:
    """Return what a step hands to its operations; None: there is no law.

    Not of FSDP2, whose groups are known, see `scalebench.costmodel.sharding`; nor of DeepSpeed's
    stage 3 as it is shipped, which keeps small parameters and decides by itself what to gather
    twice.
    """
    if isinstance(strategy, FairScale):
        return Sent(reduce=1, broadcast=1)
    if isinstance(strategy, Horovod) and strategy.compression == "fp16":
        return Sent(all_reduce=0.5)
    if isinstance(strategy, Horovod) or wraps_with(strategy, "ddp"):
        return Sent(all_reduce=1)
    if not runs_deepspeed(strategy) or (strategy.zero_stage == 3 and strategy.as_shipped):
        return None
    each = strategy.accumulate
    return {
        0: Sent(all_reduce=1),
        1: Sent(all_reduce=1, all_gather=1),
        2: Sent(all_reduce=each, all_gather=1),
        3: Sent(all_gather=2 * each, reduce_scatter=each),
    }[strategy.zero_stage]


def bucket_bytes(strategy: object) -> int:
    """Return the buffer that a framework keeps in a step besides parameters and gradients, bytes.

    DeepSpeed's buffer of contiguous gradients is as large as a bucket. Stage 0 has none.
    """
    if not isinstance(strategy, FromFramework) or not runs_deepspeed(strategy):
        return 0
    if strategy.zero_stage == 0:
        return 0
    return FP32_BYTES * (strategy.elements_per_bucket or SHIPPED_ELEMENTS)


def keeps_second_copy(strategy: object) -> bool:
    """Tell whether the optimizer updates a float32 copy of the rank's share of the parameters.

    DeepSpeed's does from stage 1 on, also where the parameters are float32 themselves.
    """
    return (
        isinstance(strategy, FromFramework) and runs_deepspeed(strategy) and strategy.zero_stage > 0
    )


def keeps_gradient_shard(strategy: object) -> bool:
    """Tell whether a buffer for the rank's share of the gradients lives from step to step.

    DeepSpeed's stage 3 has one. It gathers module by module: nothing is in flight at the peak.
    """
    return (
        isinstance(strategy, FromFramework)
        and runs_deepspeed(strategy)
        and strategy.zero_stage == 3
    )


def copies_gradients(strategy: object) -> bool:
    """Tell whether gradients are copied to DDP's buckets instead of living in them."""
    return (
        isinstance(strategy, FromFramework) and strategy.as_shipped and wraps_with(strategy, "ddp")
    )


def keeps_gradients_in_buckets(strategy: object) -> bool:
    """Tell whether gradients are views into buckets that live from step to step."""
    if isinstance(strategy, FairScale):
        return True
    return wraps_with(strategy, "ddp") and not copies_gradients(strategy)
