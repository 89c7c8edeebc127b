"""Memory per rank, by the strategy's law (ZeRO; Rajbhandari et al. 2020).

State follows from the number of parameters alone. Activations do not: they are taken from the
plain baseline's measurement and scaled with the batch.

What each dimension of a mesh takes off the memory of a rank, by its law.

State (parameters, gradients, optimizer) and activations are divided by different dimensions::

    axis        state                               activations
    pipeline    the part of its stage               1/P, times the microbatches in flight over all
    data        whole                               1/D (fewer samples)
    shard       1/S (ZeRO-3)                        1/S (fewer samples)
    context     whole                               1/C (fewer tokens)
    tensor      1/T of what is divided              1/T with a divided sequence; else not told

Each dimension acts on what those before it leave, so the savings depend on their order, and sum to
what all of them save. Left out, because no law of one dimension has them: what is gathered for the
moment, buffers of messages, and activations that tensor groups divide without a divided sequence.
Sources: Rajbhandari et al. 2020 (ZeRO), §3; Narayanan et al. 2021 (Megatron-LM), §2 and §3;
Korthikanti et al. 2022, §4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalebench.costmodel.sharding import (
    Groups,
    InFlight,
    Sharding,
    bucket_bytes,
    copies_gradients,
    in_flight,
    keeps_gradient_shard,
    keeps_gradients_in_buckets,
    keeps_second_copy,
    sharding_of,
)
from scalebench.records.measured.rank import Memory
from scalebench.spec import Compressed, Ddp, Execution, FromFramework, Strategy, Zero1
from scalebench.spec.strategies.data_parallel import vectors_kept

FP32_BYTES = 4
ADAM_STATES = 2
STATES = {
    "SGD": 0,
    "SGD with momentum": 1,
    "Adagrad": 1,
    "RMSprop": 1,
    "RMSprop with momentum": 2,
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Adam with amsgrad": 3,
    "AdamW with amsgrad": 3,
}
"""Optimizer → state tensors of a parameter's own size (``torch.optim``).

The words are those of the rank's fact ``optimizer``. Adafactor's and others' state depends on the
parameters' shapes and is not among them.
"""
DEFAULT_OPTIMIZER = "AdamW"


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes of the whole model's state, for each parameter of the model."""

    parameters: float
    gradients: float
    optimizer: float


FP32_ADAM = BytesPerParameter(4, 4, 8)
"""float32 throughout; autocast keeps parameters so, too."""


@dataclass(frozen=True)
class StateBytes:
    """State of one rank, bytes."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Sum of the three."""
        return self.parameters + self.gradients + self.optimizer


def zero_state(
    stage: int, num_parameters: int, world_size: int, per: BytesPerParameter = FP32_ADAM
) -> StateBytes:
    """Return what a rank holds between steps; ZeRO, figure 1.

    ``Ψ·(p + g + o)`` with o divided by N from stage 1 on, g from stage 2, p from stage 3. Stage 0
    is plain and DDP, stage 3 fully sharded (FSDP). On top come, and are not in it: what a sharded
    strategy gathers while it computes, padding to equal shards, buckets, activations.

    Args:
        stage: 0 to 3.
        num_parameters: Ψ, parameters of the model.
        world_size: N, ranks that the state is divided among.
        per: Bytes of each kind of state for each parameter.

    Raises:
        ValueError: No such stage.
    """
    if stage not in range(4):
        raise ValueError(f"ZeRO has stages 0 to 3, not {stage}")

    def share(first_sharded_stage: int) -> int:
        return world_size if stage >= first_sharded_stage else 1

    return StateBytes(
        parameters=num_parameters * per.parameters / share(3),
        gradients=num_parameters * per.gradients / share(2),
        optimizer=num_parameters * per.optimizer / share(1),
    )


@dataclass(frozen=True)
class MeasuredBaseline:
    """One rank that trained alone, as its inspecting launch saw it: what a prediction starts from.

    Attributes:
        strategy: ``Plain``, or the strategy itself where the plain model's activations are others.
        batch: Samples of its step.
    """

    strategy: Execution
    batch: int
    memory: Memory


@dataclass(frozen=True)
class MemoryPrediction:
    """Predicted peak of one rank, bytes, by the categories of `Memory`.

    Attributes:
        unavailable: Part → why it could not be predicted; such a part is None.
    """

    parameters_bytes: int
    gradients_bytes: int | None
    optimizer_bytes: int | None
    communication_bytes: int
    activations_bytes: int | None
    data_bytes: int | None
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int | None:
        """The peak; None if any part is."""
        parts = (
            *(self.parameters_bytes, self.gradients_bytes, self.optimizer_bytes),
            *(self.communication_bytes, self.activations_bytes, self.data_bytes),
        )
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    @property
    def reason(self) -> str | None:
        """Why there is no total; None if there is one."""
        return "; ".join(dict.fromkeys(self.unavailable.values())) or None


