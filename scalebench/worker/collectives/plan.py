"""When a step may start: the pipelining of a schedule, worked out before anything is sent.

A step waits for exactly those receives whose result it sends on. Everything else may still be in
flight, so the sum of one segment is formed while the next is on the wire. How much may be on the
way to a rank is limited all the same: what has arrived should still be in the cache when its turn
comes. What is to be added arrives in a slot of scratch memory first; slots are used in turn.
"""

from dataclasses import dataclass

from scalebench.worker.collectives.schedule import Receive, Schedule, Send, Step


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

    Args:
        schedule: Of one rank. Empty messages are left out: both sides know that they are empty.
        window: How many elements may be on their way to this rank. A step that takes in more is
            in flight alone.
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
