"""What a pipeline's traced steps tell: stage times, the bubble, and who waited for whose result.

The bubble is the idle time of a dry run: the actions that every rank did, in the order in which it
did them, each with the measured time of its stage, nothing for transfer. What a rank waits for
others beyond that is wait. See docs/definitions.md, "Pipelines".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scalebench.costmodel.pipeline_schedule import Action, Schedule, check, needs
from scalebench.costmodel.pipeline_step import Deadlock, Timeline, dry_run
from scalebench.grouping import by_key
from scalebench.records.measured.trace import ClockAlignment, Trace, TracedAction
from scalebench.spec import Pipeline
from scalebench.trace.events import Intervals, intersect, intervals, length_s, union
from scalebench.trace.operations.matching import shown_on_rank_0


@dataclass(frozen=True)
class PipelineTrace:
    """One pipeline of a launch, examined.

    Attributes:
        ranks: Its ranks, in the order of their first stages; counted over all pipelines.
        clocks: Rank → how its clock stands against rank 0's; a rank without: it is the same.
        chosen: The typical steps; see `LaunchAttribution.typical_steps`.
    """

    strategy: Pipeline
    ranks: tuple[int, ...]
    traces: Mapping[int, Trace]
    clocks: Mapping[int, ClockAlignment]
    chosen: Sequence[int]

    @cached_property
    def schedule(self) -> Schedule | None:
        """What the ranks did, in their order; None: a step was not traced whole."""
        step = self.chosen[0]
        orders = tuple(
            tuple(_plain(a) for a in self.traces[rank].actions if a.step == step)
            for rank in self.ranks
        )
        schedule = Schedule(self.strategy.schedule, self.strategy.microbatches, orders)
        try:
            check(schedule)
        except ValueError:
            return None
        return schedule

    @cached_property
    def seconds(self) -> dict[tuple[str, int], float]:
        """Kind and stage → what one such action takes: median over microbatches and steps."""
        found = by_key(((a.kind, a.stage), a.end_ns - a.start_ns) for a in self._actions())
        return {key: float(np.median(lasted)) / 1e9 for key, lasted in sorted(found.items())}

    @cached_property
    def timeline(self) -> Timeline | None:
        """The dry run with the measured times; None: a step was not traced whole."""
        if self.schedule is None:
            return None
        try:
            return dry_run(self.schedule, self.seconds)
        except (Deadlock, KeyError):
            return None

    def bubble_s(self, rank: int) -> float:
        """Return how long a rank has nothing to do by the dry run, seconds per step."""
        if self.timeline is None:
            return 0.0
        return self.timeline.idle_s(self.ranks.index(rank))

    def spans(self, rank: int, step: int) -> dict[Action, tuple[int, int]]:
        """Return when a rank did what in a step: begin and end on rank 0's clock, nanoseconds."""
        shift = self._shift(rank)
        return {
            _plain(a): (a.start_ns + shift, a.end_ns + shift)
            for a in self.traces[rank].actions
            if a.step == step
        }

    @cached_property
    def idle_ratio(self) -> float:
        """The part of all ranks' traced steps in which no action ran: bubble and all the rest."""
        busy_ns = sum(a.end_ns - a.start_ns for a in self._actions())
        steps = [self.traces[rank].steps[step] for rank in self.ranks for step in self.chosen]
        return 1 - busy_ns / sum(end - begin for begin, end in steps)

    @cached_property
    def waiting_ratios(self) -> list[float]:
        """For each typical step, the part in which ranks waited for results of one another.

        Of all ranks' time together. The bubble as it was, with what transfer and stragglers added
        to it.
        """
        ratios = []
        for step in self.chosen:
            spans = {rank: intervals([self.traces[rank].steps[step]]) for rank in self.ranks}
            waited = sum(length_s(intersect(self.waiting(r), span)) for r, span in spans.items())
            ratios.append(waited / sum(length_s(span) for span in spans.values()))
        return ratios

    def waiting(self, rank: int) -> Intervals:
        """Return when a rank had nothing to do but to wait for a result of another rank.

        From the end of one action until the result that the next one needs was made; and while
        a send held the rank up, because the rank that takes it was busy with something else. On
        the rank's own clock, after its trace's origin.
        """
        held_up = intersect(
            union(self._untaken(rank)), intervals(self.traces[rank].blocked_sending)
        )
        return union(self._unmade(rank), held_up)

    def _needs(self, rank: int) -> Iterator[tuple[TracedAction, tuple[int, Action] | None, int]]:
        """Yield each action, step and action that it needs, and when the rank was done before."""
        num_stages = len(self.ranks) * self.strategy.chunks
        trace = self.traces[rank]
        for step, (begin, _) in enumerate(trace.steps):
            reached = begin
            for action in (a for a in trace.actions if a.step == step):
                source = needs(_plain(action), num_stages)
                yield action, None if source is None else (step, source), reached
                reached = action.end_ns

    def _unmade(self, rank: int) -> Intervals:
        """Return from the end of each action until what the next one needs was made."""
        waits: list[tuple[int, int]] = []
        for action, source, reached in self._needs(rank):
            if source is not None and source in self._made_ns:
                here = self._made_ns[source] - self._shift(rank)
                waits.append((reached, max(reached, min(here, action.start_ns))))
        return union(intervals(waits))

    def _untaken(self, rank: int) -> Intervals:
        """Return from the end of each action until the rank that needs its result came for it.

        That is, until the end of what that rank did before.
        """
        spans = [
            (end - self._shift(rank), taken - self._shift(rank))
            for key, end in self._made_ns.items()
            if self._maker[key] == rank and (taken := self._taken_ns.get(key, end)) > end
        ]
        return intervals(spans)

    @cached_property
    def _taken_ns(self) -> dict[tuple[int, Action], int]:
        """Step and action → when another rank came for its result, on rank 0's clock."""
        return {
            source: reached + self._shift(rank)
            for rank in self.ranks
            for _, source, reached in self._needs(rank)
            if source is not None and self._maker.get(source) != rank
        }

    @cached_property
    def _maker(self) -> dict[tuple[int, Action], int]:
        """Step and action → the rank that did it; I counts as B."""
        return {
            (action.step, _whole(action)): rank
            for rank in self.ranks
            for action in self.traces[rank].actions
            if action.kind != "W"
        }

    @cached_property
    def _made_ns(self) -> dict[tuple[int, Action], int]:
        """Step and action → when its result was made, on rank 0's clock; I counts as B."""
        return {
            (action.step, _whole(action)): action.end_ns + self._shift(rank)
            for rank in self.ranks
            for action in self.traces[rank].actions
            if action.kind != "W"
        }

    def _shift(self, rank: int) -> int:
        return shown_on_rank_0(self.traces[rank].origin_ns, rank, self.clocks)

    def _actions(self) -> list[TracedAction]:
        chosen = frozenset(self.chosen)
        return [a for rank in self.ranks for a in self.traces[rank].actions if a.step in chosen]


def _plain(action: TracedAction) -> Action:
    return Action(action.stage, action.kind, action.microbatch)


def _whole(action: TracedAction) -> Action:
    plain = _plain(action)
    return plain._replace(kind="B") if plain.kind == "I" else plain


def pipelines_of(
    strategy: Pipeline,
    traces: Mapping[int, Trace],
    clocks: Mapping[int, ClockAlignment],
    chosen: Sequence[int],
) -> tuple[PipelineTrace, ...]:
    """Return the pipelines of a launch, side by side; none if their actions were not traced."""
    if not all(trace.actions for trace in traces.values()):
        return ()
    size = len(traces) // strategy.pipelines(len(traces))
    ranks = sorted(traces)
    return tuple(
        PipelineTrace(strategy, tuple(ranks[i : i + size]), traces, clocks, chosen)
        for i in range(0, len(ranks), size)
    )
