"""Connections of two ranks each: the end of a process breaks its own ones, and no others.

In a group of all ranks the end of one breaks the operations of all. A method that goes on without
a rank talks over these.
"""

from datetime import timedelta

import torch.distributed as dist


def connect(
    rank: int, world_size: int, num_hubs: int, limit_s: float
) -> "dict[int, dist.ProcessGroup]":
    """Connect every rank with each of the first ``num_hubs`` ranks; every rank takes part.

    Args:
        rank: Of this process.
        world_size: N.
        num_hubs: Ranks that are connected with all others.
        limit_s: After how long an operation fails that nobody answers.

    Returns:
        Other rank → the group of it and this one, over gloo.
    """
    limit = timedelta(seconds=limit_s)
    found = {}
    for hub in range(num_hubs):
        for other in range(hub + 1, world_size):
            group = dist.new_group([hub, other], timeout=limit, backend="gloo")
            if rank in (hub, other):
                found[hub + other - rank] = group
    return found
