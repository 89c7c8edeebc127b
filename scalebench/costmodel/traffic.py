"""Bytes that a rank sends in one step, by the strategy's law, ring-equivalent.

The same measure as a row's ``wire_bytes``, which counts the operations in the trace: what a ring
would send for what was asked for. Sources: Rajbhandari et al. 2020, §7 (ZeRO's communication);
Thakur et al. 2005 (rings).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.costmodel.frameworks import sent_in_a_step, wraps_with
from scalebench.costmodel.sharding import Groups, sharding_of
from scalebench.spec import Ddp, FromFramework, Fsdp, Fsdp1, Plain, Strategy, Zero1

FP32_BYTES = 4


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
