"""The least memory that any configuration needs, and how many ranks would be enough."""

from dataclasses import replace

from scalebench.costmodel.search.job import Job
from scalebench.costmodel.search.memory import fits, memory_bytes
from scalebench.costmodel.search.space import candidates, meshes
from scalebench.errors import UsageError

MOST_TIMES = 64


def ranks_that_fit(job: Job) -> int | None:
    """Return the first of 2N, 4N, … ranks on which a configuration fits; None: up to 64N none."""
    times = 2
    while times <= MOST_TIMES:
        more = replace(job, world_size=times * job.world_size)
        try:
            found = meshes(more)
        except UsageError:
            return None
        if any(fits(more, memory_bytes(more, some)).any() for some in candidates(more, found)):
            return more.world_size
        times *= 2
    return None
