"""What each dimension of a mesh takes off the memory of a rank, by its law.

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

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.costmodel.memory import MemoryPrediction


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
