"""What sharded strategies share out and send, frameworks too; and shares that follow ranks' speed.

Shares of a global batch that follow the speed of the ranks: fast ones get more samples.

With equal shares a step lasts as long as the slowest rank needs; with shares in proportion to speed
all are ready at once. For ranks that take t_r seconds for equal shares it then lasts N / Σ(1/t_r),
the harmonic mean instead of the maximum, but for whole samples. Source: Beaumont et al. 2001,
"Matrix Multiplication on Heterogeneous Platforms", IEEE TPDS 12(10): load balancing of independent
tasks on processors of different speed.

What sharded strategies share: which of them divide what, and the groups that they gather.

Sources: Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (PyTorch FSDP).

What other people's frameworks send in a step, and keep, by their stage of ZeRO.

The laws are those of what the frameworks do, which is not always what their stage would allow:
DeepSpeed's stages 1 and 2 all-reduce the gradients (a reduce-scatter would send half), stages 2 and
3 in every microbatch, and they keep one buffer of a whole bucket, however small the model. Sources:
Rajbhandari et al. 2020, §7; the operations in traces of DeepSpeed 0.19.8 and FairScale 0.4.13.

Bytes that a rank sends in one step, by the strategy's law, ring-equivalent.

The same measure as a row's ``wire_bytes``, which counts the operations in the trace: what a ring
would send for what was asked for. Sources: Rajbhandari et al. 2020, §7 (ZeRO's communication);
Thakur et al. 2005 (rings).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalebench.spec import (
    Accelerate,
    Ddp,
    DeepSpeed,
    Execution,
    Fabric,
    FairScale,
    FromFramework,
    Fsdp,
    Fsdp1,
    Horovod,
    Plain,
    Strategy,
    Zero1,
)

LATEST = 0.5
"""Weight of the latest window in the smoothed pace: a change is followed to 97 % in 5 windows."""
LEAST_GAIN = 0.03
"""Of the time that the slowest rank needs: a smaller gain may be noise."""
MOST = 2.0
"""Equal shares that a rank gets at most: what its memory has to hold."""
FP32_BYTES = 4
SHIPPED_ELEMENTS = 500_000_000
"""Of DeepSpeed's bucket (``reduce_bucket_size``), where no one sets it."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


