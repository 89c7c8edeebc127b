"""A schedule with times: when each action begins and ends, and how long ranks have nothing to do.

A rank does its actions in order, each as soon as what it needs from other stages has come. Sends
do not hold their rank up, but the link from one rank to another carries one message at a time.
Source of the model: docs/definitions.md, "Pipelines".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scalebench.costmodel.pipelines.schedule import Action, Schedule, needs

Seconds = Mapping[tuple[str, int], float]
"""Kind and stage → what one such action takes, seconds."""


class Deadlock(ValueError):
    """The ranks wait for one another for ever; the text says who for what."""


@dataclass(frozen=True)
class Timeline:
    """What a dry run yields; seconds after the step began, in the order of the rank's actions.

    Attributes:
        overhead_s: Of each action, before it begins: the rank is busy then, too.
    """

    schedule: Schedule
    start_s: tuple[tuple[float, ...], ...]
    end_s: tuple[tuple[float, ...], ...]
    overhead_s: float = 0.0

    @cached_property
    def step_s(self) -> float:
        """When the last action ends."""
        return max(ends[-1] for ends in self.end_s if ends)

    def busy_s(self, rank: int) -> float:
        """Return how long a rank works."""
        pairs = zip(self.start_s[rank], self.end_s[rank], strict=True)
        return sum(end - start + self.overhead_s for start, end in pairs)

    def idle_s(self, rank: int) -> float:
        """Return how long a rank has nothing to do."""
        return max(self.step_s - self.busy_s(rank), 0.0)

    @property
    def bubble_ratio(self) -> float:
        """The idle part of all ranks' time together; dimensionless."""
        ranks = range(self.schedule.num_ranks)
        return sum(map(self.idle_s, ranks)) / (self.schedule.num_ranks * self.step_s)


def equal_times(num_stages: int, forward_s: float = 1.0, backward_s: float = 2.0) -> Seconds:
    """Return the times of stages that all take equally long; I and W share a backward pass."""
    of_kind = {"F": forward_s, "B": backward_s, "I": backward_s / 2, "W": backward_s / 2}
    return {(kind, stage): s for kind, s in of_kind.items() for stage in range(num_stages)}


def dry_run(
    schedule: Schedule, seconds: Seconds, transfer_s: float = 0.0, overhead_s: float = 0.0
) -> Timeline:
    """Work out when every action begins and ends.

    Args:
        schedule: What the ranks do.
        seconds: How long it takes them.
        transfer_s: From the end of an action until its result is on another rank, seconds; later
            if the link still carries an earlier one.
        overhead_s: What an action costs its rank before it begins, seconds.

    Raises:
        Deadlock: The ranks wait for one another for ever.
    """
    home, num_stages = schedule.rank_of_stage, schedule.num_stages
    ready: dict[Action, float] = {}  # when a result is where it is needed; I counts as B
    link_free: dict[tuple[int, int], float] = {}  # from rank, to rank → when it can carry a message
    waiting: dict[Action, int] = {}  # what a rank waits for → the rank
    reached = [0.0] * schedule.num_ranks
    starts: list[list[float]] = [[] for _ in schedule.ranks]
    ends: list[list[float]] = [[] for _ in schedule.ranks]
    can_go_on = list(range(schedule.num_ranks))
    while can_go_on:
        rank = can_go_on.pop()
        actions = schedule.ranks[rank]
        for place in range(len(ends[rank]), len(actions)):
            action = actions[place]
            source = needs(action, num_stages)
            begin = reached[rank]
            if source is not None:
                if source not in ready:
                    waiting[source] = rank
                    break
                begin = max(begin, ready[source])
            begin += overhead_s
            reached[rank] = begin + seconds[action.kind, action.stage]
            starts[rank].append(begin)
            ends[rank].append(reached[rank])
            if action.kind != "W":
                made = action._replace(kind="B") if action.kind == "I" else action
                ready[made] = reached[rank]
                target = home.get(made.stage + (1 if made.kind == "F" else -1), rank)
                if target != rank:
                    sent = max(reached[rank], link_free.get((rank, target), 0.0))
                    ready[made] = link_free[rank, target] = sent + transfer_s
                if made in waiting:
                    can_go_on.append(waiting.pop(made))
    if waiting:
        raise Deadlock(_who_waits(schedule, ends, waiting))
    return Timeline(schedule, tuple(map(tuple, starts)), tuple(map(tuple, ends)), overhead_s)


def _who_waits(
    schedule: Schedule, ends: Sequence[Sequence[float]], waiting: Mapping[Action, int]
) -> str:
    told = sorted(
        f"rank {rank} waits with {schedule.ranks[rank][len(ends[rank])]} for {source}"
        for source, rank in waiting.items()
    )
    return f"{schedule.name} deadlocks: " + ", ".join(told)
