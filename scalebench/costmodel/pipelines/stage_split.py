"""Which layers make which stage of a pipeline: contiguous parts of a sequence.

A model as the row of layers that a pipeline cuts: what each costs and hands on.

Apart from the pipeline's step, because ranks read it and should not import the solvers of fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class TiedParameter:
    """A parameter that several layers share: ranks that hold it sum its gradients.

    Attributes:
        layers: Numbers of the layers, ascending.
        num_bytes: Of its gradient.
    """

    layers: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class Layers:
    """What a pipeline's layers cost, counted and not timed.

    Attributes:
        costs: Of each layer, any unit: FLOPs of a microbatch, or parameters.
        output_bytes: Of each layer's output for a microbatch.
        tied: Parameters that several layers share.
        parameter_bytes: Of each layer; what layers share counts in each of them.
        kept_bytes: What each layer keeps of a microbatch for its backward pass.
    """

    costs: tuple[float, ...]
    output_bytes: tuple[int, ...]
    tied: tuple[TiedParameter, ...] = ()
    parameter_bytes: tuple[int, ...] = ()
    kept_bytes: tuple[int, ...] = ()


def layers_of_stages(how: str, costs: Sequence[float], num_stages: int) -> list[tuple[int, int]]:
    """Return the layers of each stage, from the first to before the last.

    Args:
        how: ``balanced`` and ``measured`` by costs, ``even`` by number, or ``unbalanced`` on
            purpose.
        costs: Of each layer, in order.
        num_stages: At most the number of layers.

    Raises:
        ValueError: There are fewer layers than stages.
    """
    if len(costs) < num_stages:
        raise ValueError(f"{num_stages} stages need as many layers, and there are {len(costs)}")
    if how == "unbalanced":
        sizes = unbalanced_split(len(costs), num_stages)
    elif how == "even":
        sizes = even_split(len(costs), num_stages)
    else:
        sizes = balanced_split(costs, num_stages)
    return list(pairwise(accumulate(sizes, initial=0)))


def even_split(num_layers: int, num_stages: int) -> list[int]:
    """Return the layers of each stage, their numbers as alike as can be, the larger first."""
    least, more = divmod(num_layers, num_stages)
    return [least + (stage < more) for stage in range(num_stages)]


def unbalanced_split(num_layers: int, num_stages: int) -> list[int]:
    """Return one layer for each stage and all the rest for the first: a bad split on purpose."""
    return [num_layers - num_stages + 1, *[1] * (num_stages - 1)]


def balanced_split(costs: Sequence[float], num_stages: int) -> list[int]:
    """Return the number of layers of each stage so that the dearest stage costs least.

    The linear partition problem, solved exactly by dynamic programming in
    ``O(num_stages · layers²)``. Every stage has a layer; of equal splits, the one whose stages'
    costs have the smaller sum of squares is taken.

    Args:
        costs: Of each layer, in order, not negative.
        num_stages: At most the number of layers.
    """
    before = [0.0, *accumulate(costs)]
    # best[i]: dearest stage, sum of squares and cuts of the first i layers in the stages so far.
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}
    for stage in range(1, num_stages + 1):
        last = len(costs) - (num_stages - stage)
        reached = {}
        for end in range(stage, last + 1):
            options = []
            for begin, (dearest, squares, cuts) in best.items():
                if begin < end:
                    cost = before[end] - before[begin]
                    options.append((max(dearest, cost), squares + cost**2, [*cuts, end - begin]))
            reached[end] = min(options)
        best = reached
    return best[len(costs)][2]
