"""When a step may start: the pipelining of a schedule, worked out before anything is sent.

A step waits for exactly those receives whose result it sends on. Everything else may still be in
flight, so the sum of one segment is formed while the next is on the wire. What is to be added
arrives in a slot of scratch memory first; slots are used in turn.
"""

from dataclasses import dataclass

from scalebench.worker.collectives.schedule import Message, Receive, Schedule, Send, Step


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
        num_slots: Slots of scratch memory.
        slot_length: Elements of a slot.
    """

    posts: tuple[Post, ...]
    num_slots: int
    slot_length: int


def make_plan(schedule: Schedule, scratch: int) -> Plan:
    """Work out what each step has to wait for.

    Args:
        schedule: Of one rank. Empty messages are left out: both sides know that they are empty.
        scratch: Elements of scratch memory to be used where the choice is free. Never fewer than
            two slots, nor than a single step takes.
    """
    filled = (tuple(m for m in step if m.piece.length) for step in schedule)
    steps = [step for step in filled if step]
    added = [[m.piece.length for m in step if _needs_slot(m)] for step in steps]
    slot_length = max((length for lengths in added for length in lengths), default=0)
    at_once = max((len(lengths) for lengths in added), default=0)
    num_slots = max(at_once, 2, scratch // slot_length) if slot_length else 0

    received: list[Receive] = []
    in_slots: list[int] = []
    posts: list[Post] = []
    finished = 0
    for step in steps:
        finished = _latest_needed(step, received, finished)
        new = [message for message in step if isinstance(message, Receive)]
        for number, message in enumerate(new, start=len(received)):
            if message.add:
                in_slots.append(number)
        if len(in_slots) > num_slots:
            finished = max(finished, in_slots[-num_slots - 1] + 1)
        received += new
        posts.append(Post(finished, step))
    return Plan(tuple(posts), min(num_slots, len(in_slots)), slot_length)


def _needs_slot(message: Message) -> bool:
    return isinstance(message, Receive) and message.add


def _latest_needed(step: Step, received: list[Receive], finished: int) -> int:
    """Return how many receives have to be finished before ``step``, at least ``finished``."""
    for number in range(len(received) - 1, finished - 1, -1):
        piece = received[number].piece
        if any(isinstance(m, Send) and m.piece.overlaps(piece) for m in step):
            return number + 1
    return finished
