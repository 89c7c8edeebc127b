"""The two ends of the connection over which rounds are asked for."""

import os
import threading

import pytest

from scalebench.session.interleaved.connection import NOT_TOLD, ROUNDS_ON, AskingEnd, RoundRequests


@pytest.fixture
def ends(monkeypatch):
    asking = AskingEnd()
    taken = os.dup(asking.theirs.fileno())  # as a process inherits it
    os.set_inheritable(taken, True)
    assert asking.environment()[ROUNDS_ON] == str(asking.theirs.fileno())
    asking.theirs.close()
    monkeypatch.setenv(ROUNDS_ON, str(taken))
    requests = RoundRequests.from_environment()
    assert requests is not None
    yield asking, requests
    asking.close()
    requests.close()


def test_who_was_not_asked_to_wait_has_no_connection(monkeypatch):
    monkeypatch.delenv(ROUNDS_ON, raising=False)
    assert RoundRequests.from_environment() is None


def test_no_process_that_is_started_later_inherits_it(ends):
    assert ROUNDS_ON not in os.environ
    assert not ends[1]._connection.get_inheritable()


def test_a_round_is_asked_for_with_its_rows_and_reported(ends):
    asking, requests = ends
    requests.report()
    assert asking.wait_for_round() is None
    for only in (["ddp.ddp.n2", "ddp.plain.n1"], []):
        asking.ask(only)
        assert requests.wait() == only


def test_a_round_that_is_not_done_is_waited_for(ends):
    asking, requests = ends
    heard: list[str | None] = []
    waiting = threading.Thread(target=lambda: heard.append(asking.wait_for_round()))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive() and not heard
    requests.report()
    waiting.join(10)
    assert heard == [None]


def test_a_run_that_can_make_no_further_round_says_so(ends):
    asking, requests = ends
    requests.report("each launch of a race has another seed")
    assert asking.wait_for_round() == "each launch of a race has another seed"


def test_the_end_of_either_is_no_error(ends):
    asking, requests = ends
    asking.close()
    requests.report()
    assert requests.wait() is None


def test_a_connection_that_was_not_passed_on_is_none(monkeypatch):
    closed = os.open(os.devnull, os.O_RDONLY)
    os.close(closed)
    monkeypatch.setenv(ROUNDS_ON, str(closed))
    assert RoundRequests.from_environment() is None


def test_a_run_that_exits_cannot_go_on_and_hears_nothing(ends):
    asking, requests = ends
    requests.close()
    asking.ask(["ddp.ddp.n2"])
    assert asking.wait_for_round() == NOT_TOLD