def predict_memory(
    strategy: Strategy,
    num_parameters: int,
    rank_batch: int,
    optimizer: str | None = DEFAULT_OPTIMIZER,
    baseline: MeasuredBaseline | None = None,
    world_size: int = 1,
    group_elements: Sequence[int] | None = None,
) -> MemoryPrediction:
    """Predict the peak of a rank, float32 parameters.

    ``4Ψ`` parameters, ``4Ψ`` per state tensor of the optimizer, each divided as the strategy
    divides it; ``4Ψ`` of buckets where DDP's gradients are copies of them; ``4Ψ`` of error
    feedback; DeepSpeed's bucket and its second copy of a rank's share; the unsharded groups in
    flight where parameters are divided; what encoding and
    decoding allocate for the moment is left out. Gradients and activations trade places during
    backward; how they add up at the peak is worked out by `_at_the_peak` from the baseline.

    Args:
        strategy: How the model is trained.
        num_parameters: Ψ, parameters of the model.
        rank_batch: Samples of a rank's step.
        optimizer: The rank's fact ``optimizer``; None: not known.
        baseline: The same workload on one rank, at any batch.
        world_size: N.
        group_elements: The rank's fact of that name: sizes of the groups that are gathered
            together, the root last; None: all parameters in one group.
    """
    sharding = sharding_of(strategy, world_size)
    sharded = sharding.stage == 3
    groups = Groups.of(group_elements if sharded else None, num_parameters)
    once = FP32_BYTES * groups.total
    own = _state(sharding, groups.total)
    flying = in_flight(sharding, groups)
    unavailable: dict[str, str] = {}
    states = STATES.get(optimizer) if optimizer is not None else None
    if states is None:
        unavailable["optimizer_bytes"] = f"the state of the optimizer {optimizer} is not known"
    why = why_unfit(strategy, baseline)
    gradients = activations = data = None
    flying_bytes = 0
    if baseline is None or why is not None:
        unavailable["activations_bytes"] = why or "no plain baseline was measured"
    else:
        gradients, activations, flying_bytes = _at_the_peak(
            strategy, round(own.gradients), own.gradients / once, rank_batch, baseline, flying
        )
        data = baseline.memory.data_bytes or 0
    copied = _copies_gradients(strategy)
    second_copy = once / sharding.shards if keeps_second_copy(strategy) else 0
    return MemoryPrediction(
        parameters_bytes=round(own.parameters + second_copy),
        gradients_bytes=gradients,
        optimizer_bytes=None if states is None else round(states * own.optimizer / ADAM_STATES),
        communication_bytes=(once if copied else _kept_vectors(strategy) * once)
        + flying_bytes
        + bucket_bytes(strategy),
        activations_bytes=activations,
        data_bytes=data,
        unavailable=unavailable,
    )


def _copies_gradients(strategy: Strategy) -> bool:
    """Tell whether gradients are copied to buckets instead of living in them."""
    if isinstance(strategy, Ddp):
        return not strategy.gradient_as_bucket_view
    return copies_gradients(strategy)


def _kept_vectors(strategy: Strategy) -> int:
    """Return how many gradients' worth a rank keeps of what compression did not send."""
    if not isinstance(strategy, Compressed):
        return 0
    return vectors_kept(strategy.settings)


ACTIVATIONS_DEPEND_ON = {
    "half_precision": "precision",
    "compile": "compilation",
    "checkpointing": "checkpointing",
}
"""Property of `Execution` → what people call it."""


def why_unfit(strategy: Execution, baseline: MeasuredBaseline | None) -> str | None:
    """Return why a baseline tells nothing about the activations of a strategy."""
    if baseline is None:
        return "no plain baseline was measured"
    memory = baseline.memory
    if None in (memory.activations_peak_bytes, memory.activations_bytes, memory.gradients_bytes):
        return "the activations of the plain baseline were not measured"
    for setting, phrase in ACTIVATIONS_DEPEND_ON.items():
        if getattr(strategy, setting) != getattr(baseline.strategy, setting):
            return f"the plain baseline has other activations: it differs in {phrase}"
    return None


