"""The machines of a world, from what its processes tell of themselves."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from scalebench.world import Node, World, WorldLauncher


class Hello(BaseModel):
    """What a process tells first.

    Attributes:
        host: Name of its machine; processes with the same one are taken to share it.
        pid: Its number there.
        affinity: Processors that it may run on.
        cgroup_cpus: Limit of its cgroup in cores; None: none.
        torch: Version.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    pid: int
    affinity: tuple[int, ...]
    cgroup_cpus: float | None = None
    torch: str


def world_of(
    launcher: WorldLauncher | Literal["slurm"],
    hellos: Mapping[int, Hello],
    surveys: Mapping[int, Mapping[str, Any]] | None = None,
) -> World:
    """Return the world that processes make up.

    A machine's cores, and GPUs, are those that any of its processes may use: launchers that bind
    ranks give each some of them.

    Args:
        launcher: Who started it.
        hellos: Process → what it tells of itself.
        surveys: Process → what torch says there; None: nobody has asked, and GPUs do not matter.
    """
    nodes: dict[str, list[int]] = {}
    for rank in sorted(hellos):
        nodes.setdefault(hellos[rank].host, []).append(rank)
    return World(
        launcher=launcher,
        nodes=tuple(
            Node(
                host=host,
                ranks=tuple(ranks),
                num_cores=_num_cores([hellos[rank] for rank in ranks]),
                num_gpus=_num_gpus([surveys[rank] for rank in ranks]) if surveys else 0,
            )
            for host, ranks in nodes.items()
        ),
    )


def _num_gpus(surveys: list[Mapping[str, Any]]) -> int:
    return len({device["uuid"] for survey in surveys for device in survey["devices"]})


def _num_cores(hellos: list[Hello]) -> int:
    allowed = len({processor for hello in hellos for processor in hello.affinity})
    quotas = [hello.cgroup_cpus for hello in hellos if hello.cgroup_cpus]
    return max(1, min([allowed, *(int(quota) for quota in quotas)]))
