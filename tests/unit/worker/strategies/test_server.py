"""A parameter server without ranks: who goes on, with what, and how stale gradients are."""

import heapq

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.strategies.asynchronous.server import Server, TooFewWorkers

RATE = 0.5


def server(num_workers, bound, **options):
    parameter = torch.nn.Parameter(torch.zeros(2))
    return Server(parameter, torch.optim.SGD([parameter], lr=RATE), num_workers, bound, **options)


def ones(times=1.0):
    return torch.full((2,), times)


def test_bound_0_steps_once_by_the_mean_of_all():
    found = server(3, bound=0)
    assert found.push(1, ones(3.0)) == []
    assert found.push(0, ones(0.0)) == []
    assert found.parameter.tolist() == [0, 0]
    assert sorted(found.push(2, ones(6.0))) == [0, 1, 2]
    assert found.parameter.tolist() == [-1.5, -1.5]
    assert found.staleness == {0: 3}


def test_a_bound_holds_back_who_is_too_far_ahead():
    found = server(2, bound=2)
    assert [found.push(0, ones()) for _ in range(3)] == [[0], [0], []]
    assert found.push(1, ones()) == [0, 1], "the slowest has done one: three are allowed now"


@pytest.mark.parametrize("batch_s", [(1, 1), (1, 3), (1, 1, 1, 4)])
def test_the_faster_do_more_as_the_model_says(batch_s):
    """Together they train Σ 1/t_i batches a second; in lockstep N / max(t_i)."""
    found, num_batches = server(len(batch_s), bound=None), 600
    ends = [(float(seconds), worker) for worker, seconds in enumerate(batch_s)]
    done = [0] * len(batch_s)
    while ends:
        now, worker = heapq.heappop(ends)
        done[worker] += 1
        assert found.push(worker, ones()) == [worker]
        if found.tickets[worker] < num_batches:
            heapq.heappush(ends, (now + batch_s[worker], worker))
    assert sum(done) == num_batches
    in_lockstep_s = num_batches / len(batch_s) * max(batch_s)
    gain = max(batch_s) * sum(1 / s for s in batch_s) / len(batch_s)
    assert in_lockstep_s / now == pytest.approx(gain, rel=0.02)
    assert done[0] / done[-1] == pytest.approx(batch_s[-1] / batch_s[0], rel=0.02)


@given(workers=st.lists(st.integers(0, 3), min_size=400, max_size=400))
def test_nobody_is_ever_further_ahead_than_the_bound(workers):
    found, bound = server(4, bound=2), 2
    clocks, free = [0] * 4, {0, 1, 2, 3}
    for worker in workers:
        if worker in free:
            free.discard(worker)
            clocks[worker] += 1
            free |= set(found.push(worker, ones()))
        assert free, "somebody can always go on"
        assert all(clocks[one] - min(clocks) <= bound for one in free)


def test_a_synchronous_step_does_not_wait_for_backup_workers():
    found = server(3, bound=0, backups=1)
    assert found.push(2, ones(1.0)) == []
    assert found.push(0, ones(3.0)) == [2, 0], "two of three gradients make the step"
    assert found.parameter.tolist() == [-1.0, -1.0], "by the mean of two"
    assert [found.tickets[one] for one in (0, 2)] == [3, 3], "of the next step of three batches"
    assert found.push(1, ones(100.0)) == [1], "the late one goes on with the newest parameters"
    assert found.parameter.tolist() == [-1.0, -1.0], "its gradient is dropped"
    assert (found.num_dropped, found.staleness) == (1, {0: 2, 1: 1})
    assert found.push(1, ones(2.0)) == [] and found.push(2, ones(2.0)) == [1, 2]
    assert found.parameter.tolist() == [-2.0, -2.0]


def test_a_worker_that_is_gone_is_not_waited_for():
    found = server(3, bound=1)
    assert [found.push(0, ones()) for _ in range(2)] == [[0], []]
    assert found.push(1, ones()) == [1]
    assert found.leave(2) == [0], "the slowest of the others has done one"
    assert found.leave(2) == [], "told twice"


def test_the_batch_of_a_worker_that_is_gone_goes_to_the_next_who_asks():
    found = server(3, bound=None)
    found.push(0, ones())
    assert found.tickets == [3, 1, 2]
    assert found.leave(1) == []
    found.push(2, ones())
    found.push(0, ones())
    assert [found.tickets[one] for one in (0, 2)] == [4, 1]


def test_backup_workers_may_be_gone_and_no_more():
    found = server(3, bound=0, backups=1)
    assert found.leave(1) == []
    found.push(0, ones())
    assert found.push(2, ones()) == [0, 2]
    with pytest.raises(TooFewWorkers, match=r"lost worker 2.*gradients of 2 workers"):
        found.leave(2)


def test_stale_gradients_make_smaller_steps_if_asked():
    found = server(4, bound=None, damped=True)
    for worker in (0, 1, 2):
        found.push(worker, ones(0.0))
    found.push(3, ones(6.0))
    assert found.parameter.tolist() == [-1.0, -1.0], "RATE · 6 / 3 steps that were made meanwhile"
    found.push(3, ones(6.0))
    assert found.parameter.tolist() == [-4.0, -4.0], "a fresh one makes a whole step"
