"""A pipeline's schedule as data: which rank does what in which order; nothing runs here.

Words: p ranks of a pipeline, v chunks of the model (virtual stages) on each, p·v stages, m
microbatches. ``F`` is a forward pass, ``B`` a whole backward pass; schedules that split it have
``I``, the gradient of the stage's input, and later ``W``, that of its weights (Qi et al. 2023,
"Zero Bubble Pipeline Parallelism", §2).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Self

Kind = Literal["F", "B", "I", "W"]
KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")


class Action(NamedTuple):
    """One piece of work: one microbatch through one stage, in one direction."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an action as it is written: ``2F13``.

        Raises:
            ValueError: It is none.
        """
        kind = next((letter for letter in KINDS if letter in text), None)
        if kind is None:
            raise ValueError(f"{text!r} is not an action")
        stage, microbatch = text.split(kind)
        return cls(int(stage), kind, int(microbatch))


@dataclass(frozen=True)
class Schedule:
    """What every rank of one pipeline does, in order.

    Attributes:
        ranks: The actions of each rank.
    """

    name: str
    num_microbatches: int
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the pipeline, p."""
        return len(self.ranks)

    @cached_property
    def rank_of_stage(self) -> dict[int, int]:
        """Stage → the rank that it lives on."""
        return {a.stage: rank for rank, actions in enumerate(self.ranks) for a in actions}

    @property
    def num_stages(self) -> int:
        """Stages of all ranks together, p·v."""
        return len(self.rank_of_stage)

    def in_flight(self) -> list[int]:
        """Return, for each rank, the most stage inputs that it ever keeps for a backward pass.

        A microbatch counts once for every stage of the rank that it has passed forwards; until
        its ``B``, or its ``W`` where the backward pass is split.
        """
        peaks = []
        for actions in self.ranks:
            held = peak = 0
            for action in actions:
                held += {"F": 1, "I": 0}.get(action.kind, -1)
                peak = max(peak, held)
            peaks.append(peak)
        return peaks


def needs(action: Action, num_stages: int) -> Action | None:
    """Return the action whose result comes to ``action`` from another stage; None: there is none.

    Where the other stage's backward pass is split, the ``B`` that is returned stands for its
    ``I``: either makes the gradient of the input.
    """
    if action.kind == "F":
        return Action(action.stage - 1, "F", action.microbatch) if action.stage else None
    if action.kind == "W" or action.stage == num_stages - 1:
        return None
    return Action(action.stage + 1, "B", action.microbatch)


def check(schedule: Schedule) -> None:
    """Hold a schedule against what every schedule has to do.

    Every microbatch passes every stage forwards once and backwards once, a stage lives on one
    rank, and a rank does a microbatch's ``F`` before its ``B`` or ``I``, and that before ``W``.
    Whether ranks wait for one another for ever is what `dry_run` tells.

    Raises:
        ValueError: The first contradiction, in words.
    """
    home: dict[int, int] = {}
    for rank, actions in enumerate(schedule.ranks):
        done: dict[tuple[int, int], str] = {}
        for action in actions:
            if home.setdefault(action.stage, rank) != rank:
                raise ValueError(
                    f"{action}: stage {action.stage} is on rank {home[action.stage]} and on {rank}"
                )
            key = (action.stage, action.microbatch)
            before = done.get(key, "")
            if before + action.kind not in ("F", "FB", "FI", "FIW"):
                raise ValueError(
                    f"rank {rank}: {action} comes after {before or 'nothing'} of its microbatch"
                )
            done[key] = before + action.kind
        for (stage, microbatch), passed in done.items():
            if passed not in ("FB", "FIW"):
                raise ValueError(f"rank {rank}: no backward pass for {stage}F{microbatch}")
    _check_complete(schedule, home)


def _check_complete(schedule: Schedule, home: dict[int, int]) -> None:
    if sorted(home) != list(range(len(home))) or not home:
        raise ValueError(f"the stages are not numbered 0, 1, …: {sorted(home)}")
    forward = {a for actions in schedule.ranks for a in actions if a.kind == "F"}
    wanted = [
        Action(stage, "F", microbatch)
        for stage in home
        for microbatch in range(schedule.num_microbatches)
    ]
    missing = next((action for action in wanted if action not in forward), None)
    if missing is not None:
        raise ValueError(f"{missing} is missing")
    if len(forward) != len(wanted):
        raise ValueError(f"there are more than {schedule.num_microbatches} microbatches")


def one_after_another(
    forward: Sequence[Action], backward: Sequence[Action], warmup: int
) -> Iterable[Action]:
    """Yield ``warmup`` forward passes, then one backward pass after each, then the rest."""
    yield from forward[:warmup]
    for f, b in zip(forward[warmup:], backward, strict=False):
        yield f
        yield b
    yield from backward[len(forward) - warmup :]