def _at_the_peak(
    strategy: Strategy,
    all_gradients: int,
    share: float,
    rank_batch: int,
    baseline: MeasuredBaseline,
    flying: InFlight,
) -> tuple[int, int, int]:
    """Return gradients, activations and what is in flight at the peak, bytes.

    During backward gradients grow while activations shrink, and the peak is where their sum is
    largest. Activations scale with the samples in flight, gradients do not. Where gradients live
    throughout the step (views into buckets, accumulation) the peak is that of the activations;
    with both, gradients that wait under ``no_sync`` are no views yet and come on top, `Memory`
    counts them with the activations.

    Elsewhere three points of the curve are known, and the largest of their sums is taken: before
    the first gradient, at the baseline's own peak, after the last. Without groups in flight it is
    never above the true peak of the scaled curve.

    Args:
        strategy: How the model is trained.
        all_gradients: Of the rank, when backward is through.
        share: The part of all ranks' gradients that this is.
        rank_batch: Samples of a rank's step.
        baseline: The plain baseline as it was measured.
        flying: Unsharded groups in flight.
    """
    views = isinstance(strategy, Zero1 | Compressed) or keeps_gradients_in_buckets(strategy)
    views = views or (isinstance(strategy, Ddp) and strategy.gradient_as_bucket_view)
    accumulate = strategy.accumulate if isinstance(strategy, Ddp | FromFramework) else 1
    scale = rank_batch / accumulate / baseline.batch
    memory = baseline.memory
    if keeps_gradient_shard(strategy):
        return all_gradients, round(scale * (memory.activations_peak_bytes or 0)), 0
    at_peak = scale * (memory.activations_bytes or 0)
    most = scale * (memory.activations_peak_bytes or 0)
    if views or accumulate > 1:
        beside_the_buckets = all_gradients if views and accumulate > 1 else 0
        return all_gradients, round(most) + beside_the_buckets, 0
    begun = round(share * (memory.gradients_bytes or 0))
    points = (
        (0, most, flying.forward),
        (begun, at_peak, flying.backward if memory.gradients_bytes else flying.forward),
        (all_gradients, 0.0, flying.backward),
    )
    gradients, activations, flying_bytes = max(points, key=sum)
    return gradients, round(activations), flying_bytes


def predict_state_bytes(strategy: Strategy, num_parameters: int, world_size: int = 1) -> int:
    """Return a rank's bytes of parameters, gradients, AdamW's moments and gradient buckets.

    Activations, and groups of parameters that are gathered, come on top and are not predicted
    here.

    Args:
        strategy: How the model is trained.
        num_parameters: Ψ, parameters of the model.
        world_size: N.
    """
    copied = _copies_gradients(strategy)
    vectors = 1 if copied else _kept_vectors(strategy)
    buckets = vectors * FP32_BYTES * num_parameters
    sharding = sharding_of(strategy, world_size)
    return round(_state(sharding, num_parameters).total) + buckets


def _state(sharding: Sharding, num_parameters: int) -> StateBytes:
    """Return what a rank holds of the model's state on its device."""
    if sharding.on_host:
        return StateBytes(0, 0, 0)
    return zero_state(sharding.stage, num_parameters, sharding.shards)


@dataclass(frozen=True)
class Division:
    """What one dimension leaves of what a rank would hold without it.

    Attributes:
        num_ranks: Along it.
        state: Part of parameters, gradients and optimizer, 0 to 1.
        activations: Likewise.
    """

    axis: str
    num_ranks: int
    state: float
    activations: float


@dataclass(frozen=True)
class Saving:
    """What one dimension takes off, bytes."""

    axis: str
    num_ranks: int
    state_bytes: float
    activations_bytes: float


def savings_of(one_process: MemoryPrediction, divisions: Sequence[Division]) -> list[Saving]:
    """Return what each dimension takes off one process, in order; those of one rank are left out.

    Args:
        one_process: Its predicted peak, every part of it known.
        divisions: The dimensions in the order in which they act.
    """
    state = float(
        one_process.parameters_bytes
        + (one_process.gradients_bytes or 0)
        + (one_process.optimizer_bytes or 0)
    )
    activations = float(one_process.activations_bytes or 0)
    found = []
    for one in divisions:
        if one.num_ranks == 1:
            continue
        left_state, left_activations = one.state * state, one.activations * activations
        found.append(
            Saving(one.axis, one.num_ranks, state - left_state, activations - left_activations)
        )
        state, activations = left_state, left_activations
    return found


def in_flight_part(schedule: str, stage: int, stages: int, microbatches: int) -> float | None:
    """Return the most microbatches that a stage keeps, as a part of all; None: not known.

    GPipe keeps all; 1F1B at most as many as there are stages from this one on (Narayanan et al.
    2021, §2.2).
    """
    if schedule == "gpipe":
        return 1.0
    if schedule == "1f1b":
        return min(stages - stage, microbatches) / microbatches
    return None


def divided_part(parameters: Sequence[tuple[int, bool]], ranks: int) -> float:
    """Return the part of some parameters that is left to a rank which divides some of them.

    Args:
        parameters: Elements, and whether they are divided, of each.
        ranks: Among which.
    """
    whole = sum(size for size, _ in parameters)
    left = sum(size / ranks if divided else size for size, divided in parameters)
    return left / whole if whole else 1.0
