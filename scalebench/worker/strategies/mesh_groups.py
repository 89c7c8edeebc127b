"""Who is where on a mesh: its dimensions over the ranks, and the groups along several of them."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scalebench.spec import AXES, Mesh
from scalebench.spec.strategies.mesh import Axis
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import on_axis
from scalebench.worker.strategies.tensor import sum_together


def ranks_on(strategy: Mesh, world_size: int) -> torch.Tensor:
    """Return the ranks by their places, one dimension for each of `AXES`.

    The dimensions stand in the order of `AXES`, whatever their order on the machine is.
    """
    sizes = strategy.axis_sizes(world_size)
    on_machine = torch.arange(world_size).view([sizes[axis] for axis in strategy.order])
    return on_machine.permute([strategy.order.index(axis) for axis in AXES])


def device_mesh(strategy: Mesh, context: RankContext) -> DeviceMesh:
    """Return the mesh; dimensions of a single rank are left out, but for what N=1 has to show."""
    world_size = context.cell.world_size
    sizes = strategy.axis_sizes(world_size)
    shown = ("tensor", "context") if strategy.context > 1 else ("tensor",)
    names = tuple(axis for axis in AXES if sizes[axis] > 1 or axis in shown)
    places = ranks_on(strategy, world_size).reshape([sizes[axis] for axis in names])
    return DeviceMesh(context.device.type, places, mesh_dim_names=names)


@dataclass(frozen=True)
class Replicas:
    """The ranks that keep the same, and have other samples or tokens.

    Attributes:
        axis: Along which they are: ``data``, ``context``, or ``data_context`` for both at once.
        ranks: Of the group; of one there is no group.
        group: None: there is one rank, or all.
    """

    axis: str
    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def average(self, gradient: torch.Tensor) -> None:
        """Average one gradient, in place."""
        self.average_together([gradient])

    def average_together(self, gradients: list[torch.Tensor]) -> None:
        """Average gradients, in place, in one all-reduce."""
        if self.size == 1:
            return
        with on_axis(self.axis):
            sum_together(gradients, self.group)
        for gradient in gradients:
            gradient /= self.size


def replicas_of(strategy: Mesh, mesh: DeviceMesh, context: RankContext) -> Replicas:
    """Return the replicas of this rank; all ranks have to call it alike."""
    sizes = strategy.axis_sizes(context.cell.world_size)
    axes: tuple[Axis, ...] = ("data", "context")
    names = [axis for axis in axes if sizes[axis] > 1]
    if not names:
        return Replicas("data", (context.rank,))
    if len(names) == 1:
        group = mesh.get_group(names[0])
        return Replicas(names[0], tuple(dist.get_process_group_ranks(group)), group)
    own: Replicas | None = None
    for line in strategy.groups_along(context.cell.world_size, *names):
        group = dist.new_group(list(line))
        if context.rank in line:
            own = Replicas("data_context", line, group)
    assert own is not None
    return own
