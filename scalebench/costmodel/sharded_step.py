"""The operations of a sharded step, where the ranks wait for each of them: FSDP on CPU.

At N=1 a sharded strategy sends nothing, so its traces show no moments to replay. On CPU none are
needed: FSDP waits for every gather before it computes and for every reduction before it goes on,
and nothing is hidden. On a GPU gathers run ahead of the computation; when, is not known from N=1.
"""

from collections.abc import Sequence
from dataclasses import replace

from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.sharding import Groups, Sharding
from scalebench.costmodel.step import StepShape


def with_sharding(shape: StepShape, sharding: Sharding, groups: Groups) -> StepShape:
    """Return the step with the operations of a sharded strategy in it, each waited for.

    Every group of parameters is gathered in forward, the inner ones again in backward where they
    are resharded; its gradients are reduce-scattered, and all-reduced over the replicas. Source:
    Zhao et al. 2023 (PyTorch FSDP).

    Args:
        shape: Of the strategy at N=1, for the batch in question.
        sharding: How the strategy divides at N.
        groups: Parameters that are gathered together.
    """
    once = sharding.param_bytes
    sizes = [*groups.inner, *([groups.root] if groups.root else [])]
    forward = [("all_gather", once * n, sharding.shards) for n in sizes]
    again = [("all_gather", once * n, sharding.shards) for n in groups.inner if sharding.reshards]
    scattered = [("reduce_scatter", sharding.reduce_bytes * n, sharding.shards) for n in sizes]
    shard_bytes = [sharding.reduce_bytes * n // sharding.shards for n in sizes]
    reduced = [("all_reduce", n, sharding.replicas) for n in shard_bytes if sharding.replicas > 1]
    requests = [
        *_waited_for(forward, 0.0),
        *_waited_for([*again, *scattered, *reduced], shape.batch_s),
    ]
    return replace(shape, requests=tuple(requests))


def _waited_for(operations: Sequence[tuple[str, int, int]], moment_s: float) -> list[CommRequest]:
    return [
        CommRequest(op, size, moment_s, moment_s, num_ranks)
        for op, size, num_ranks in operations
        if num_ranks > 1
    ]
