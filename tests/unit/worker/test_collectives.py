import random
from collections import deque
from itertools import permutations
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.worker.collectives import ALL_REDUCES
from scalebench.worker.collectives.execute import Plan, Post, Receive, Send, make_plan
from tests.examples import cases, examples
from tests.tools.collective_variants import VARIANTS


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

    def place(self, message):
        values = self.vector[slice(*message.piece)]
        if isinstance(message, Receive) and message.add:
            slot = self.slots[self.num_added % len(self.slots)]
            values = slot[: message.piece.length]
            self.num_added += 1
        place = SimpleNamespace(values=values, arrived=False)
        if isinstance(message, Receive):
            self.receiving.append((message, place))
        return place


NUM_RANKS = st.integers(1, 13)
LENGTHS = st.integers(0, 60)
SEGMENTS = st.integers(1, 20)
every_variant = cases("variant", *VARIANTS.values(), ids=VARIANTS.keys())


def own_marks(num_ranks, length):
    marks = np.eye(num_ranks)
    return [np.tile(marks[rank], (length, 1)) for rank in range(num_ranks)]


def expect_each_once(vectors):
    for rank, vector in enumerate(vectors):
        assert (vector == 1).all(), f"rank {rank}: {vector}"


def random_floats(num_ranks, length):
    values = np.random.default_rng(length).normal(size=(num_ranks, length))
    return list(values.astype(np.float32))


@every_variant
@settings(max_examples=examples(25))
@given(
    num_ranks=NUM_RANKS,
    length=LENGTHS,
    segment=SEGMENTS,
    window=st.integers(0, 100),
    seed=st.integers(0, 10**6),
    eager=st.sampled_from((0.01, 0.5, 0.99)),
)
def test_with_everything_in_flight_that_the_plan_allows_the_sums_are_the_same(
    variant, num_ranks, length, segment, window, seed, eager
):
    schedules = variant.schedules(num_ranks, length, segment)
    plans = [make_plan(schedule, window) for schedule in schedules]
    vectors = own_marks(num_ranks, length)
    run_eagerly(plans, vectors, seed, eager)
    expect_each_once(vectors)
    floats = random_floats(num_ranks, length)
    run_eagerly(plans, floats, seed, eager)
    in_lockstep = random_floats(num_ranks, length)
    run_in_lockstep(schedules, in_lockstep)
    for vector in (*floats, *in_lockstep):
        np.testing.assert_array_equal(vector, floats[0])


@every_variant
@settings(max_examples=examples(25))
@given(num_ranks=NUM_RANKS, length=LENGTHS, segment=SEGMENTS)
def test_an_element_is_sent_once_for_each_sum_and_each_copy(variant, num_ranks, length, segment):
    sent = variant.sent(num_ranks, length, segment)
    assert sent == variant.sent(num_ranks, length)
    assert sum(sent) == 2 * (num_ranks - 1) * length


@cases("num_ranks", 2, 3, 4, 5, 8, 16)
def test_the_laws_are_those_of_the_textbook(num_ranks):
    length = 240 * num_ranks
    least = 2 * (num_ranks - 1) * length // num_ranks
    sent = {name: variant.sent(num_ranks, length) for name, variant in VARIANTS.items()}
    assert sent["ring"] == sent["ring, both ways"] == [least] * num_ranks
    assert sent["hierarchical, one host"] == [least] * num_ranks
    assert max(sent["double-tree"]) <= 2 * length
    one_at_root = [(num_ranks - 1) * length] + [length] * (num_ranks - 1)
    assert sent["gather-broadcast"] == sent["parameter-server"] == one_at_root
    assert max(sent["tree"]) <= 3 * length
    core = 2 ** (num_ranks.bit_length() - 1)
    surplus = num_ranks - core
    least_of_core = 2 * (core - 1) * length // core
    assert sent["halving-doubling"] == (
        [least_of_core + length] * surplus + [least_of_core] * (core - surplus) + [length] * surplus
    )
    if num_ranks % 2 == 0:
        hosts = num_ranks // 2
        across = 2 * (hosts - 1) * (length // 2) // hosts
        assert sent["hierarchical, pairs"] == [length + across] * num_ranks


def test_the_table_names_every_algorithm_once():
    assert len(set(ALL_REDUCES.values())) == len(ALL_REDUCES)
    assert {variant.all_reduce for variant in VARIANTS.values()} == {*ALL_REDUCES.values()}
