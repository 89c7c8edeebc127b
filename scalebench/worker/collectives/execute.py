"""What a rank sends and receives as data, and how that is carried out over a process group.

What a rank sends and receives, as data: it can be printed and checked without a process.

A schedule is a list of steps, each a tuple of messages that may be in flight at once. Ranks write
into the one vector that they all hold; a message is a piece of it. Two rules make a set of
schedules, one per rank, free of deadlock whatever is buffered, and every algorithm here keeps
them:

- Were each rank to finish a step before it begins the next, all would still come to the end.
- Two ranks name the messages between them in the same order on both sides.

A third makes it safe to have many steps in flight: what overwrites a piece that was sent depends
on that piece, so it cannot arrive before the piece has left.

Every element is summed on one rank and copied from there: the result is the same on all ranks, bit
for bit. A ring sums in its own order; a server, and the root of a gather, in that of the ranks.

Within a step receives stand first where it is all the same: a peer that knows that it may send
does not have to ask.

Carry out a schedule over a process group's point-to-point messages.

All messages of a step are posted before any is waited for, so that it does not matter who sends and
who receives first. Receives finish in the order in which they were posted. With NCCL nothing here
blocks the host: to wait is to make the current stream wait. (That way is tested with a stand-in for
NCCL's grouping; it has not run on GPUs yet.)

Messages of a pair of ranks meet in order, so no other point-to-point message of the same group
without a tag may be in flight meanwhile.

A step waits for exactly those receives whose result it sends on. Everything else may still be in
flight, so the sum of one segment is formed while the next is on the wire. How much may be on the
way to a rank is limited all the same: what has arrived should still be in the cache when its turn
comes. What is to be added arrives in a slot of scratch memory first; slots are used in turn.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from scalebench.errors import UsageError


class Piece(NamedTuple):
    """Elements ``start`` to ``stop`` (exclusive) of the vector."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def overlaps(self, other: "Piece") -> bool:
        """Return whether the two have an element in common."""
        return self.start < other.stop and other.start < self.stop


@dataclass(frozen=True, slots=True)
class Send:
    """Hand ``piece`` to ``peer``, a rank of the group."""

    peer: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Receive:
    """Take ``piece`` from ``peer``: added to what is here, or in place of it."""

    peer: int
    piece: Piece
    add: bool


Message = Send | Receive
Step = tuple[Message, ...]
Schedule = Iterable[Step]


def bounds(whole: Piece, num_parts: int, part: int) -> Piece:
    """Return one of ``num_parts`` parts of ``whole``, which cover it in order without a gap.

    Lengths differ by one at most, the longer parts come first; parts are empty where there are
    more of them than elements.
    """
    each, rest = divmod(whole.length, num_parts)
    start = whole.start + part * each + min(part, rest)
    return Piece(start, start + each + (part < rest))


