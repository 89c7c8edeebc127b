"""Attribution of one row of the summary: estimates over its launches, and its loss budget.

POP's efficiencies of a row: see `scalebench.records.rows.budget.PopEfficiencies`.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot

import numpy as np

from scalebench import units
from scalebench.analysis.attribution import LARGEST_ROOTED_SHARE, LaunchAttribution, why_not
from scalebench.analysis.budget import loss_budget, waits_most
from scalebench.analysis.rows.axes import NO_MESH, axes_of_row, pipeline_figures
from scalebench.analysis.rows.launches import (
    NO_LAUNCH,
    Context,
    Fields,
    Launches,
    Ratios,
    Unavailable,
    known,
    null,
)
from scalebench.analysis.steps import launch_step_s
from scalebench.grouping import by_key, totals
from scalebench.records.measured.trace import TracedOperation
from scalebench.records.rows.budget import Budget, ComputeInflation, PopEfficiencies, RankTimes
from scalebench.records.rows.steps import OperationFigures, Straggler
from scalebench.records.rows.strategies import ExposedEstimates
from scalebench.records.run import CellResult
from scalebench.spec import Pipeline
from scalebench.stats import Estimate, estimate_over_launches, estimate_signed
from scalebench.trace.events import Intervals
from scalebench.trace.operations.matching import (
    SYNCHRONISING,
    shown_on_rank_0,
    stragglers,
    together,
)

VISIBLE = 0.01
"""Of the step: what estimates may differ by before anybody is told."""

LARGEST_PROBE_EFFECT = 0.005
"""Of the step: what the clean loop's own marks may cost."""

MAY_BE_HIDDEN = (
    "on CPU it is not known how much of the sends and receives is hidden behind computation"
)
NOT_ALL_PASSES = "the trace does not contain every forward and backward pass of a step"

BREAKDOWN_FIELDS = ("comm_s", "exposed_comm_s", "exposed_transfer_s", "wait_s", "compute_s")

COPY_FIELDS = ("copies_s", "comm_beside_copies_s")
"""Likewise, of rows on GPUs."""


@dataclass(frozen=True)
class StepTimes:
    """The headline's clean steps, seconds; ``baseline_s`` is None without a baseline."""

    row_s: float
    baseline_s: float | None


def attribution_of_row(row: Launches, run: Context) -> Fields:
    """Attribute a row, by the steps of the rounds that its efficiency rests on."""
    base = run.baseline(row)
    of_base = base.good if base else {}
    rounds = [repeat for repeat in row.good if repeat in of_base]
    row_s = _mean_step_s(row.good, rounds or list(row.good))
    steps = StepTimes(row_s, _mean_step_s(of_base, rounds)) if row_s else None
    fields = attribute_row(row, base, steps)
    budget = fields["budget"]
    if isinstance(budget, Budget):
        inflation = inflation_of(row, base, run.ratios, budget)
        if inflation is not None:
            fields["budget"] = budget.model_copy(update={"inflation": inflation})
    return fields


def _mean_step_s(good: Mapping[int, CellResult], rounds: Sequence[int]) -> float | None:
    steps = [launch_step_s(good[repeat]) for repeat in rounds]
    return estimate_over_launches(steps).value if steps else None


def attribute_row(of_row: Launches, baseline: Launches | None, steps: StepTimes | None) -> Fields:
    """Attribute a row."""
    if not of_row.attributed or steps is None:
        return null(FIELDS, why_not_traced(of_row))
    launches = list(of_row.attributed.values())
    rank = waits_most(launches)
    probe = estimate_signed([launch.probe_effect for launch in launches])
    estimates = _three_estimates(launches, rank)
    budget = _budget(of_row.attributed, baseline, rank, steps)
    lost = any(trace.num_impossible for launch in launches for trace in launch.traces.values())
    stamps = {
        f"probe effect: {units.percent(probe.value)}": probe.low is not None
        and probe.low > LARGEST_PROBE_EFFECT,
        "estimates disagree": bool(estimates.disagreements(VISIBLE * steps.row_s)),
        "kernels lost": lost,
        "budget open": isinstance(budget, Budget) and not budget.closes,
    }
    return {
        **_breakdown(launches, rank),
        "payload_bytes": _volume(launches, rank, LaunchAttribution.payload_bytes),
        "wire_bytes": _volume(launches, rank, LaunchAttribution.wire_bytes),
        "trace_overhead": estimate_signed([x.trace_overhead for x in launches]),
        "probe_effect": probe,
        "exposed_comm_estimates": estimates,
        "communication": _communication(launches, rank),
        "axes": known(axes_of_row(launches, rank) or None, NO_MESH),
        "unknown_kernels": _unknown_kernels(launches),
        "stragglers": _stragglers(launches),
        "budget": budget,
        "stamps": [name for name, applies in stamps.items() if applies],
    }


