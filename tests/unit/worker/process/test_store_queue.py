"""Messages over a store: in order, whole, none in the way of the others, none of a stranger."""

import pytest
from torch._C._distributed_c10d import HashStore

from scalebench.errors import EnvironmentUnfit
from scalebench.records.storage.secret import Forged
from scalebench.worker.process.store_queue import join_session, open_session

SECRET, WRONG = "s" * 32, "w" * 32


def world(store, num_ranks=1):
    session = open_session(store, SECRET)
    return session, [join_session(store, rank, lambda: [SECRET], 1.0) for rank in range(num_ranks)]


GARBAGE = ["", "1", "x", "\x00\xff \x80", f"{10**12} {'0' * 64} {'0' * 64}"]


@pytest.mark.parametrize("header", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_the_place_of_a_message_is_refused_and_nothing_is_waited_for(header):
    store = HashStore()
    _, (rank,) = world(store)
    store.set("to/0/0", header)
    with pytest.raises(Forged, match="to/0/0 is not signed"):
        rank.received(0, 0)


@pytest.mark.parametrize("source", ["to/1/0", "to/0/1", "of/0/0", "of/1/0"])
def test_a_message_counts_under_its_own_name_alone(source):
    """Not for another rank, not out of order, and not back to where it came from."""
    store = HashStore()
    session, ranks = world(store, 2)
    for rank in (0, 1):
        session.send(rank, {"first": 1})
        session.send(rank, {"second": 2})
        ranks[rank].tell(rank, {"of": rank})
    for part in ("/0", ""):
        store.set(f"to/0/0{part}", store.get(f"{source}{part}"))
    with pytest.raises(Forged, match="to/0/0 is not signed"):
        ranks[0].received(0, 0)


@pytest.mark.parametrize("part", [None, "something else", ""])
def test_a_message_whose_parts_were_changed_or_taken_away_is_refused(part):
    store = HashStore()
    session, (rank,) = world(store)
    session.send(0, {"start": 1})
    if part is None:
        store.delete_key("to/0/0/0")
    else:
        store.set("to/0/0/0", part)
    with pytest.raises(Forged, match="to/0/0 was changed"):
        rank.received(0, 0)


@pytest.mark.parametrize("name", ["of/0/0", "of/7/0", "of/0/-1", "to/0/0", "x", ""])
def test_what_no_rank_has_told_and_what_it_told_before_is_refused(name):
    store = HashStore()
    session, (rank,) = world(store)
    rank.tell(0, {"of": 0})
    kept = {key: store.get(key) for key in ("of/0/0", "of/0/0/0")}
    assert session.sent(0) == {"of": 0}
    for key, value in kept.items():
        store.set(key, value)
    store.set("from/1", name)
    with pytest.raises(Forged):
        session.sent(1)


def test_a_rank_without_the_secret_of_the_session_does_not_take_part():
    store = HashStore()
    open_session(store, SECRET)
    with pytest.raises(EnvironmentUnfit, match=r"SCALEBENCH_SECRET.*--trust-network"):
        join_session(store, 1, lambda: [WRONG], 0.0)
    assert not store.check(["number/1"])
