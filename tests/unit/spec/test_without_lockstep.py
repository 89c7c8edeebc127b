"""Strategies without lockstep, as data."""

import pytest

from scalebench.spec import FedAvg, LocalSgd


def test_a_round_needs_as_many_clients_as_it_draws():
    assert FedAvg(clients=8, clients_per_rank=2).why_not("cpu", 4) is None
    reason = FedAvg(clients=7, clients_per_rank=2).why_not("cpu", 4)
    assert reason is not None
    assert "draw 8 clients in a round, and there are 7" in reason


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [(LocalSgd(period=5), 5), (FedAvg(period=5, clients_per_rank=3), 15)],
)
def test_how_many_steps_lie_between_two_exchanges(strategy, steps):
    assert strategy.steps_per_exchange == steps