def why_not_traced(row: Launches) -> str:
    """Say why no launch of a row can be attributed."""
    reasons = [reason for result in row.good.values() if (reason := why_not(result))]
    return reasons[0] if reasons else NO_LAUNCH


FIELDS = (
    *BREAKDOWN_FIELDS,
    *COPY_FIELDS,
    *("comm_compute_ratio", "overlap_ratio", "bubble_ratio", "pipeline"),
    *("wire_bytes", "payload_bytes"),
    *("trace_overhead", "probe_effect", "exposed_comm_estimates", "communication"),
    *("axes", "stragglers", "unknown_kernels", "budget"),
)
"""Every field of a row that this module answers for."""


def _breakdown(launches: Sequence[LaunchAttribution], rank: int) -> Fields:
    parts = [launch.breakdowns[rank] for launch in launches]
    ratios = [p.comm_s / p.compute_s for p in parts if p.compute_s > 0]
    overlaps = [1 - p.exposed_comm_s / p.comm_s for p in parts if p.comm_s > 0]
    not_apart, no_copies = _not_apart(launches), _why_no_copies(launches)
    blocked = any(trace.blocked for launch in launches for trace in launch.traces.values())
    return {
        **{n: estimate_signed([getattr(p, n) for p in parts]) for n in BREAKDOWN_FIELDS},
        **(null(["exposed_transfer_s", "wait_s"], not_apart) if not_apart else {}),
        **{n: estimate_signed([getattr(p, n) for p in parts]) for n in COPY_FIELDS},
        **(null(COPY_FIELDS, no_copies) if no_copies else {}),
        "comm_compute_ratio": known(
            estimate_signed(ratios) if ratios else None, "nothing computed"
        ),
        "overlap_ratio": known(
            estimate_signed(overlaps) if overlaps and not blocked else None,
            MAY_BE_HIDDEN if blocked else "no communication",
        ),
        **_bubble(launches),
    }


def _why_no_copies(launches: Sequence[LaunchAttribution]) -> str | None:
    if launches[0].result.cell.device == "cpu":
        return "on CPU copying is part of the computation"
    return (
        None
        if _know_copies(launches)
        else "traces of version 0.1 do not say when memory was copied"
    )


def _know_copies(launches: Sequence[LaunchAttribution]) -> bool:
    return all(launch.knows_copies for launch in launches)


def _bubble(launches: Sequence[LaunchAttribution]) -> Fields:
    """Return the idle part of the schedule's dry run, mean over the pipelines side by side."""
    if not isinstance(launches[0].result.cell.strategy, Pipeline):
        return {
            "bubble_ratio": Unavailable("only pipelines have a bubble"),
            "pipeline": Unavailable("the ranks form no pipeline"),
        }
    found = [
        [p.timeline.bubble_ratio for p in launch.pipelines if p.timeline is not None]
        for launch in launches
    ]
    if not all(found):
        return null(["bubble_ratio", "pipeline"], NOT_ALL_PASSES)
    return {
        "bubble_ratio": estimate_signed([float(np.mean(ratios)) for ratios in found]),
        "pipeline": pipeline_figures([p for launch in launches for p in launch.pipelines]),
    }


def _not_apart(launches: Sequence[LaunchAttribution]) -> str | None:
    """Return why transfer and wait cannot be separated in one of the launches; None: they can."""
    return next((launch.not_apart for launch in launches if launch.not_apart), None)


