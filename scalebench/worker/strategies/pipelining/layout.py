"""Who is where: N ranks as pipelines side by side, and the stages of each rank.

The ranks form a mesh of two axes, data × pipeline; the ranks of a pipeline are neighbours, unless a
larger mesh says which ranks are in line.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from scalebench.spec import Pipeline
from scalebench.worker.process.context import RankContext, dtype_of

V_SHAPED = ("zbv", "dualpipev")
"""Schedules in which the second chunks lie in the opposite order: the first rank has the first
and the last stage."""


class Layout:
    """The mesh, as one rank sees it.

    Attributes:
        num_ranks: Ranks of a pipeline, p.
        first_rank: The first rank of this rank's pipeline.
        rank_of: Stage → rank of this pipeline that holds it, counted over all ranks.
        own: The stages of this rank, in the order in which a microbatch comes to them.
        lines: The ranks of each pipeline, in order; ``line``: of this rank's.
        across: Process group of the ranks that hold the same stages; None: there is one pipeline,
            or the lines are part of a larger mesh, which averages along its own dimensions.
        groups: Name and number of ranks of that group.
    """

    def __init__(
        self, strategy: Pipeline, context: RankContext, lines: Sequence[Sequence[int]] | None = None
    ) -> None:
        world_size, rank = context.cell.world_size, context.rank
        self.lines = lines or side_by_side(world_size, strategy.pipelines(world_size))
        self.num_pipelines = len(self.lines)
        self.line = next(line for line in self.lines if rank in line)
        self.num_ranks = len(self.line)
        self.first_rank = self.line[0]
        self.num_stages = self.num_ranks * strategy.chunks
        self.rank_of = [
            self.line[place]
            for place in places(self.num_ranks, strategy.chunks, strategy.schedule in V_SHAPED)
        ]
        self.own = [stage for stage, holder in enumerate(self.rank_of) if holder == rank]
        self.has_first = 0 in self.own
        self.timeout = timedelta(seconds=context.cell.collective_timeout_s)
        self.pipeline: dist.ProcessGroup | None = dist.group.WORLD
        self.across: dist.ProcessGroup | None = None
        self.groups: dict[str, int] = {}
        if self.num_pipelines > 1:
            self.pipeline = self.new_group(range(self.num_ranks))
        if self.num_pipelines > 1 and lines is None:
            for place in range(self.num_ranks):
                group = dist.new_group([line[place] for line in self.lines], timeout=self.timeout)
                if self.line[place] == rank:
                    self.across = group
                    self.groups = {f"pipelines, place {place}": self.num_pipelines}

    def new_group(self, members: Iterable[int]) -> dist.ProcessGroup | None:
        """Make a process group of some places of each pipeline; None: this rank is in none.

        All ranks have to call it alike.
        """
        members, mine = sorted(members), None
        if len(members) == dist.get_world_size():
            return dist.group.WORLD
        for line in self.lines:
            ranks = [line[place] for place in members]
            group = dist.new_group(ranks, timeout=self.timeout)
            if dist.get_rank() in ranks:
                mine = group
        return mine

    def places_of(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Return the places in the pipeline of the ranks that hold some stages."""
        return tuple(sorted({self.line.index(self.rank_of[stage]) for stage in stages}))

    def neighbour(self, stage: int, way: int) -> int | None:
        """Return the rank of the stage before (-1) or after (1); None: it is this one, or none."""
        there = stage + way
        if not 0 <= there < self.num_stages or there in self.own:
            return None
        return self.rank_of[there]

    def average_over_pipelines(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average the gradients over the pipelines."""
        if self.across is None:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        works = [dist.all_reduce(g, group=self.across, async_op=True) for g in gradients]
        for gradient, work in zip(gradients, works, strict=True):
            work.wait()
            gradient /= self.num_pipelines


HEADER_BYTES = 256
"""What is sent before a tensor: its type and shape as JSON, padded with blanks."""


def send(tensor: torch.Tensor, rank: int) -> None:
    """Send a tensor of any shape to a rank that calls `receive`."""
    about = json.dumps([str(tensor.dtype), *tensor.shape])
    header = bytearray(about.ljust(HEADER_BYTES).encode())
    dist.send(torch.frombuffer(header, dtype=torch.uint8).to(tensor.device), rank)
    dist.send(tensor.contiguous(), rank)


def receive(rank: int, device: torch.device) -> torch.Tensor:
    """Return the tensor that a rank sends with `send`, on a device."""
    header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=device)
    dist.recv(header, rank)
    dtype, *shape = json.loads(bytes(header.tolist()))
    tensor = torch.empty(shape, dtype=dtype_of(dtype), device=device)
    dist.recv(tensor, rank)
    return tensor


def side_by_side(world_size: int, pipelines: int) -> list[list[int]]:
    """Return the ranks of each pipeline, neighbours on the machine."""
    each = world_size // pipelines
    return [[*range(first, first + each)] for first in range(0, pipelines * each, each)]


def places(num_ranks: int, chunks: int, v_shaped: bool) -> list[int]:
    """Return the place in its pipeline of each stage."""
    forth = list(range(num_ranks))
    return [
        place
        for chunk in range(chunks)
        for place in (forth[::-1] if v_shaped and chunk % 2 else forth)
    ]
