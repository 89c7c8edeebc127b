"""How the schedule reaches the other ranks, and that no thread is left when a rank ends."""

import time
from datetime import timedelta
from functools import partial

import pytest

from scalebench.worker.attach.timing import agreement
from scalebench.worker.attach.timing.agreement import Agreement, store_at
from scalebench.worker.attach.timing.schedule import Block, Schedule
from scalebench.worker.process.store_queue import listen, serve_on

KEY = "key"
SCHEDULE = Schedule(1, True, 10, 20, [Block("traced", 20, 3)], 23)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(agreement, "LISTEN_S", 0.05)


@pytest.fixture
def connect():
    listening = listen("127.0.0.1", 0)
    address = {"host": "127.0.0.1", "port": listening.getsockname()[1]}
    served = serve_on(listening, "127.0.0.1", timedelta(seconds=20))
    yield partial(store_at, address, 20.0)
    del served


def until(condition, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_rank_that_ends_first_leaves_no_thread_behind(connect):
    """A thread inside the store's own code would abort the process while the interpreter ends."""
    first, second = (Agreement(rank, 2, connect, 20.0, KEY) for rank in (0, 1))
    time.sleep(0.1)
    second.close()
    assert not second.is_stuck and second.received is None
    first.close()


def test_a_schedule_of_somebody_else_is_not_followed(connect):
    second = Agreement(1, 2, connect, 20.0, KEY)
    Agreement(0, 2, connect, 20.0, "guessed").send(SCHEDULE)
    until(lambda: not second.is_stuck)
    assert second.received is None


@pytest.mark.parametrize("key", [KEY, "guessed"])
def test_a_rank_knows_that_another_one_has_ended(connect, key):
    first, second = Agreement(0, 2, connect, 20.0, key), Agreement(1, 2, connect, 20.0, KEY)
    first.send(SCHEDULE)
    until(lambda: not second.is_stuck)
    assert not second.others_end()
    first.tell_end()
    assert second.others_end() == (key == KEY)
    assert not first.others_end()
