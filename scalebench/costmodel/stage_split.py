"""Which layers make which stage of a pipeline, and what memory that takes of each rank.

Which layers make which stage of a pipeline: contiguous parts of a sequence.

A model as the row of layers that a pipeline cuts: what each costs and hands on.

Apart from the pipeline's step, because ranks read it and should not import the solvers of fits.

Memory of a pipeline's ranks: each has its stages' state, and microbatches wait for backward.

A rank holds parameters, gradients and optimizer state of its own layers, buffers for what it
receives of every microbatch, and for each microbatch in flight what its layers keep for the
backward pass. How many are in flight at which moment follows from the schedule's order; how much of
a microbatch a layer keeps is counted, and what operators need besides is taken from a measurement
of the whole model on one rank.

Source: Narayanan et al. 2021 (Megatron-LM), §2.2, for the microbatches in flight: m for GPipe, at
most p for 1F1B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from scalebench.costmodel import memory
from scalebench.costmodel.pipeline_schedule import Action, plan_schedule
from scalebench.spec import Execution, Pipeline

Stages = Sequence[tuple[int, int]]


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


def predict_pipeline_memory(
    strategy: Pipeline,
    layers: Layers,
    world_size: int,
    rank_batch: int,
    optimizer: str | None,
    baseline: memory.MeasuredBaseline | None,
) -> memory.MemoryPrediction:
    """Predict the peak of the pipeline's fullest rank, float32 parameters.

    Args:
        strategy: How the layers are cut, and the order of the passes.
        layers: Counted for the strategy's own microbatches.
        world_size: N, of all pipelines together.
        rank_batch: Samples of a pipeline's step.
        optimizer: The rank's fact ``optimizer``; None: not known.
        baseline: The whole model on one rank, at any batch.

    Raises:
        ValueError: Only torch knows the order of the schedule, it cannot be cut or ordered so, or
            what the layers keep is not known; the text says which.
    """
    if not layers.kept_bytes:
        raise ValueError("what the pipeline's layers keep for their backward pass is not known")
    states = memory.STATES.get(optimizer) if optimizer is not None else None
    if states is None:
        raise ValueError(f"the state of the optimizer {optimizer} is not known")
    why = memory.why_unfit(strategy, baseline)
    if baseline is None or why is not None:
        raise ValueError(why)
    orders, stages = _plan(strategy, layers, world_size // strategy.pipelines(world_size))
    kept = _kept(layers, stages)
    factor = _measured_per_counted(strategy, layers, rank_batch, baseline)
    ranks = []
    for order in orders:
        own = {action.stage for action in order}
        state = {stage: _parameter_bytes(layers, stages, {stage}) for stage in own}
        activations, gradients = _fullest_moment(order, kept, state, factor)
        parameters = _parameter_bytes(layers, stages, own)
        ranks.append(
            memory.MemoryPrediction(
                parameters_bytes=parameters,
                gradients_bytes=min(gradients, parameters),
                optimizer_bytes=states * parameters,
                communication_bytes=strategy.microbatches * _received(layers, stages, own),
                activations_bytes=round(activations),
                data_bytes=baseline.memory.data_bytes or 0,
            )
        )
    return max(ranks, key=lambda rank: rank.total_bytes or 0)


def _plan(
    strategy: Pipeline, layers: Layers, num_ranks: int
) -> tuple[tuple[tuple[Action, ...], ...], Stages]:
    """Return what every rank does in order, and the layers of each stage."""
    schedule = plan_schedule(strategy.schedule, num_ranks, strategy.microbatches, strategy.chunks)
    stages = layers_of_stages(strategy.split, layers.costs, num_ranks * strategy.chunks)
    return schedule.ranks, stages


def _kept(layers: Layers, stages: Stages) -> list[int]:
    """Return what each stage keeps of a microbatch; the last one the output and its loss, too."""
    kept = [sum(layers.kept_bytes[begin:end]) for begin, end in stages]
    kept[-1] += 2 * layers.output_bytes[-1]
    return kept


def _fullest_moment(
    order: Sequence[Action], kept: Sequence[int], state: Mapping[int, int], factor: float
) -> tuple[float, int]:
    """Return activations and gradients between the passes when a rank has most of both, bytes.

    Args:
        order: The rank's passes.
        kept: Stage → bytes of a microbatch that wait for the backward pass.
        state: Stage of the rank → bytes of its gradients, which its first backward pass makes.
        factor: What a microbatch takes, for each byte of it that is kept.
    """
    waiting, begun = 0.0, set[int]()
    moments = [(0.0, 0)]
    for action in order:
        if action.kind == "F":
            waiting += factor * kept[action.stage]
        elif action.kind != "I":  # the first half of a split backward frees and makes nothing yet
            waiting -= factor * kept[action.stage]
            begun.add(action.stage)
        moments.append((waiting, sum(state[stage] for stage in begun)))
    return max(moments, key=sum)


def _measured_per_counted(
    strategy: Pipeline, layers: Layers, rank_batch: int, baseline: memory.MeasuredBaseline
) -> float:
    """Return what the whole model was measured to take, for each byte that its layers keep."""
    trained: Execution = baseline.strategy
    whole = [(0, len(layers.costs))]
    samples = rank_batch / strategy.microbatches
    if isinstance(trained, Pipeline):
        orders, stages = _plan(trained, layers, 1)
        none = dict.fromkeys(range(len(stages)), 0)
        counted, _ = _fullest_moment(orders[0], _kept(layers, stages), none, 1.0)
        counted *= baseline.batch / trained.microbatches / samples
    else:
        counted = _kept(layers, whole)[0] * baseline.batch / samples
    return (baseline.memory.activations_peak_bytes or 0) / counted


def _parameter_bytes(layers: Layers, stages: Stages, own: set[int]) -> int:
    """Return the parameters of a rank's stages; what its layers share is there once."""
    there = {layer for stage in own for layer in range(*stages[stage])}
    twice = sum(
        (len(there.intersection(shared.layers)) - 1) * shared.num_bytes
        for shared in layers.tied
        if there.intersection(shared.layers)
    )
    return sum(layers.parameter_bytes[layer] for layer in there) - twice


def _received(layers: Layers, stages: Stages, own: set[int]) -> int:
    """Return what a rank's stages receive of a microbatch: inputs, and gradients of outputs."""
    passed_on = [layers.output_bytes[end - 1] for _, end in stages]
    inputs = sum(passed_on[stage - 1] for stage in own if stage > 0)
    return inputs + sum(passed_on[stage] for stage in own if stage < len(stages) - 1)
