"""The job as one rank sees it: who it is, its device, and how ranks agree outside the steps."""

import faulthandler
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from scalebench.spec import Cell, Job
from scalebench.spec.workload import Shard
from scalebench.worker.process.token import Token

Combine = Callable[[torch.Tensor], torch.Tensor]
"""The values of the ranks that are there, shape [ranks, K] → what they agree on, shape [K]."""


def gather_json(item: Any, group: "dist.ProcessGroup") -> list[Any]:
    """Return what every rank of a group has given, by rank; tuples come back as lists.

    JSON, never pickled objects: torch's own ``all_gather_object`` unpickles what it receives, so
    who can connect to a rank could have it run anything.

    ``item`` is what JSON can hold; ``group`` is of CPU tensors, and all of its ranks call this.
    """
    data = torch.frombuffer(bytearray(json.dumps(item).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(lengths, torch.tensor([len(data)]), group)
    longest = max(int(length) for length in lengths)
    texts = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(texts, torch.cat((data, data.new_zeros(longest - len(data)))), group)
    return [
        json.loads(text[: int(length)].numpy().tobytes())
        for text, length in zip(texts, lengths, strict=True)
    ]


def dtype_of(name: str) -> torch.dtype:
    """Return the type that ``str`` makes a name of, such as ``torch.float32``."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of a tensor")
    return found


def connect(
    rank: int, world_size: int, num_hubs: int, limit_s: float
) -> "dict[int, dist.ProcessGroup]":
    """Connect every rank with each of the first ``num_hubs`` ranks; every rank takes part.

    In a group of all ranks the end of one breaks the operations of all; the end of a process breaks
    its own connections, and no others. A method that goes on without a rank talks over these.

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


class StarReduce:
    """This rank's way to agree with the others, where one of them may be lost.

    Each tells rank 0, which tells all. A rank that is lost takes no further part. Rank 0 says with
    every answer who is still there, so all know the same. Rank 0 itself cannot be lost.

    Attributes:
        alive: Ranks that took part in the last agreement, in order; the same on every rank.

    ``connections``: of rank 0 with every other rank, see `connect`; the other ranks have but one.
    """

    def __init__(
        self, rank: int, world_size: int, connections: "Mapping[int, dist.ProcessGroup]"
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.connections = dict(connections)
        self.alive = list(range(world_size))

    def agree(self, values: torch.Tensor, combine: Combine) -> torch.Tensor:
        """Return, on every rank that is there alike, what comes of the values of all of them.

        ``values``: shape [K], float64, as many on every rank. Rank 0 combines them.

        Raises:
            RuntimeError: Rank 0 is gone.
        """
        if self.rank:
            dist.send(values, 0, self.connections[0])
            message = values.new_empty(len(values) + self.world_size)
            dist.recv(message, 0, self.connections[0])
            self.alive = message[len(values) :].nonzero().flatten().tolist()
            return message[: len(values)]
        told = {0: values}
        for rank in self.alive[1:]:
            heard = torch.empty_like(values)
            with suppress(RuntimeError):  # it is gone
                dist.recv(heard, rank, self.connections[rank])
                told[rank] = heard
        self.alive = sorted(told)
        agreed = combine(torch.stack([told[rank] for rank in self.alive]))
        present = values.new_zeros(self.world_size)
        present[self.alive] = 1
        for rank in self.alive[1:]:
            with suppress(RuntimeError):  # it has just gone; the next agreement is without it
                dist.send(torch.cat((agreed, present)), rank, self.connections[rank])
        return agreed


J = TypeVar("J", bound=Job)
J_co = TypeVar("J_co", bound=Job, covariant=True)


@dataclass(frozen=True)
class TimeSlots:
    """That a launch takes turns with others.

    Attributes:
        token: What says whose turn it is, on rank 0 of each launch; None: on the other ranks.
        limit_s: A rank that is longer at one turn hangs: it writes its stacks to its log and ends.
            All the others wait for it, for as long as all of them together may take.
    """

    token: Token | None
    limit_s: float


@dataclass
class Slot:
    """A turn of a launch, as one of its ranks sees it.

    Attributes:
        ends_together: Whether this rank waits for the others at the end. One that has given up does
            not: they may wait for it elsewhere, until it exits.
    """

    ends_together: bool = True


@contextmanager
def ended_after(limit_s: float) -> Iterator[None]:
    """End this process, its stacks on standard error, if it is still in the block by then."""
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


_COMBINED: dict[dist.ReduceOp.RedOpType, Combine] = {
    dist.ReduceOp.MAX: lambda values: values.amax(0),
    dist.ReduceOp.SUM: lambda values: values.sum(0),
}


@dataclass(frozen=True)
class JobContext(Generic[J_co]):
    """One rank of a job.

    Attributes:
        control: A gloo group of all ranks for what scalebench itself has to say, so that it
            never mixes with the collectives of the training; None for a single process.
        time_slots: Other launches live at the same time, and one of them works at a time; None:
            there are no others.
        star: Takes the place of ``control`` where the job goes on without a rank that is lost.
    """

    job: J_co
    rank: int
    local_rank: int
    device: torch.device
    control: "dist.ProcessGroup | None" = None
    time_slots: TimeSlots | None = None
    star: StarReduce | None = None

    @property
    def alive(self) -> list[int]:
        """The ranks that take part, as all of them know since they last agreed on anything."""
        return list(range(self.job.world_size)) if self.star is None else self.star.alive

    @contextmanager
    def slot(self, last: bool = False) -> Iterator[Slot]:
        """Work inside the block while the other launches wait; without any, work at once.

        On an error the turn is not passed on: the launcher ends all of them.

        Args:
            last: This launch takes no further turn.

        Yields:
            What a rank sets whose ranks do not end the turn together.
        """
        slot = Slot()
        if self.time_slots is None:
            yield slot
            return
        token = self.time_slots.token
        if token is not None:
            token.wait()
        self.barrier()
        with ended_after(self.time_slots.limit_s):
            yield slot
            if slot.ends_together:
                self.barrier()
        if token is not None:
            token.pass_on(last)

    def agree_max(self, values: list[float]) -> list[float]:
        """Return, on every rank alike, the element-wise largest of all ranks' values.

        Args:
            values: The same number of values on every rank, none of them NaN.
        """
        return self._reduced(values, dist.ReduceOp.MAX)

    def agree_sum(self, values: list[float]) -> list[float]:
        """Return, on every rank alike, the element-wise sum of all ranks' values."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def _reduced(self, values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.control is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        if self.star is not None:
            return self.star.agree(tensor, _COMBINED[operation]).tolist()
        dist.all_reduce(tensor, operation, group=self.control)
        return tensor.tolist()

    def gather(self, item: Any) -> list[Any]:
        """Return, on every rank, what each of them gives, by rank; see `gather_json`."""
        return [item] if self.control is None else gather_json(item, self.control)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.star is not None:
            self.agree_sum([0.0])
        elif self.control is not None:
            dist.barrier(group=self.control)


class RankContext(JobContext[Cell]):
    """One rank of a cell."""

    @property
    def cell(self) -> Cell:
        """What the rank trains."""
        return self.job

    @property
    def shard(self) -> Shard:
        """The part of the data that this rank has to feed; the ranks of a pipeline share one."""
        return Shard(
            rank=self.cell.strategy.shard_of(self.rank, self.cell.world_size),
            world_size=self.cell.num_shards,
            batch_size=self.cell.rank_batch,
            seed=self.cell.seed,
            device=self.device,
        )


def rank_device(job: Job, local_rank: int) -> torch.device:
    """Return the device of a rank; with more ranks than GPUs, several share one."""
    if job.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def connected(
    cell: Cell,
    rank: int,
    store: Path | Store,
    local_rank: int | None = None,
    time_slots: TimeSlots | None = None,
) -> Iterator[RankContext]:
    """Join the ranks of a cell; yield this rank's view of it. See `joined` and `alone`."""
    joins = alone(cell) if cell.purpose == "shard" else joined(cell, rank, store, local_rank)
    with joins as context:
        yield RankContext(
            cell,
            rank,
            context.local_rank,
            context.device,
            context.control,
            time_slots,
            star_for(cell, rank),
        )


def star_for(cell: Cell, rank: int) -> StarReduce | None:
    """Return a star where a cell is trained that goes on without a rank; every rank takes part."""
    may_lose = cell.strategy.dispensable(cell.world_size)
    if cell.purpose != "measure" or not may_lose or cell.backend is None:
        return None
    return StarReduce(rank, cell.world_size, connect(rank, cell.world_size, 1, cell.limit_s))


@contextmanager
def alone(cell: Cell) -> Iterator[JobContext[Cell]]:
    """Be rank 0 of a cell whose other ranks are not there: torch's fake process group.

    Every operation ends at once and leaves in its buffers what was there.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    device = rank_device(cell, 0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=cell.world_size)
    yield JobContext(cell, 0, 0, device)
    dist.destroy_process_group()


@contextmanager
def joined(
    job: J, rank: int, store: Path | Store, local_rank: int | None = None
) -> Iterator[JobContext[J]]:
    """Join the ranks of a job; yield this rank's view of the job.

    Without a backend (the plain baseline) there is nothing to join. On an error the groups are
    left as they are: tearing them down would wait for ranks that may be gone.

    ``store``: the file of a store, or a store that is open already. ``local_rank``: number among
    the ranks on this machine; None: all are on this one.
    """
    local_rank = rank if local_rank is None else local_rank
    device = rank_device(job, local_rank)
    if job.backend is None:
        yield JobContext(job, rank, local_rank, device)
        return
    timeout = timedelta(seconds=job.collective_timeout_s)
    dist.init_process_group(
        job.backend,
        store=store if isinstance(store, Store) else FileStore(os.fspath(store), job.world_size),
        rank=rank,
        world_size=job.world_size,
        timeout=timeout,
        device_id=device if job.backend == "nccl" else None,
    )
    # Waiting here is waiting for scalebench's own work on another rank, such as the reference:
    # only the limit of the job ends it.
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=job.limit_s))
    yield JobContext(job, rank, local_rank, device, control)
    dist.destroy_process_group()
