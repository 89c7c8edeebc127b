"""The load of every expert over the steps of a launch, as the page draws it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalebench.analysis.rows.experts import counted_steps, load_of, tokens_of
from scalebench.records.run import CellResult


@dataclass(frozen=True)
class ExpertLoad:
    """Tokens by expert and step, warm-up included.

    Attributes:
        times_even: Tokens over the even share of the step; shape (layers · experts, steps).
        experts: Layer and number of each row.
        steps: Number of each column.
        steady_from: First step of the clean window.
    """

    suite: str
    case: str
    world_size: int
    times_even: NDArray[np.float32]
    experts: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    steady_from: int


def expert_load_of(result: CellResult) -> ExpertLoad | None:
    """Return the load of a launch up to its last clean step; None: it recorded none."""
    first = result.ranks[0]
    load = load_of(first)
    if not load:
        return None
    tokens = tokens_of(result, "kept", clean=False)  # [steps, layers, experts]
    until = max(counted_steps(result, clean=True)) + 1
    tokens = tokens[:until]
    times = tokens / np.maximum(tokens.mean(axis=2, keepdims=True), 1e-12)
    _, layers, experts = tokens.shape
    clean = [block.first for block in first.blocks if block.phase == "clean"]
    return ExpertLoad(
        suite=result.cell.suite,
        case=result.cell.case,
        world_size=result.cell.world_size,
        times_even=times.reshape(len(times), -1).T.astype(np.float32),
        experts=tuple((layer, expert) for layer in range(layers) for expert in range(experts)),
        steps=tuple(load["steps"][:until]),
        steady_from=min(clean, default=0),
    )
