"""A pipeline's schedule as data: which rank does what in which order; nothing runs here.

The schedules by name: who may be asked for what, and the order of their actions.

The orders are those that ``torch.distributed.pipelining`` carries out; a test compares
the two. Two of them (`FROM_TORCH`) follow no short rule: torch itself is asked.

Words: p ranks of a pipeline, v chunks of the model (virtual stages) on each, p·v stages, m
microbatches. ``F`` is a forward pass, ``B`` a whole backward pass; schedules that split it have
``I``, the gradient of the stage's input, and later ``W``, that of its weights (Qi et al. 2023,
"Zero Bubble Pipeline Parallelism", §2).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Self

from scalebench.errors import unknown_name
from scalebench.spec import Pipeline

Kind = Literal["F", "B", "I", "W"]
KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
"""Of p ranks, m microbatches and v chunks → the actions of every rank."""


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


Orders = Callable[[int, int, int], list[list[Action]]]


def gpipe(num_ranks: int, num_microbatches: int, _chunks: int) -> list[list[Action]]:
    """All forward passes, then all backward passes (Huang et al. 2019, GPipe)."""
    return [
        [Action(rank, kind, i) for kind in _WHOLE for i in range(num_microbatches)]
        for rank in range(num_ranks)
    ]


def one_forward_one_backward(p: int, m: int, _chunks: int) -> list[list[Action]]:
    """As few forward passes ahead as keep all ranks busy (Narayanan et al. 2019, PipeDream)."""
    return [
        list(
            one_after_another(
                [Action(rank, "F", i) for i in range(m)],
                [Action(rank, "B", i) for i in range(m)],
                min(m, p - 1 - rank),
            )
        )
        for rank in range(p)
    ]


def looped_breadth_first(p: int, m: int, v: int) -> list[list[Action]]:
    """All microbatches through a chunk, then the next (Lamy-Poirier 2022)."""
    return [
        [Action(chunk * p + rank, "F", i) for chunk in range(v) for i in range(m)]
        + [Action(chunk * p + rank, "B", i) for chunk in reversed(range(v)) for i in range(m)[::-1]]
        for rank in range(p)
    ]


def interleaved(p: int, m: int, v: int) -> list[list[Action]]:
    """1F1B over several chunks, p microbatches at a time (Narayanan et al. 2021, §2.2.2)."""
    orders = []
    for rank in range(p):
        forward, backward, size = _in_rounds(p, m, v, rank, "B")
        warmup = min((v - 1) * size + 2 * (p - 1 - rank), m * v)
        orders.append(list(one_after_another(forward, backward, warmup)))
    return orders


def interleaved_zero_bubble(p: int, m: int, v: int) -> list[list[Action]]:
    """The same, ``W`` put off to where a rank would idle (Qi et al. 2023, ZB-H1)."""
    orders = []
    for rank in range(p):
        forward, backward, size = _in_rounds(p, m, v, rank, "I")
        warmup = min((v - 1) * size + (p - 1 - rank), m * v)
        orders.append(_with_weights(list(one_after_another(forward, backward, warmup)), delay=rank))
    return orders


_WHOLE: tuple[Kind, Kind] = ("F", "B")


def _in_rounds(
    p: int, m: int, v: int, rank: int, back: Kind
) -> tuple[list[Action], list[Action], int]:
    """Return a rank's forward and backward passes, chunk by chunk within rounds; a round's size."""
    num_rounds = max(1, m // p)
    size = m // num_rounds
    rounds = [range(size * i, size * (i + 1)) for i in range(num_rounds)]
    forward = [Action(c * p + rank, "F", i) for some in rounds for c in range(v) for i in some]
    backward = [
        Action(c * p + rank, back, i) for some in rounds for c in reversed(range(v)) for i in some
    ]
    return forward, backward, size


def _with_weights(actions: Sequence[Action], delay: int) -> list[Action]:
    """Put in a ``W`` after every ``I``, ``delay`` of them behind; the rest at the end."""
    done: list[Action] = []
    pending: list[Action] = []
    for action in actions:
        done.append(action)
        if action.kind == "I":
            pending.append(action._replace(kind="W"))
            if len(pending) > delay:
                done.append(pending.pop(0))
    return done + pending


class Style(NamedTuple):
    """One schedule: what torch calls it, and what it asks for.

    Attributes:
        chunks: Chunks per rank: ``one``, ``any`` number, or exactly ``two``.
        orders: None: torch is asked.
    """

    torch_name: str
    chunks: str
    orders: Orders | None


STYLES: dict[str, Style] = {
    "gpipe": Style("GPipe", "one", gpipe),
    "1f1b": Style("1F1B", "one", one_forward_one_backward),
    "interleaved-1f1b": Style("Interleaved1F1B", "any", interleaved),
    "looped-bfs": Style("LoopedBFS", "any", looped_breadth_first),
    "zero-bubble": Style("InterleavedZeroBubble", "any", interleaved_zero_bubble),
    "zbv": Style("ZBVZeroBubble", "two", None),
    "dualpipev": Style("DualPipeV", "two", None),
}
FROM_TORCH = tuple(name for name, style in STYLES.items() if style.orders is None)


SPLITS_BACKWARD = ("zero-bubble", "zbv", "dualpipev")
"""Schedules with I and W."""


def style_of(name: str) -> Style:
    """Return a schedule's style.

    Raises:
        UsageError: There is none of this name; the text lists the valid ones.
    """
    if name not in STYLES:
        raise unknown_name("schedule", name, list(STYLES))
    return STYLES[name]


def why_not(name: str, p: int, m: int, v: int) -> str | None:
    """Say why torch refuses a schedule; None: it does not.

    Args:
        name: Of `STYLES`.
        p: Ranks of the pipeline.
        m: Microbatches.
        v: Chunks per rank.
    """
    stages = p * v
    if name in ("1f1b", "dualpipev") and m < stages:
        return f"{name} needs as many microbatches as stages: {m} for {stages} stages"
    if name in ("interleaved-1f1b", "zero-bubble") and m % max(1, m // p):
        return (
            f"{name} runs in equal rounds of at least {p} microbatches: {m} cannot be split into "
            f"{m // p} rounds"
        )
    return None


def why_no_pipeline(pipeline: Pipeline, rank_batch: int, world_size: int) -> str | None:
    """Say why N ranks cannot run a pipeline; None: they can, as far as the model has the layers.

    Args:
        pipeline: What is asked for.
        rank_batch: Samples of one pipeline's step.
        world_size: N.
    """
    side_by_side, m = pipeline.pipelines(world_size), pipeline.microbatches
    if world_size % side_by_side:
        return f"{world_size} ranks cannot be split into {side_by_side} pipelines"
    if pipeline.compile and pipeline.schedule in SPLITS_BACKWARD:
        return (
            f"{pipeline.schedule} splits the backward pass, which torch cannot do with a compiled "
            "module; give --no-compile"
        )
    if rank_batch % m:
        return f"{rank_batch} samples per pipeline cannot be split into {m} microbatches"
    return why_not(pipeline.schedule, world_size // side_by_side, m, pipeline.chunks)


def plan_schedule(name: str, p: int, m: int, v: int = 1) -> Schedule:
    """Return a schedule that follows a short rule.

    Args:
        name: Of `STYLES`, and not among `FROM_TORCH`.
        p: Ranks of the pipeline.
        m: Microbatches.
        v: Chunks per rank; 1 where the schedule has no others.

    Raises:
        ValueError: torch would refuse; or only torch knows the order.
    """
    style = style_of(name)
    reason = why_not(name, p, m, v)
    if reason is not None:
        raise ValueError(reason)
    if style.orders is None:
        raise ValueError(f"only torch knows the order of {name}")
    orders = style.orders(p, m, v)
    return Schedule(name, m, tuple(tuple(actions) for actions in orders))


def bubble_law(name: str, p: int, m: int, v: int) -> float | None:
    """Return a rank's idle part of a step when all stages take equally long, by the law.

    ``(p - 1) / (v·m + p - 1)``; v is 1 for GPipe and 1F1B. Source: Narayanan et al. 2021, §2.2.
    None: the schedule has no such law; a dry run tells.
    """
    if name not in ("gpipe", "1f1b", "interleaved-1f1b"):
        return None
    return (p - 1) / (v * m + p - 1)
