"""Ranks that carry out schedules without processes, under two opposite kinds of network."""

import random
from collections import deque
from itertools import permutations

import numpy as np

from scalebench.worker.collectives.execute import Plan, Post
from scalebench.worker.collectives.schedule import Receive, Send


class Deadlock(AssertionError):
    """No rank can go on, and not all are done."""


def run_in_lockstep(schedules, vectors) -> None:
    """Let each rank finish a step before it begins the next; nothing is buffered.

    That is NCCL's way: a group of messages completes as one. Messages of a pair of ranks meet in
    the order in which both sides name them.

    Args:
        schedules: Steps of each rank.
        vectors: Changed in place, one array per rank, elements along the first axis.
    """
    ranks = [_LockstepRank(steps, vector) for steps, vector in zip(schedules, vectors, strict=True)]
    while any(rank.step is not None for rank in ranks):
        if not any([_meet(ranks, *pair) for pair in permutations(range(len(ranks)), 2)]):
            waiting = {number: rank.step for number, rank in enumerate(ranks) if rank.step}
            raise Deadlock(str(waiting))
        for rank in ranks:
            rank.go_on()


class _LockstepRank:
    def __init__(self, steps, vector) -> None:
        filled = ([m for m in step if m.piece.length] for step in steps)
        self.steps = deque(step for step in filled if step)
        self.vector = vector
        self.begin()

    def begin(self) -> None:
        self.step = self.steps.popleft() if self.steps else None
        self.open = list(self.step or ())
        self.as_sent = self.vector.copy()
        self.arrived = {}

    def first(self, kind, peer):
        return next((m for m in self.open if isinstance(m, kind) and m.peer == peer), None)

    def go_on(self) -> None:
        if self.step is None or self.open:
            return
        for message in self.step:
            if isinstance(message, Send):
                continue
            values = self.arrived[message]
            here = self.vector[slice(*message.piece)]
            here[:] = here + values if message.add else values
        self.begin()


def _meet(ranks, source, to) -> bool:
    """Carry over one message that both sides have reached."""
    send, receive = ranks[source].first(Send, to), ranks[to].first(Receive, source)
    if send is None or receive is None:
        return False
    assert send.piece == receive.piece
    ranks[source].open.remove(send)
    ranks[to].open.remove(receive)
    ranks[to].arrived[receive] = ranks[source].as_sent[slice(*send.piece)].copy()
    return True


def run_eagerly(plans: list[Plan], vectors, seed: int, eager: float) -> None:
    """Post as early as the plans allow, while the network moves messages whenever it likes.

    That is gloo's way. A message is read from the sender's memory at the moment at which it moves,
    not when it was posted: what was overwritten too early shows.

    Args:
        plans: One per rank.
        vectors: As above.
        seed: Of the order of events.
        eager: Probability with which ranks go first: near 1 everything is posted long before it
            moves, near 0 it moves at once.
    """
    dice = random.Random(seed)
    ranks = [_EagerRank(plan, vector) for plan, vector in zip(plans, vectors, strict=True)]
    links: dict[tuple[int, int], tuple[deque, deque]] = {}
    while True:
        ready = [number for number, rank in enumerate(ranks) if rank.can_go_on()]
        movable = [link for link in links.values() if link[0] and link[1]]
        if not ready and not movable:
            break
        if ready and (not movable or dice.random() < eager):
            number = dice.choice(ready)
            for message, place in ranks[number].go_on():
                ends = (
                    (number, message.peer) if isinstance(message, Send) else (message.peer, number)
                )
                link = links.setdefault(ends, (deque(), deque()))
                link[isinstance(message, Receive)].append((message, place))
        else:
            sends, receives = dice.choice(movable)
            (send, origin), (receive, target) = sends.popleft(), receives.popleft()
            assert send.piece == receive.piece
            target.values[:] = origin.values
            target.arrived = True
    if any(rank.todo or rank.receiving for rank in ranks):
        raise Deadlock("ranks wait for messages that never come")
    assert not any(ends for link in links.values() for ends in link)


class _Place:
    def __init__(self, values) -> None:
        self.values = values
        self.arrived = False


class _EagerRank:
    """Carries out a plan as `execute` does, one event at a time."""

    def __init__(self, plan: Plan, vector) -> None:
        self.vector = vector
        self.todo = deque((*plan.posts, Post(num_finished=10**9, messages=())))
        self.slots = np.full((plan.num_slots, plan.slot_length, *vector.shape[1:]), np.nan)
        self.num_added = self.num_finished = 0
        self.receiving: deque = deque()

    def must_finish(self) -> bool:
        return bool(self.receiving) and self.num_finished < self.todo[0].num_finished

    def can_go_on(self) -> bool:
        if not self.todo:
            return False
        return self.receiving[0][1].arrived if self.must_finish() else True

    def go_on(self):
        if self.must_finish():
            message, place = self.receiving.popleft()
            if message.add:
                self.vector[slice(*message.piece)] += place.values
            self.num_finished += 1
            return []
        return [(message, self.place(message)) for message in self.todo.popleft().messages]

    def place(self, message) -> _Place:
        place = _Place(self.vector[slice(*message.piece)])
        if isinstance(message, Receive):
            if message.add:
                slot = self.slots[self.num_added % len(self.slots)]
                place = _Place(slot[: message.piece.length])
                self.num_added += 1
            self.receiving.append((message, place))
        return place
