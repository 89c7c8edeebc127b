"""The backend's own operations, each with inputs whose result is known beforehand.

Inputs are small whole numbers, so that every dtype holds every result exactly and one wrong
element shows, whatever the order in which a backend adds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec import Job
from scalebench.spec.base import BACKEND
from scalebench.spec.probes import Transfer
from scalebench.worker.collectives import ALL_REDUCES
from scalebench.worker.process.context import JobContext

VALUES = 5
"""Inputs are 0 … 4: at 25 ranks their sum still fits into an int8."""

UNTOUCHED = -1

MOST_KEPT = 8
"""Inputs and sums that are kept between one building of an operation and the next."""


@dataclass(frozen=True)
class Operation:
    """One operation on its own buffers, to be run once.

    Attributes:
        run: Carries it out on this rank; returns when it is over here.
        output: Where this rank finds the result.
        expected: What it has to be; None: this rank gets none.
        num_bytes: The full size of the operation.
        begin: Asks for it, and returns what waits for its end: so several messages between two
            ranks are on the way at once. None: backends do one such operation after the other.
    """

    run: Callable[[], None]
    output: torch.Tensor
    expected: torch.Tensor | None
    num_bytes: int
    begin: Callable[[], Callable[[], None]] | None = None

    def num_wrong(self) -> int:
        """Return how many elements differ from what they have to be."""
        if self.expected is None:
            return 0
        return int((self.output != self.expected).sum().item())


@dataclass(frozen=True)
class _Buffers:
    """What all builders need: this rank's place, and the shape of its part.

    Attributes:
        whole: Elements of the full size; a multiple of the number of ranks.
        hosts: On which host each rank is.
        group: The ranks that take part, by whose numbers in it the others count; None: all.
    """

    rank: int
    world_size: int
    whole: int
    dtype: torch.dtype
    device: torch.device
    hosts: tuple[int, ...]
    group: dist.ProcessGroup | None = None

    @property
    def part(self) -> int:
        """Elements of one rank's part."""
        return self.whole // self.world_size

    def of(self, rank: int) -> torch.Tensor:
        """Return a rank's input, as long as the full size; not to be written to."""
        return _input(self, rank)

    def slot(self, of: torch.Tensor, rank: int) -> torch.Tensor:
        """Return a rank's part of something of the full size."""
        return of[rank * self.part : (rank + 1) * self.part]

    def total(self) -> torch.Tensor:
        """Return the sum of all ranks' inputs; not to be written to."""
        return _total(self)

    def blank(self, length: int) -> torch.Tensor:
        """Return a buffer with nothing of a result in it."""
        return torch.full((length,), UNTOUCHED, dtype=self.dtype, device=self.device)


