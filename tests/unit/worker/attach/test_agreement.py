"""How the schedule reaches the other ranks, and that no thread is left when a rank ends."""

import socket
import time
from datetime import timedelta
from functools import partial

import pytest

from scalebench.worker.attach import agreement
from scalebench.worker.attach.agreement import Agreement, store_at
from scalebench.worker.attach.schedule import Block, Schedule
from scalebench.worker.process.store_queue import listen, serve_on

KEY = "key"
SCHEDULE = Schedule(1, True, 10, 20, [Block("traced", 20, 3)], 23)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(agreement, "LISTEN_S", 0.05)


@pytest.fixture
def served():
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    stores = [serve_on(listening, "127.0.0.1", timedelta(seconds=20))]
    return stores, {"host": "127.0.0.1", "port": port}


@pytest.fixture
def connect(served):
    return partial(store_at, served[1], 20.0)


def until(condition, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_schedule_reaches_a_rank_that_has_listened_for_long(connect):
    first, second = (Agreement(rank, 2, connect, 20.0, KEY) for rank in (0, 1))
    until(lambda: second._store is not None)
    time.sleep(0.2)  # several times as long as it listens at once
    first.send(SCHEDULE)
    until(lambda: second.received is not None)
    assert second.received == SCHEDULE == first.received
    second.close()
    assert not second.is_stuck


def test_a_rank_that_ends_first_leaves_no_thread_behind(connect):
    """A thread inside the store's own code would abort the process while the interpreter ends."""
    first, second = (Agreement(rank, 2, connect, 20.0, KEY) for rank in (0, 1))
    until(lambda: second._store is not None)
    second.close()
    assert not second.is_stuck and second.received is None
    first.close()


def test_a_rank_stops_listening_when_the_store_has_gone(connect, served):
    second = Agreement(1, 2, connect, 20.0, KEY)
    until(lambda: second._store is not None)
    served[0].clear()
    until(lambda: not second.is_stuck)
    assert second.received is None


def test_a_thread_whose_store_was_never_opened_is_known_to_be_stuck(monkeypatch):
    monkeypatch.setattr(agreement, "CLOSE_LIMIT_S", 0.05)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = {"host": "127.0.0.1", "port": free.getsockname()[1]}
    alone = Agreement(1, 2, partial(store_at, nobody, 1.0), 1.0, KEY)
    alone.close()
    assert alone.is_stuck
    until(lambda: not alone.is_stuck)


def test_a_schedule_of_somebody_else_is_not_followed(connect):
    second = Agreement(1, 2, connect, 20.0, KEY)
    Agreement(0, 2, connect, 20.0, "guessed").send(SCHEDULE)
    until(lambda: not second.is_stuck)
    assert second.received is None
