"""How many tokens each expert has, step by step, in a bounded space."""

from collections.abc import Sequence
from typing import Any

MOST_STEPS = 128
"""Steps that are kept; of more, every second, every fourth, and so on."""

OfLayer = tuple[list[int], list[int], list[int]]
"""Tokens of this rank by expert, how many chose it, and tokens of the experts here."""


class LoadHistory:
    """Notes what the layers of each step tell; thins out what it has when it becomes too much.

    Args:
        num_layers: Layers with experts.
        num_ranks: Among which the experts are divided.
    """

    def __init__(self, num_layers: int, num_ranks: int) -> None:
        self.num_layers, self.num_ranks = num_layers, num_ranks
        self.row_bytes = self.samples = 0
        self.stride = 1
        self.num_steps = 0
        self.steps: list[int] = []
        self.kept: list[list[OfLayer]] = []
        self.last: dict[int, OfLayer] = {}

    def note(
        self, layer: int, counts: Sequence[int], chosen: Sequence[int], here: Sequence[int]
    ) -> None:
        """Note a layer of the step; a layer that is computed again tells the same again."""
        self.last[layer] = list(counts), list(chosen), list(here)

    def end_step(self, samples: int) -> None:
        """Close a step on so many samples."""
        self.samples = self.samples or samples  # those of the first step: of the whole batch
        step, self.num_steps = self.num_steps, self.num_steps + 1
        if step % self.stride or len(self.last) < self.num_layers:
            return
        self.steps.append(step)
        self.kept.append([self.last[layer] for layer in range(self.num_layers)])
        if len(self.steps) > MOST_STEPS:
            self.stride *= 2
            self.steps, self.kept = self.steps[::2], self.kept[::2]

    def facts(self) -> dict[str, Any]:
        """Return the steps, and step → layer → expert of what was noted."""
        names = ("kept", "chosen", "here")
        told: dict[str, Any] = {
            "steps": list(self.steps),
            "ranks": self.num_ranks,
            "row_bytes": self.row_bytes,
            "samples": self.samples,
        }
        return told | {
            name: [[layer[which] for layer in step] for step in self.kept]
            for which, name in enumerate(names)
        }