@lru_cache(maxsize=MOST_KEPT)
def _input(buffers: _Buffers, rank: int) -> torch.Tensor:
    index = torch.arange(buffers.whole, device=buffers.device)
    return ((index * index + index // 7 + 3 * rank) % VALUES).to(buffers.dtype)


@lru_cache(maxsize=MOST_KEPT)
def _total(buffers: _Buffers) -> torch.Tensor:
    return sum((buffers.of(rank) for rank in range(1, buffers.world_size)), buffers.of(0))


def build(
    transfer: Transfer, context: JobContext[Job], group: dist.ProcessGroup | None = None
) -> Operation:
    """Return one operation, its buffers filled.

    Args:
        transfer: Of a group one of `IN_GROUPS`, by the backend.
        context: This rank.
        group: The ranks that take part, this one among them; None: all.
    """
    dtype = getattr(torch, transfer.dtype)
    size = context.job.world_size if group is None else group.size()
    rank = context.rank if group is None else group.rank()
    per_rank = max(1, transfer.size_bytes // dtype.itemsize // size)
    hosts = _hosts(context.job)
    buffers = _Buffers(rank, size, per_rank * size, dtype, context.device, hosts, group)
    num_bytes = 0 if transfer.operation == "barrier" else buffers.whole * dtype.itemsize
    if transfer.operation == "send_recv_ring":
        return _send_recv_ring(buffers, num_bytes)
    run, output, expected = _BUILDERS[transfer.operation](buffers, transfer)
    return Operation(run, output, expected, num_bytes)


def _hosts(job: Job) -> tuple[int, ...]:
    """Return the host of every rank; without virtual hosts they are all on this one."""
    virtual = job.virtual_hosts
    return tuple(virtual.host_of(rank) if virtual else 0 for rank in range(job.world_size))


_Built = tuple[Callable[[], None], torch.Tensor, torch.Tensor | None]


def _all_reduce(b: _Buffers, transfer: Transfer) -> _Built:
    tensor = b.of(b.rank).clone()
    if transfer.algorithm == BACKEND:
        return lambda: _done(dist.all_reduce(tensor, group=b.group)), tensor, b.total()
    own = ALL_REDUCES[transfer.algorithm]
    options = _options(transfer.algorithm, b)
    return lambda: own(tensor, **options), tensor, b.total()


def _options(algorithm: str, b: _Buffers) -> dict[str, Any]:
    """Return what an own all-reduce is called with, so that its law is the one of its name."""
    if algorithm == "hierarchical":
        return {"hosts": b.hosts}
    return {"shape": "binomial", "segment_bytes": None} if algorithm == "tree" else {}


def _all_gather(b: _Buffers, transfer: Transfer) -> _Built:
    """On a GPU into one tensor, as training does: with a list, torch copies every part as well."""
    mine = b.slot(b.of(b.rank), b.rank).clone()
    output = b.blank(b.whole)
    parts = [b.slot(output, rank) for rank in range(b.world_size)]
    if transfer.in_place:
        mine = parts[b.rank].copy_(mine)
    expected = torch.cat([b.slot(b.of(rank), rank) for rank in range(b.world_size)])
    if b.device.type == "cuda":
        whole = dist.all_gather_into_tensor
        return lambda: _done(whole(output, mine, group=b.group)), output, expected
    return lambda: _done(dist.all_gather(parts, mine, group=b.group)), output, expected


def _reduce_scatter(b: _Buffers, transfer: Transfer) -> _Built:
    mine, output = b.of(b.rank), b.blank(b.part)
    if transfer.in_place:
        mine = mine.clone()
        output = b.slot(mine, b.rank)
    expected = b.slot(b.total(), b.rank)
    scatter = dist.reduce_scatter_tensor
    return lambda: _done(scatter(output, mine, group=b.group)), output, expected


def _all_to_all(b: _Buffers, _: Transfer) -> _Built:
    mine, output = b.of(b.rank), b.blank(b.whole)
    expected = torch.cat([b.slot(b.of(rank), b.rank) for rank in range(b.world_size)])
    exchange = dist.all_to_all_single
    return lambda: _done(exchange(output, mine, group=b.group)), output, expected


def _all_to_all_uneven(b: _Buffers, _: Transfer) -> _Built:
    """Rank j gets a share that grows with j: from everybody, of everybody's own input."""
    n = b.world_size
    cuts = [b.whole * j * (j + 1) // (n * (n + 1)) for j in range(n + 1)]
    lengths = [end - start for start, end in pairwise(cuts)]
    mine, own = b.of(b.rank), slice(cuts[b.rank], cuts[b.rank + 1])
    output = b.blank(lengths[b.rank] * b.world_size)
    expected = torch.cat([b.of(rank)[own] for rank in range(b.world_size)])
    received = [lengths[b.rank]] * b.world_size
    return lambda: _done(dist.all_to_all_single(output, mine, received, lengths)), output, expected


def _send_recv_ring(b: _Buffers, num_bytes: int) -> Operation:
    """Everybody to the next rank, and from the one before, at once: nccl-tests' sendrecv."""
    before, after = (b.rank - 1) % b.world_size, (b.rank + 1) % b.world_size
    mine, output = b.of(b.rank), b.blank(b.whole)
    sender, receiver = _in_job(b, before), _in_job(b, after)

    def begin() -> Callable[[], None]:
        both = [
            dist.P2POp(dist.isend, mine, receiver, b.group),
            dist.P2POp(dist.irecv, output, sender, b.group),
        ]
        requests = dist.batch_isend_irecv(both)
        return lambda: _wait_for(requests)

    return Operation(lambda: begin()(), output, b.of(before), num_bytes, begin)


def _wait_for(requests: Sequence[dist.Work]) -> None:
    for request in requests:
        request.wait()


def _in_job(b: _Buffers, rank: int) -> int:
    """Return the number in the job of a rank of the group."""
    return rank if b.group is None else dist.get_global_rank(b.group, rank)


def _barrier(b: _Buffers, _: Transfer) -> _Built:
    """It carries nothing, so there is nothing that could be wrong with it but that it ends."""
    return lambda: _done(dist.barrier()), b.blank(0), None


def _broadcast(b: _Buffers, _: Transfer) -> _Built:
    tensor = b.of(0).clone() if b.rank == 0 else b.blank(b.whole)
    return lambda: _done(dist.broadcast(tensor, src=0)), tensor, b.of(0)


def _reduce(b: _Buffers, _: Transfer) -> _Built:
    tensor = b.of(b.rank).clone()
    expected = b.total() if b.rank == 0 else None
    return lambda: _done(dist.reduce(tensor, dst=0)), tensor, expected


def _send_recv(b: _Buffers, transfer: Transfer) -> _Built:
    sender, receiver = transfer.peers
    if b.rank == sender:
        tensor = b.of(sender)
        return lambda: dist.send(tensor, dst=receiver), tensor, None
    output = b.blank(b.whole)
    if b.rank == receiver:
        return lambda: _done(dist.recv(output, src=sender)), output, b.of(sender)
    return lambda: None, output, None


def _done(_: object) -> None:
    """Drop what an operation returns: it is over."""


_BUILDERS: dict[str, Callable[[_Buffers, Transfer], _Built]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_uneven": _all_to_all_uneven,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "send_recv": _send_recv,
    "barrier": _barrier,
}