def _volume(
    launches: Sequence[LaunchAttribution],
    rank: int,
    read: Callable[[LaunchAttribution, int], float | None],
) -> int | Unavailable:
    found = [read(launch, rank) for launch in launches]
    sizes = [value for value in found if value is not None]
    if len(sizes) < len(found):
        return Unavailable("the trace does not give the size of every operation")
    return round(float(np.median(sizes)))


def _three_estimates(launches: Sequence[LaunchAttribution], rank: int) -> ExposedEstimates:
    """Return exposed communication by trace, by difference, and by DDP's logger, per step."""
    readers: dict[str, Callable[[LaunchAttribution], float | None]] = {
        "trace": lambda launch: launch.breakdowns[rank].exposed_comm_s,
        "differential": lambda launch: launch.without_synchronisation_s(rank),
        "ddp_logger": lambda launch: launch.logged_exposed_s(rank),
    }
    found: dict[str, Estimate] = {}
    for name, read in readers.items():
        values = [value for launch in launches if (value := read(launch)) is not None]
        if len(values) == len(launches):
            found[name] = estimate_signed(values)
    always = launches[0].result.cell.strategy.always_communicates
    unavailable = {"differential": always} if always and "differential" not in found else {}
    return ExposedEstimates(
        trace=found.get("trace"),
        differential=found.get("differential"),
        ddp_logger=found.get("ddp_logger"),
        disagree=disagreements(found),
        unavailable=unavailable,
    )


def disagreements(estimates: Mapping[str, Estimate]) -> list[list[str]] | None:
    """Return the pairs whose intervals do not overlap; None: intervals are missing."""
    known = [(name, one.ends) for name, one in estimates.items() if one.ends]
    if len(known) < max(2, len(estimates)):
        return None
    pairs = combinations(known, 2)
    return [[a, b] for (a, one), (b, other) in pairs if one[1] < other[0] or other[1] < one[0]]


def _communication(launches: Sequence[LaunchAttribution], rank: int) -> list[OperationFigures]:
    """Return the figures of every kind and every bucket: means over the launches."""
    parts = [launch.breakdowns[rank] for launch in launches]
    sorts = by_key(((f.kind, f.ordinal), f) for one in parts for f in one.by_kind + one.by_bucket)
    return [_mean_figures(figures, len(launches)) for figures in sorts.values()]


def _mean_figures(figures: Sequence[OperationFigures], num_launches: int) -> OperationFigures:
    def mean(name: str) -> float:
        return float(np.sum([getattr(f, name) for f in figures])) / num_launches

    sized = all(f.num_bytes is not None for f in figures)
    means = {name: mean(name) for name in ("count", "total_s", "exposed_s", "hidden_s")}
    num_bytes = mean("num_bytes") if sized else None
    return figures[0].model_copy(update={**means, "num_bytes": num_bytes})


def _stragglers(launches: Sequence[LaunchAttribution]) -> list[Straggler]:
    """Return which rank came last how often; empty where there is one rank."""
    if launches[0].result.cell.world_size == 1:
        return []
    return stragglers([arrival for launch in launches for arrival in launch.matched.arrivals])


def _unknown_kernels(launches: Sequence[LaunchAttribution]) -> dict[str, float]:
    """Return kernels that may be communication: name → seconds over all ranks and launches."""
    traces = [trace for launch in launches for trace in launch.traces.values()]
    return totals(one for trace in traces for one in trace.unknown.items())


def _budget(
    looked: Mapping[int, LaunchAttribution], baseline: Launches | None, rank: int, steps: StepTimes
) -> Budget | Unavailable:
    base = baseline.attributed if baseline else {}
    rounds = [(looked[repeat], base[repeat]) for repeat in looked if repeat in base]
    if not rounds or steps.baseline_s is None:
        if baseline and baseline.good and not base:
            return Unavailable(f"the plain baseline was not traced: {why_not_traced(baseline)}")
        return Unavailable("no round in which the plain baseline was also traced")
    own, plain = (launch.result.cell for launch in rounds[0])
    batch_part = own.global_batch / own.world_size / plain.global_batch
    not_apart = _not_apart(list(looked.values()))
    # The ranks of a pipeline do different parts of the work.
    over = sorted(rounds[0][0].breakdowns) if isinstance(own.strategy, Pipeline) else ()
    step_s = (steps.row_s, steps.baseline_s)
    budget = loss_budget(rounds, rank, step_s, batch_part, not_apart, over)
    launches = list(looked.values())
    return budget.model_copy(
        update={
            "skew": float(np.mean([launch.skew(rank) for launch in launches])),
            "clock_bound_s": max(launch.clock_bound_s for launch in launches),
            "mean_over_ranks": bool(over),
            "ranks": [_rank_times(launches, r) for r in sorted(rounds[0][0].breakdowns)],
        }
    )


