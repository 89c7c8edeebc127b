"""Carry out a schedule over a process group's point-to-point messages.

All messages of a step are posted together, so that it does not matter who sends and who receives
first: gloo posts them one by one without blocking, NCCL as one group. Receives finish in the
order in which they were posted. With NCCL nothing here blocks the host: to wait is to make the
current stream wait.

Messages of a pair of ranks meet in order, so no other point-to-point message of the same group
without a tag may be in flight meanwhile.
"""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from scalebench.errors import UsageError
from scalebench.worker.collectives.plan import Plan, make_plan
from scalebench.worker.collectives.schedule import Receive, Schedule, Send, Step

SEGMENT_BYTES = 1 << 20
"""What is on the wire as one message. A smaller one overlaps better and costs more handling."""

SCRATCH_BYTES = 1 << 22
"""Memory for what has arrived and is not added yet; more where a single step needs it."""


def reduce_in_place(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None,
    schedule: Callable[..., Schedule],
    *,
    segment_bytes: int | None,
    accumulate: torch.dtype | None,
    **shape: Any,
) -> None:
    """Replace ``tensor`` by its sum over the ranks of ``group``.

    Args:
        tensor: Any shape, strides and length, the same shape and dtype on every rank; floating,
            complex or integer.
        group: Every rank of it has to call. None: the default group.
        schedule: Called as ``schedule(rank, world_size, length, segment, **shape)``; segment in
            elements.
        segment_bytes: Size of one message; None: pieces are never cut.
        accumulate: Travel and add in this dtype, and round to the tensor's once at the end. None:
            the tensor's own. For bfloat16 and float16 that means: each addition is done in
            float32 and rounded, so the error grows with the number of ranks; float32 costs twice
            the bytes and a copy.
        shape: Further, hashable arguments of ``schedule``.

    Raises:
        UsageError: This process is not in the group, or an argument cannot be used.
        RuntimeError: A peer is gone, or did not answer within the timeout of the group.
    """
    _refuse_unusable(tensor, segment_bytes, accumulate)
    rank, world_size = place_in(group)
    dtype = accumulate or tensor.dtype
    segment = max(1, segment_bytes // dtype.itemsize if segment_bytes else tensor.numel())
    plan = _cached_plan(
        schedule,
        (rank, world_size, tensor.numel(), segment),
        tuple(sorted(shape.items())),
        SCRATCH_BYTES // dtype.itemsize,
    )
    original = tensor.detach()
    working = original.to(dtype).contiguous()
    _Execution(plan, working.view(-1), group).run()
    if working is not original:
        original.copy_(working)


def place_in(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Return this process's rank in ``group`` and the number of its ranks.

    Raises:
        UsageError: It is not in the group.
    """
    rank = dist.get_rank(group)
    if rank < 0:
        raise UsageError("This process is no rank of the group given: call it on its ranks only.")
    return rank, dist.get_world_size(group)


def _refuse_unusable(
    tensor: torch.Tensor, segment_bytes: int | None, accumulate: torch.dtype | None
) -> None:
    if tensor.dtype == torch.bool:
        raise UsageError("A bool tensor has no sum; convert it to an integer dtype first.")
    if segment_bytes is not None and segment_bytes < 1:
        raise UsageError(f"segment_bytes is {segment_bytes}; give at least 1, or None for no cut.")
    if accumulate and not torch.can_cast(tensor.dtype, accumulate):
        raise UsageError(
            f"accumulate is {accumulate}, which cannot hold {tensor.dtype}; "
            "give a wider dtype of the same kind, such as torch.float32 for torch.bfloat16."
        )


@lru_cache(maxsize=64)
def _cached_plan(
    schedule: Callable[..., Schedule],
    place: tuple[int, int, int, int],
    shape: tuple[tuple[str, Any], ...],
    scratch: int,
) -> Plan:
    return make_plan(schedule(*place, **dict(shape)), scratch)


class _Execution:
    """One run of a plan over one flat tensor."""

    def __init__(self, plan: Plan, data: torch.Tensor, group: dist.ProcessGroup | None) -> None:
        self.plan = plan
        self.data = data
        self.group = group
        self.slots = data.new_empty(plan.num_slots, plan.slot_length).unbind()
        self.num_added = 0
        self.num_finished = 0
        self.receiving: deque[tuple[dist.Work, torch.Tensor, torch.Tensor | None]] = deque()
        self.sending: list[dist.Work] = []

    def run(self) -> None:
        """Post every step as soon as it may be; return when all is done."""
        for post in self.plan.posts:
            while self.num_finished < post.num_finished:
                self.finish_next()
            self.post(post.messages)
        while self.receiving:
            self.finish_next()
        for work in self.sending:
            work.wait()

    def post(self, step: Step) -> None:
        """Start all messages of a step."""
        operations = []
        arrivals: list[tuple[torch.Tensor, torch.Tensor | None] | None] = []
        for message in step:
            piece = self.data[message.piece.start : message.piece.stop]
            if isinstance(message, Send):
                operations.append(self.operation(dist.isend, piece, message))
                arrivals.append(None)
            else:
                slot = self.next_slot(message) if message.add else None
                target = piece if slot is None else slot
                operations.append(self.operation(dist.irecv, target, message))
                arrivals.append((piece, slot))
        works = dist.batch_isend_irecv(operations)
        if len(works) != len(operations):  # NCCL: one for the whole group
            works = works * len(operations)
        for work, arrival in zip(works, arrivals, strict=True):
            if arrival is None:
                self.sending.append(work)
            else:
                self.receiving.append((work, *arrival))

    def operation(
        self, kind: Callable[..., Any], buffer: torch.Tensor, message: Send | Receive
    ) -> dist.P2POp:
        """Return one message in the terms of torch."""
        return dist.P2POp(kind, buffer, group=self.group, group_peer=message.peer)

    def next_slot(self, message: Receive) -> torch.Tensor:
        """Return the scratch memory in which a message arrives that is to be added."""
        slot = self.slots[self.num_added % len(self.slots)]
        self.num_added += 1
        return slot[: message.piece.length]

    def finish_next(self) -> None:
        """Wait for the oldest receive; add it, if that is what it is for."""
        work, piece, slot = self.receiving.popleft()
        work.wait()
        if slot is not None:
            piece.add_(slot)
        self.num_finished += 1
