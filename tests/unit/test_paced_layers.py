import pytest
import torch
from torch import nn

from benchmarks import paced_layers


@pytest.fixture
def waited(monkeypatch):
    found = []
    monkeypatch.setattr(paced_layers, "wait", found.append)
    return found


def test_a_layer_waits_for_its_multiplications_and_in_backward_twice_as_long(waited):
    layer = nn.Linear(4, 6)
    paced_layers.pace(layer, 0.001)
    output = layer(torch.ones(5, 4, requires_grad=True))
    assert waited == [pytest.approx(0.001 * 5 * 4 * 6)]
    output.sum().backward()
    assert waited[1:] == [pytest.approx(2 * waited[0])]


def test_the_values_stay_as_they_are(waited):
    layer, x = nn.Linear(4, 6), torch.randn(5, 4)
    before = layer(x)
    paced_layers.pace(layer, 0.0)
    assert torch.equal(layer(x), before)
    assert len(waited) == 1
