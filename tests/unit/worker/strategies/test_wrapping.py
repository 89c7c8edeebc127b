"""Which modules become groups of parameters, and how large the groups are."""

from torch import nn

from scalebench.spec import STRATEGIES
from scalebench.worker.strategies import TRAININGS
from scalebench.worker.strategies.fsdp import group_elements, modules_of_at_least


class Tied(nn.Module):
    """An embedding that is the output's matrix too, and two layers in a list."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 10)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(10, 30), nn.Linear(30, 10)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(10)


def test_the_smallest_modules_that_are_large_enough_inner_ones_first():
    model = Tied()
    linear = modules_of_at_least(300, model)
    assert linear == [module for layer in model.layers for module in layer]  # 330 and 310
    assert modules_of_at_least(331, model) == list(model.layers)
    with_rest = nn.Sequential(nn.Sequential(nn.Linear(10, 30), nn.Linear(10, 2)), nn.Linear(5, 5))
    assert modules_of_at_least(30, with_rest) == [with_rest[0][0], with_rest[1]]


def test_what_shares_a_parameter_with_another_module_is_no_group():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10))
    model[2].weight = model[0].weight
    assert modules_of_at_least(50, model) == [model[1]]


def test_groups_are_counted_once_padded_and_the_root_last():
    model = Tied()
    layers = list(model.layers)
    assert group_elements(layers, model, shards=1) == [640, 640, 1020]
    # By 4 ranks: 30 rows become 32, 10 become 12, 100 stay.
    layer = 32 * 10 + 32 + 12 * 30 + 12
    assert group_elements(layers, model, shards=4) == [layer, layer, 1000 + 12 + 12]
    nested = group_elements([layers[0][0], layers[0]], model, shards=1)
    assert nested == [330, 310, 640 + 1020]
    assert sum(nested) == sum(p.numel() for p in model.parameters())


def test_every_strategy_that_can_be_specified_can_be_built():
    scripts_own = {"script"}  # which a script sets up itself
    assert {*STRATEGIES} == {*TRAININGS} | scripts_own