def num_segments(longest: int, segment: int) -> int:
    """Return in how many segments of at most ``segment`` elements to cut a piece, at least one.

    Args:
        longest: Length of the longest piece that is under way at that time on any rank: all have
            to cut alike, so that their steps match.
        segment: Elements, at least 1.
    """
    return max(1, -(-longest // segment))


def side_by_side(*schedules: Schedule) -> Iterator[Step]:
    """Run schedules at once: step by step, the messages of the first go first."""
    for steps in zip_longest(*schedules, fillvalue=()):
        yield tuple(message for step in steps for message in step)


@dataclass(frozen=True)
class Post:
    """One step, ready to be posted.

    Attributes:
        num_finished: How many receives have to be finished first, in the order of posting.
        messages: None of them empty.
    """

    num_finished: int
    messages: Step


@dataclass(frozen=True)
class Plan:
    """All steps of one rank.

    Attributes:
        num_slots: Slots of scratch memory: as many as there are receives to be added in flight at
            once.
        slot_length: Elements of a slot.
    """

    posts: tuple[Post, ...]
    num_slots: int
    slot_length: int


def make_plan(schedule: Schedule, window: int) -> Plan:
    """Work out what each step has to wait for.

    Empty messages of ``schedule`` are left out: both sides know that they are empty. ``window``:
    how many elements may be on their way to this rank. A step that takes in more is in flight
    alone.
    """
    filled = (tuple(m for m in step if m.piece.length) for step in schedule)
    received: list[Receive] = []
    posts: list[Post] = []
    finished = under_way = num_slots = 0
    for step in filled:
        if not step:
            continue
        new = [message for message in step if isinstance(message, Receive)]
        under_way += sum(message.piece.length for message in new)
        needed = _latest_needed(step, received, finished)
        while finished < needed or (finished < len(received) and under_way > window):
            under_way -= received[finished].piece.length
            finished += 1
        received += new
        num_slots = max(num_slots, sum(message.add for message in received[finished:]))
        posts.append(Post(finished, step))
    slot_length = max((m.piece.length for m in received if m.add), default=0)
    return Plan(tuple(posts), num_slots, slot_length)


def _latest_needed(step: Step, received: list[Receive], finished: int) -> int:
    """Return how many receives have to be finished before ``step``, at least ``finished``."""
    for number in range(len(received) - 1, finished - 1, -1):
        piece = received[number].piece
        if any(isinstance(m, Send) and m.piece.overlaps(piece) for m in step):
            return number + 1
    return finished


SEGMENT_BYTES = 1 << 20
"""What is on the wire as one message. A smaller one overlaps better and costs more handling."""

WINDOW_BYTES = 1 << 21
"""What may be on its way to a rank at once: one segment is added while the next arrives.

With twice as much the ring took a third more processor time for 25 MB on two ranks.
"""


def reduce_in_place(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    schedule: Callable[..., Schedule],
    segment_bytes: int | None = SEGMENT_BYTES,
    accumulate: torch.dtype | None = None,
    **shape: Any,
) -> None:
    """Replace ``tensor`` by its sum over the ranks of ``group``.

    Args:
        tensor: Any shape, strides and length, the same shape and dtype on every rank; floating or
            integer. Integers wrap around.
        group: Every rank of it has to call. None: the default group.
        schedule: Called as ``schedule(rank, world_size, length, segment, **shape)``; segment in
            elements.
        segment_bytes: Size of one message; None: pieces are never cut.
        accumulate: Travel and add in this dtype, and round to the tensor's once at the end. None:
            the tensor's own. For bfloat16 and float16 that means: each addition is done in
            float32 and rounded, so the error grows with the number of ranks; float32 costs twice
            the bytes and a copy.
        shape: Further arguments of ``schedule``, hashable or lists.

    Raises:
        UsageError: This process is not in the group, or an argument cannot be used.
        RuntimeError: A peer is gone, or did not answer within the timeout of the group.
    """
    _refuse_unusable(tensor, segment_bytes, accumulate)
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise UsageError(
            "This process is not a rank of the given group: call this on its ranks only."
        )
    dtype = accumulate or tensor.dtype
    segment = max(1, segment_bytes // dtype.itemsize if segment_bytes else tensor.numel())
    plan = _cached_plan(
        schedule,
        (rank, world_size, tensor.numel(), segment),
        tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(shape.items())),
        WINDOW_BYTES // dtype.itemsize,
    )
    original = tensor.detach()
    working = original.to(dtype).contiguous()
    process_group = group or dist.group.WORLD
    assert process_group is not None  # torch has refused by now
    _Execution(plan, working.view(-1), process_group).run()
    if working is not original:
        original.copy_(working)


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
    window: int,
) -> Plan:
    return make_plan(schedule(*place, **dict(shape)), window)


def start_one_by_one(
    operations: list[tuple[Message, torch.Tensor]], group: dist.ProcessGroup
) -> list[dist.Work]:
    """Start each message by itself, as gloo does anyway; none of these calls blocks.

    Straight to the group: going through ``batch_isend_irecv`` took 13 to 17 % more processor time
    for 25 MB on 4 and 2 ranks.
    """
    return [
        group.send([buffer], message.peer, 0)
        if isinstance(message, Send)
        else group.recv([buffer], message.peer, 0)
        for message, buffer in operations
    ]


def start_as_group(
    operations: list[tuple[Message, torch.Tensor]], group: dist.ProcessGroup
) -> list[dist.Work]:
    """Start all messages at once; with NCCL one by one they would wait for one another."""
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(
                dist.isend if isinstance(message, Send) else dist.irecv,
                buffer,
                group=group,
                group_peer=message.peer,
            )
            for message, buffer in operations
        ]
    )
    return works if len(works) == len(operations) else works * len(operations)


class _Execution:
    """One run of a plan over one flat tensor."""

    def __init__(self, plan: Plan, data: torch.Tensor, group: dist.ProcessGroup) -> None:
        self.plan = plan
        self.data = data
        self.group = group
        self.start = start_one_by_one if data.device.type == "cpu" else start_as_group
        self.slots = data.new_empty(plan.num_slots, plan.slot_length).unbind()
        self.num_added = 0
        self.num_finished = 0
        self.receiving: deque[tuple[dist.Work, Receive, torch.Tensor]] = deque()
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
        operations = [(message, self.buffer(message)) for message in step]
        works = self.start(operations, self.group)
        for work, (message, buffer) in zip(works, operations, strict=True):
            if isinstance(message, Send):
                self.sending.append(work)
            else:
                self.receiving.append((work, message, buffer))

    def buffer(self, message: Message) -> torch.Tensor:
        """Return the memory from which a message goes, or in which it arrives."""
        if isinstance(message, Send) or not message.add:
            return self.piece(message)
        slot = self.slots[self.num_added % len(self.slots)]
        self.num_added += 1
        return slot[: message.piece.length]

    def piece(self, message: Message) -> torch.Tensor:
        """Return the part of the vector that a message is about."""
        return self.data[message.piece.start : message.piece.stop]

    def finish_next(self) -> None:
        """Wait for the oldest receive; add it, if that is what it is for."""
        work, message, buffer = self.receiving.popleft()
        work.wait()
        if message.add:
            self.piece(message).add_(buffer)
        self.num_finished += 1