def divided(total: int, pace_s: Sequence[float], most: float = MOST) -> tuple[int, ...]:
    """Return how many of ``total`` samples each rank gets, so that the last is ready first.

    Args:
        total: Samples, at least one for each rank.
        pace_s: What a sample takes each rank, seconds, above zero.
        most: Times an equal share that a rank gets at most; at least 1.

    Raises:
        ValueError: There are fewer samples than ranks, or a pace is no time.
    """
    n = len(pace_s)
    if total < n:
        raise ValueError(f"{total} samples cannot be divided over {n} ranks: give at least {n}")
    if not all(0 < pace < math.inf for pace in pace_s):
        raise ValueError(f"a sample takes {list(pace_s)} s: give times above zero")
    limit = max(math.floor(most * total / n), -(-total // n))
    speeds = [min(pace_s) / pace for pace in pace_s]
    even = total / sum(speeds)
    shares = [min(max(math.floor(even * speed), 1), limit) for speed in speeds]
    while (left := total - sum(shares)) != 0:
        if left > 0:
            free = [r for r in range(n) if shares[r] < limit]
            shares[min(free, key=lambda r: (shares[r] + 1) * pace_s[r])] += 1
        else:
            held = [r for r in range(n) if shares[r] > 1]
            shares[max(held, key=lambda r: shares[r] * pace_s[r])] -= 1
    return tuple(shares)


def computing_s(shares: Sequence[float], pace_s: Sequence[float]) -> float:
    """Return how long the rank computes that is ready last, seconds."""
    return max(share * pace for share, pace in zip(shares, pace_s, strict=True))


def ideal_s(equal_s: Sequence[float]) -> float:
    """Return N / Σ(1/t): a step whose ranks are all ready at once, seconds.

    Args:
        equal_s: What each rank computes for an equal share, seconds.
    """
    return len(equal_s) / sum(1 / t for t in equal_s)


@dataclass(frozen=True)
class Balance:
    """The shares in force, and what they rest on; the same on every rank.

    Attributes:
        shares: Samples of each rank; they sum to the global batch.
        pace_s: Smoothed seconds per sample of each rank; empty: nothing was measured yet.
        most: See `divided`.
    """

    shares: tuple[int, ...]
    pace_s: tuple[float, ...] = ()
    most: float = MOST

    @classmethod
    def equal(cls, total: int, world_size: int, most: float = MOST) -> "Balance":
        """Return equal shares, as far as whole samples allow."""
        return cls(divided(total, [1.0] * world_size, most), most=most)

    def after(self, pace_s: Sequence[float]) -> "Balance":
        """Return the shares after a window in which a sample took each rank this many seconds."""
        smooth = tuple(
            LATEST * now + (1 - LATEST) * before
            for now, before in zip(pace_s, self.pace_s or pace_s, strict=True)
        )
        better = divided(sum(self.shares), smooth, self.most)
        kept_s, moved_s = computing_s(self.shares, smooth), computing_s(better, smooth)
        shares = better if moved_s < (1 - LEAST_GAIN) * kept_s else self.shares
        return replace(self, shares=shares, pace_s=smooth)


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


@dataclass(frozen=True)
class Groups:
    """Parameters that are gathered together, as elements of the gathered tensors.

    Attributes:
        inner: Of each group but the root, padding included.
        root: Of what is in no other group; gathered once a step.
    """

    inner: tuple[int, ...]
    root: int

    @classmethod
    def of(cls, sizes: Sequence[int] | None, num_parameters: int) -> "Groups":
        """Return the groups of a rank's fact ``group_elements``, the root last.

        None: not known. Then all parameters count as one group, without a root.
        """
        if not sizes:
            return cls((num_parameters,), 0)
        return cls(tuple(sizes[:-1]), sizes[-1])

    @property
    def total(self) -> int:
        """All elements."""
        return sum(self.inner) + self.root

    @property
    def largest(self) -> int:
        """Elements of the largest group; of the root where it is the only one."""
        return max(self.inner, default=self.root)


@dataclass(frozen=True)
class Sharding:
    """How a strategy divides the model's state over its ranks.

    Attributes:
        stage: Of ZeRO: 0 nothing is divided, 1 the optimizer's state, 3 parameters and gradients
            as well.
        shards: Ranks among which it is divided.
        replicas: Groups of so many ranks that do the same; ``shards · replicas`` is N.
        reshards: Whether gathered parameters are given up between forward and backward.
        param_bytes: Of an element as it is gathered.
        reduce_bytes: Of an element of a gradient as it is reduced.
        on_host: Whether shards, their gradients and the optimizer are in the host's memory.
    """

    stage: int
    shards: int
    replicas: int
    reshards: bool = True
    param_bytes: int = 4
    reduce_bytes: int = 4
    on_host: bool = False


def sharding_of(strategy: Execution, world_size: int) -> Sharding:
    """Return how a strategy divides the model's state at a size."""
    if isinstance(strategy, Fsdp):
        shards = strategy.shards(world_size)
        return Sharding(
            stage=3,
            shards=shards,
            replicas=world_size // shards,
            reshards=strategy.reshard_after_forward,
            param_bytes=DTYPE_BYTES[strategy.param_dtype],
            reduce_bytes=DTYPE_BYTES[strategy.reduce_dtype],
            on_host=strategy.cpu_offload,
        )
    if isinstance(strategy, Fsdp1):
        return Sharding(3, world_size, 1, strategy.reshard_after_forward)
    if wraps_with(strategy, "fsdp2"):
        return Sharding(3, world_size, 1)
    if isinstance(strategy, FromFramework):
        return Sharding(strategy.zero_stage, world_size, 1)
    return Sharding(1 if isinstance(strategy, Zero1) else 0, world_size, 1)


@dataclass(frozen=True)
class InFlight:
    """What a rank holds in addition to its shards and activations while it computes, bytes.

    Attributes:
        forward: When forward ends and activations are most.
        backward: While a group's gradients are reduced.
    """

    forward: int
    backward: int


def in_flight(sharding: Sharding, groups: Groups) -> InFlight:
    """Return the unsharded groups that are in flight.

    With resharding: in forward the root and one group; in backward the root, its gradients, and
    of the largest group its gradients, the buffer that these are reduced from and the buffer of
    the group that is gathered ahead. Without: all parameters, and in backward one group's
    gradients and buffer more, its parameters less.
    """
    if sharding.stage < 3:
        return InFlight(0, 0)
    param, reduce = sharding.param_bytes, sharding.reduce_bytes
    group = groups.largest if groups.inner else 0
    if not sharding.reshards:
        return InFlight(param * groups.total, param * groups.total + reduce * group)
    root = param * groups.root
    return InFlight(root + param * group, 2 * root + (2 * param + reduce) * group)


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank sends in one step, by what for; means over the ranks."""

    all_gather_bytes: float = 0.0
    reduce_scatter_bytes: float = 0.0
    all_reduce_bytes: float = 0.0
    broadcast_bytes: float = 0.0
    reduce_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """The sum."""
        return (
            self.all_gather_bytes
            + self.reduce_scatter_bytes
            + self.all_reduce_bytes
            + self.broadcast_bytes
            + self.reduce_bytes
        )


def predict_traffic(
    strategy: Strategy,
    num_parameters: int,
    world_size: int,
    group_elements: Sequence[int] | None = None,
) -> Traffic | None:
    """Predict the traffic of a step; None: there is no law for the strategy.

    DDP all-reduces the gradients, ``2(N−1)/N·G``; ZeRO stage 1 broadcasts the parameters besides,
    ``(N−1)/N·P``. Fully sharded: parameters are gathered in forward and again in backward and
    gradients scattered, ``3(N−1)/N·P``; without resharding, and for the root group, they are
    gathered once. Replicas all-reduce the gradients of their shards besides, ``2(R−1)/R·G/S``.
    Buffers that DDP broadcasts are not in it.

    Args:
        strategy: How the model is trained.
        num_parameters: Ψ, parameters of the model.
        world_size: N.
        group_elements: The rank's fact of that name: sizes of the groups, the root last; None:
            all parameters in one group.
    """
    gradients = FP32_BYTES * num_parameters
    if isinstance(strategy, Plain):
        return Traffic()
    if isinstance(strategy, Ddp):
        return Traffic(all_reduce_bytes=_all_reduce(world_size) * gradients)
    if isinstance(strategy, Zero1):
        return Traffic(
            all_reduce_bytes=_all_reduce(world_size) * gradients,
            broadcast_bytes=_gather(world_size) * gradients,
        )
    if isinstance(strategy, FromFramework) and not wraps_with(strategy, "fsdp2"):
        return _of_framework(strategy, gradients, world_size)
    if not isinstance(strategy, Fsdp | Fsdp1 | FromFramework):
        return None
    sharding = sharding_of(strategy, world_size)
    groups = Groups.of(group_elements, num_parameters)
    gathered = groups.total + (sum(groups.inner) if sharding.reshards else 0)
    reduced = sharding.reduce_bytes * groups.total
    return Traffic(
        all_gather_bytes=_gather(sharding.shards) * sharding.param_bytes * gathered,
        reduce_scatter_bytes=_gather(sharding.shards) * reduced,
        all_reduce_bytes=_all_reduce(sharding.replicas) * reduced / sharding.shards,
    )


def _of_framework(strategy: FromFramework, once: int, world_size: int) -> Traffic | None:
    sent = sent_in_a_step(strategy)
    if sent is None:
        return None
    return Traffic(
        all_gather_bytes=_gather(world_size) * sent.all_gather * once,
        reduce_scatter_bytes=_gather(world_size) * sent.reduce_scatter * once,
        all_reduce_bytes=_all_reduce(world_size) * sent.all_reduce * once,
        broadcast_bytes=_gather(world_size) * sent.broadcast * once,
        reduce_bytes=_gather(world_size) * sent.reduce * once,
    )


def _gather(ranks: int) -> float:
    """Return what a rank sends for each byte that is gathered, scattered or broadcast."""
    return (ranks - 1) / ranks


def _all_reduce(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks
