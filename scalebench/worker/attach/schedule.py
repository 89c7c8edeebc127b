"""Which steps are measured how: decided once, by rank 0, from the steps of the warm-up.

All of it in plain Python: the script's interpreter need not have numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

FIRST_LOOK = 10
LOOK_EVERY = 5
"""After how many steps the warm-up is looked at, and how often from then on."""

MAX_STEPS = 4
MIN_STEPS = 2
KINDS = ("paired", "traced", "bare")
MARGIN_S = 0.5
MARGIN_STEPS = 5
"""How long before its first change of behaviour a schedule is sent to the other ranks."""


class Block(NamedTuple):
    """Steps of one kind; the first of them counts for nothing. See `records.rank.Block`."""

    kind: str
    first: int
    num_steps: int

    @property
    def end(self) -> int:
        """The step after the last one."""
        return self.first + self.num_steps


class Schedule(NamedTuple):
    """From which step on which phase runs.

    Attributes:
        period: Calls of optimizers that make a step.
        steady: Whether the steady state was found before the limits of the warm-up.
        first_clean: The first step that counts.
        clean_end: The step after the last of the clean window.
        blocks: The rounds after it. Where the window is short, they begin once every rank knows.
        end: The step before which the script is ended.
    """

    period: int
    steady: bool
    first_clean: int
    clean_end: int
    blocks: list[Block]
    end: int

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {**self._asdict(), "blocks": [list(block) for block in self.blocks]}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Schedule:
        """Return what `to_json` was made of."""
        return cls(**{**stored, "blocks": [Block(*block) for block in stored["blocks"]]})


def steady_start(step_s: Sequence[float]) -> int | None:
    """Return the first steady step, or None: `scalebench.stats.steady_start` in plain Python."""
    n = len(step_s)
    if n < FIRST_LOOK:
        return None
    x = [step - step_s[-1] for step in step_s]
    total = squares = 0.0
    errors = [0.0] * n
    for i in range(n - 1, -1, -1):
        total += x[i]
        squares += x[i] * x[i]
        left = n - i
        errors[i] = max(squares - total * total / left, 0.0) / left**2
    candidates = errors[: n - 2]
    first = candidates.index(min(candidates))
    return first if first <= n // 2 else None


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def is_time_to_look(num_steps: int) -> bool:
    """Tell whether the warm-up is looked at after so many steps."""
    return num_steps >= FIRST_LOOK and num_steps % LOOK_EVERY == 0


def decide(step_s: Sequence[float], plan: dict[str, Any], period: int) -> Schedule | None:
    """Return the schedule, or None: the warm-up goes on.

    Args:
        step_s: All steps so far, seconds; the first one is the script's start and left out.
        plan: The fields of `scalebench.spec.StepPlan`.
        period: Calls of optimizers that make a step.
    """
    so_far = len(step_s)
    first = steady_start(step_s[1:])
    gave_up = so_far > plan["max_warmup_steps"] or sum(step_s[1:]) >= plan["max_warmup_s"]
    if first is None and not gave_up:
        return None
    usual_s = max(median(step_s[-LOOK_EVERY:]), 1e-6)
    margin = max(MARGIN_STEPS, math.ceil(MARGIN_S / usual_s))
    if plan["steps"] is not None:
        first_clean = so_far
        clean_end = so_far + plan["steps"] + 1
    else:
        first_clean = so_far if first is None else first + 1
        window_s = max(plan["window_s"], plan["energy_s"] or 0.0)
        num_clean = max(plan["min_steps"], math.ceil(window_s / usual_s)) + 1
        clean_end = max(first_clean + num_clean, so_far + margin)
    first_round = max(clean_end, so_far + margin)
    blocks = rounds(first_round, usual_s, plan)
    end = blocks[-1].end if blocks else first_round
    return Schedule(period, first is not None, first_clean, clean_end, blocks, end)


def rounds(first: int, step_s: float, plan: dict[str, Any]) -> list[Block]:
    """Return the rounds from a step on: short blocks clean, traced and bare, by turns."""
    if not plan["trace"]:
        return []
    num_rounds, count = 1, MIN_STEPS
    for steps in (MAX_STEPS, MIN_STEPS):
        fitting = int(plan["rounds_s"] / (step_s * len(KINDS) * (steps + 1)))
        if fitting >= 2:
            num_rounds, count = min(fitting, plan["max_rounds"]), steps
            break
    kinds = KINDS * num_rounds
    return [Block(kind, first + i * (count + 1), count + 1) for i, kind in enumerate(kinds)]
