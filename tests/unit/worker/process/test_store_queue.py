"""Messages over a store: in order, whole, and none in the way of the others."""

import os
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from scalebench.worker.process import store_queue as module
from scalebench.worker.process.store_queue import StoreQueue


def test_every_rank_has_its_own_messages_in_order() -> None:
    store = HashStore()
    session, ranks = StoreQueue(store), [StoreQueue(store) for _ in range(2)]
    for number in range(3):
        for rank in (1, 0):
            session.send(rank, {"for": rank, "number": number})
    for rank, box in enumerate(ranks):
        for number in range(3):
            assert box.received(rank, number) == {"for": rank, "number": number}


def test_what_ranks_tell_comes_in_the_order_in_which_it_was_told() -> None:
    store = HashStore()
    session, ranks = StoreQueue(store), [StoreQueue(store) for _ in range(3)]
    order = [2, 0, 1, 1, 2, 0]
    for number, rank in enumerate(order):
        ranks[rank].tell(rank, {"of": rank, "number": number})
    assert [session.told(i) for i in range(6)] == [
        {"of": rank, "number": number} for number, rank in enumerate(order)
    ]


def test_a_large_message_goes_in_parts_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 1000)
    store = HashStore()
    text = os.urandom(20_000).hex()
    StoreQueue(store).tell(0, {"record": text})
    assert store.num_keys() > 20
    assert StoreQueue(store).told(0) == {"record": text}
    assert store.num_keys() == 1  # the count of messages


def test_a_sender_that_was_killed_in_between_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOST_AFTER", timedelta(milliseconds=20))
    store = HashStore()
    store.add("told", 1)  # took a number, and wrote nothing
    StoreQueue(store).tell(1, {"of": 1})
    session = StoreQueue(store)
    assert session.told(0) is None
    assert session.told(1) == {"of": 1}
