"""POP's efficiencies of a row: see `scalebench.records.rows.budget.PopEfficiencies`."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from scalebench.analysis.attribution import LARGEST_ROOTED_SHARE, LaunchAttribution
from scalebench.analysis.rows.attribution import why_not_traced
from scalebench.analysis.rows.fields import Context, Fields, Unavailable, null
from scalebench.analysis.rows.launches import Launches
from scalebench.grouping import by_key
from scalebench.records.measured.trace import TracedOperation
from scalebench.records.rows.budget import PopEfficiencies
from scalebench.stats import estimate_over_launches
from scalebench.trace.intervals import Intervals
from scalebench.trace.operations.matching import SYNCHRONISING, shown_on_rank_0, together


def efficiencies(
    useful_s: Sequence[float],
    runtime_s: float,
    ideal_s: float | None = None,
    reference_s: float | None = None,
) -> dict[str, float]:
    """Return POP's efficiencies, those that are known.

    All in seconds. ``ideal_s``: the runtime on an ideal network. ``reference_s``: useful time of
    all ranks of the reference, for the same work.
    """
    mean, longest = float(np.mean(useful_s)), max(useful_s)
    found = {
        "parallel_efficiency": mean / runtime_s,
        "load_balance": mean / longest,
        "communication_efficiency": longest / runtime_s,
    }
    if ideal_s is not None:
        found["serialisation_efficiency"] = longest / ideal_s
        found["transfer_efficiency"] = ideal_s / runtime_s
    if reference_s is not None:
        found["computation_scaling"] = reference_s / sum(useful_s)
        found["global_efficiency"] = mean / runtime_s * found["computation_scaling"]
    return found


def pop_of_row(row: Launches, run: Context) -> Fields:
    """Return POP's efficiencies of a row: geometric means over its launches."""
    if not row.attributed:
        return null(["pop"], why_not_traced(row))
    base = run.baseline(row)
    reasons: dict[str, str] = {}
    each: list[dict[str, float]] = []
    for repeat, launch in row.attributed.items():
        times = launch.breakdowns.values()
        try:
            ideal_s = ideal_network_s(launch)
        except Unavailable as why:
            ideal_s = None
            reasons |= dict.fromkeys(("serialisation_efficiency", "transfer_efficiency"), str(why))
        reference = base.attributed.get(repeat) if base else None
        if reference is None or base is None:
            why_not = row.no_ratio or "the plain baseline was not traced in every round"
            reasons |= dict.fromkeys(("computation_scaling", "global_efficiency"), why_not)
        useful_s = [one.step_s - one.exposed_comm_s for one in times]
        each.append(
            efficiencies(
                useful_s,
                max(one.step_s for one in times),
                ideal_s,
                _useful_s(reference, row, base) if reference and base else None,
            )
        )
    names = [name for name in each[0] if name not in reasons]
    known = {name: estimate_over_launches([one[name] for one in each]) for name in names}
    return {"pop": PopEfficiencies(**known, unavailable=reasons)}


def _useful_s(launch: LaunchAttribution, row: Launches, base: Launches) -> float:
    """Return the useful time of the baseline's launch for the samples of a row's step."""
    times = launch.breakdowns.values()
    samples = row.cell.global_batch / base.cell.global_batch
    return samples * sum(one.step_s - one.exposed_comm_s for one in times)


def ideal_network_s(launch: LaunchAttribution) -> float:
    """Return the traced step of the slowest rank on a network that takes no time, seconds.

    Ranks do what they did, and an operation is through when the last rank has reached it.

    Raises:
        Unavailable: The traces do not tell which rank waited for which.
    """
    if launch.not_apart:
        raise Unavailable(launch.not_apart)
    for of_rank in launch.breakdowns.values():
        other = sum(one.exposed_s for one in of_rank.by_kind if one.kind not in SYNCHRONISING)
        if other > LARGEST_ROOTED_SHARE * of_rank.step_s:
            raise Unavailable("not all ranks wait for all in sends, receives and broadcasts")
    operations = by_key((next(iter(one.values())).step, one) for one in together(launch.traces)[0])
    useful = {rank: UsefulTime(own.exposed) for rank, own in launch.partitions.items()}
    steps = [
        _ideal_step_ns(launch, step, operations.get(step, ()), useful)
        for step in launch.typical_steps
    ]
    return max(float(np.mean([one[rank] for one in steps])) for rank in launch.traces) / 1e9


class UsefulTime:
    """A rank's clock that stands still during exposed communication; nanoseconds."""

    def __init__(self, exposed: Intervals) -> None:
        self._starts: list[int] = exposed[:, 0].tolist()
        self._ends: list[int] = exposed[:, 1].tolist()
        self._before: list[int] = [0, *np.cumsum(exposed[:, 1] - exposed[:, 0]).tolist()]

    def at(self, time: int) -> int:
        """Return what this clock shows at a time."""
        i = bisect_left(self._starts, time)
        if i == 0:
            return time
        return time - self._before[i - 1] - min(time, self._ends[i - 1]) + self._starts[i - 1]


def _ideal_step_ns(
    launch: LaunchAttribution,
    step: int,
    operations: Sequence[Mapping[int, TracedOperation]],
    useful: Mapping[int, UsefulTime],
) -> dict[int, int]:
    """Return how long a step takes each rank where operations take no time, nanoseconds."""
    traces, clocks = launch.traces, launch.clocks
    shift = {rank: shown_on_rank_0(t.origin_ns, rank, clocks) for rank, t in traces.items()}
    events = []
    for number, operation in enumerate(operations):
        last = max(op.start_ns + shift[rank] for rank, op in operation.items())
        for rank, op in operation.items():
            events.append((op.start_ns + shift[rank], False, number, rank, op.start_ns))
            events.append((max(op.end_ns + shift[rank], last), True, number, rank, op.end_ns))
    spans = {rank: trace.steps[step] for rank, trace in traces.items()}
    gone = {  # the ideal time less the useful one
        rank: begin + shift[rank] - useful[rank].at(begin) for rank, (begin, _) in spans.items()
    }
    through: dict[int, int] = {}
    for _, ends, number, rank, at in sorted(events):
        here = gone[rank] + useful[rank].at(at)
        if not ends:
            through[number] = max(through.get(number, here), here)
        elif useful[rank].at(at - 1) == useful[rank].at(at):  # it stood still until the end
            gone[rank] += max(through[number] - here, 0)
    return {
        rank: gone[rank] + useful[rank].at(end) - begin - shift[rank]
        for rank, (begin, end) in spans.items()
    }