def _rank_times(launches: Sequence[LaunchAttribution], rank: int) -> RankTimes:
    """Return one rank's traced step and its parts: means over the launches, seconds."""
    parts = [launch.breakdowns[rank] for launch in launches]
    unknown = () if _know_copies(launches) else (*COPY_FIELDS, "copies_alone_s")
    names = [name for name in RankTimes.model_fields if name not in ("rank", *unknown)]
    means = {name: float(np.mean([getattr(p, name) for p in parts])) for name in names}
    return RankTimes(rank=rank, **means)


NOT_MEASURED = "plain ranks that train at once were not measured: rows did not take turns"
NOT_PLANNED = "plain ranks that train at once are not launched with --quick"
OVERSUBSCRIBED = "more ranks than cores: what sharing them costs is not separated"
NOT_TOGETHER = "there is no round in which plain ranks alone and at once both succeeded"
IN_STAGES = "a pipeline computes microbatches in stages, which no plain step shows"


def inflation_of(
    row: Launches, base: Launches | None, ratios: Ratios, budget: Budget
) -> ComputeInflation | None:
    """Split the compute inflation of a row's budget; None: nothing tells any part of it."""
    if base is None or row.cell.world_size == 1:
        return None
    crowded = ratios.contention(row, base)
    if crowded is None:
        why = _why_not_measured(row, base, ratios)
        return ComputeInflation(unavailable=dict.fromkeys(PARTS, why))
    in_stages = isinstance(row.cell.strategy, Pipeline)
    smaller = None if in_stages else ratios.smaller_batch(row, base)
    batch_s = None if smaller is None else _seconds(smaller, budget.ideal_s)
    before_s = budget.ideal_s * (1.0 if smaller is None else smaller.value)
    contention_s = _seconds(crowded, before_s)
    whole = budget.estimates.get("compute_inflation_s")
    return ComputeInflation(
        smaller_batch_s=batch_s,
        contention_s=contention_s,
        own_operators_s=None if whole is None else _rest(whole, batch_s, contention_s),
        contention=crowded,
        unavailable={"smaller_batch_s": IN_STAGES} if in_stages else {},
    )


def _why_not_measured(row: Launches, base: Launches, ratios: Ratios) -> str:
    if ratios.has_independent(row, base):
        return NOT_TOGETHER
    if row.cell.oversubscribed:
        return OVERSUBSCRIBED
    took_turns = any(result.shared_with for result in row.good.values())
    return NOT_PLANNED if took_turns else NOT_MEASURED


PARTS = ("smaller_batch_s", "contention_s", "own_operators_s")


def _seconds(ratio: Estimate, step_s: float) -> Estimate:
    """Return what a step takes longer that takes ``ratio`` times as long."""
    ends = [None if end is None else (end - 1) * step_s for end in (ratio.low, ratio.high)]
    return Estimate(value=(ratio.value - 1) * step_s, low=ends[0], high=ends[1], n=ratio.n)


def _rest(whole: Estimate, *parts: Estimate | None) -> Estimate:
    """Return what known parts leave of the whole; the errors are independent."""
    known = [part for part in parts if part is not None]
    value = whole.value - sum(part.value for part in known)
    widths = [one.half_width for one in (whole, *known)]
    if any(width is None for width in widths):
        return Estimate(value=value, n=whole.n)
    width = hypot(*(width for width in widths if width is not None))
    return Estimate(value=value, low=value - width, high=value + width, n=whole.n)


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
