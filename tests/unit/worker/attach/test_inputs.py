"""What modules are given in a script's first step."""

import pytest
import torch
from torch import nn

from scalebench.worker.attach.inputs import Inputs


@pytest.fixture
def inputs():
    before = nn.Module.__call__, torch.compile
    looking = Inputs()
    looking.begin()
    yield looking
    looking.end()
    assert (nn.Module.__call__, torch.compile) == before


class TwoInputs(nn.Module):
    """A model that is given a tensor, and others by name."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, batch):
        return self.inner(x) + batch["more"][0]


def test_what_the_outermost_modules_are_given_is_added_up(inputs):
    model = TwoInputs()
    for _ in range(2):
        model(torch.ones(4, 8), batch={"more": [torch.ones(8)], "name": "x"})
    with torch.no_grad():
        model(torch.ones(400, 8), {"more": [torch.ones(8)]})
    assert inputs.elements == 2 * (32 + 8)
    inputs.end()
    model(torch.ones(4, 8), {"more": [torch.ones(8)]})
    assert inputs.elements == 2 * (32 + 8)


def test_a_script_that_compiles_is_left_alone(inputs):
    model = nn.Linear(8, 8)
    model(torch.ones(4, 8))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert inputs.elements is None
    compiled(torch.ones(4, 8)).sum().backward()
    assert inputs.elements is None
