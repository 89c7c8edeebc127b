"""The loss budget: where the time went that a step takes beyond the ideal one.

``T_ideal = T_1 · p``: the plain baseline's step, times the part p of its batch that a rank now
has. What is missing, ``T_N − T_ideal``, is split into::

    compute inflation   the same work takes longer than at N=1 (contention, smaller batches)
    exposed transfer    communication that no computation hides
    wait                for other ranks, inside communication
    bubble              idle by the pipeline's schedule
    codec               encoding and decoding of compressed gradients
    copies              copies and fills of GPU memory while nothing else runs, beyond the
                        baseline's
    data stall          waiting for the next batch, beyond the baseline's
    other idle          nothing of these, beyond the baseline's
    residual            what the parts leave of the gap

The parts come from traced steps, the two step times from clean ones. What a traced step takes
beyond the clean steps next to it is taken off where tracing added it, which depends on the device:
see `scalebench.analysis.attribution`. All parts are then scaled from the rank's own step to
the headline's: the machine may have become faster or slower in between, launches differ, and the
headline is the job's pace. The residual closes the sum exactly. It is small only if the parts,
which are the profiler's, add up to the step as the loop's own clock has it.

Exposed communication of a rank by the dimension of the mesh whose group carried it.

Every moment of a traced step in which a rank communicates and computes nothing belongs to the
dimensions whose operations are in flight then, in equal parts. While the rank waits, it belongs to
those in whose operations it waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution, StepParts, clean_parts
from scalebench.analysis.steps import launch_step_s
from scalebench.grouping import by_key
from scalebench.records.measured.trace import Trace
from scalebench.records.rows.budget import COPIES, MEASURED, WAIT, AxisLoss, Budget, Part
from scalebench.stats import Estimate, estimate_signed
from scalebench.trace import events
from scalebench.trace.breakdown import covered_by, in_flight, is_between_two, within


@dataclass(frozen=True)
class ExposedAlong:
    """Exposed communication along one dimension, seconds per traced step."""

    transfer_s: float
    wait_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.transfer_s + self.wait_s


def exposed_by_axis(launch: LaunchAttribution, rank: int) -> dict[str | None, ExposedAlong]:
    """Return dimension → exposed transfer and wait of a rank; they sum to its breakdown's.

    None stands for operations of no dimension.

    Args:
        launch: Of a strategy without a bubble of its own.
        rank: Whose operations.
    """
    trace, chosen = launch.traces[rank], launch.typical_steps
    step = launch.partitions[rank]
    flying = {
        axis: events.subtract(within(step.steps, spans), step.compute)
        for axis, spans in in_flight_by_axis(trace, frozenset(chosen)).items()
    }
    waited_in = launch.matched.waiting_along.get(rank, {})
    exposed, waiting = events.union(*flying.values()), events.union(*waited_in.values())
    waits = events.divided(events.intersect(exposed, waiting), waited_in)
    transfers = events.divided(events.subtract(exposed, waiting), flying)
    per_step = 1e-9 / len(chosen)
    return {
        axis: ExposedAlong(per_step * transfers[axis], per_step * waits.get(axis, 0.0))
        for axis in flying
    }


def in_flight_by_axis(trace: Trace, chosen: frozenset[int]) -> dict[str | None, events.Intervals]:
    """Return dimension → when a rank communicated along it in some steps, as `in_flight` has it."""
    by_axis = by_key((op.axis, op) for op in trace.operations if op.step in chosen)
    if not trace.blocked:
        return {axis: covered_by(operations) for axis, operations in by_axis.items()}
    between_two = {axis for axis, ops in by_axis.items() if any(is_between_two(op) for op in ops)}
    return {
        axis: in_flight(trace, by_axis.get(axis, ()))
        if axis in (between_two or {None})
        else covered_by(by_axis[axis])
        for axis in dict.fromkeys((*by_axis, *(() if between_two else (None,))))
    }


Round = tuple[LaunchAttribution, LaunchAttribution]
"""A row's and its baseline's launch of one round."""

LARGEST_RESIDUAL = 0.02
"""Of the step: a larger residual means that the parts do not explain it."""

LARGEST_DRIFT = 0.25
"""Steps that differ more than this from the clean ones do not have their proportions."""


def losses(parts: StepParts, baseline: StepParts, batch_part: float) -> dict[str, float]:
    """Return what each part adds to the ideal step, seconds.

    ``parts`` and ``baseline`` are of clean steps; ``batch_part`` is a rank's part of the baseline's
    batch.
    """
    ideal = {part: batch_part * baseline[part.activity] for part in MEASURED if part.beyond}
    return {part.field: parts[part.activity] - ideal.get(part, 0.0) for part in MEASURED}


def closed_budget(
    ideal_s: float,
    measured_s: float,
    rank: int,
    parts: Mapping[str, Estimate],
    not_apart: str | None = None,
    drift: float = 0.0,
) -> Budget:
    """Return the budget whose residual closes the sum; see `Budget` for the arguments.

    ``parts``: field of a part → estimate over the launches. Where ``not_apart`` says why transfer
    and wait could not be separated, all of both is exposed transfer, and there is no wait.
    ``drift`` is that of the launch in which it is largest.
    """
    known = {name: part.value for name, part in parts.items()}
    residual_s = measured_s - ideal_s - sum(known.values())
    seconds = {part.field: known.get(part.field) for part in MEASURED} | {"residual_s": residual_s}
    is_small = abs(residual_s) <= LARGEST_RESIDUAL * measured_s
    return Budget(
        ideal_s=ideal_s,
        **seconds,
        measured_s=measured_s,
        not_apart=not_apart,
        drift=drift,
        rank=rank,
        closes=is_small and abs(drift) <= LARGEST_DRIFT,
        points={
            name.removesuffix("_s"): value / measured_s
            for name, value in seconds.items()
            if value is not None
        },
        estimates=dict(parts),
    )


def loss_budget(
    rounds: Sequence[Round],
    rank: int,
    step_s: tuple[float, float],
    batch_part: float,
    not_apart: str | None = None,
    over: Sequence[int] = (),
) -> Budget:
    """Work out the budget of a row.

    The parts are proportions of the headline's steps, so that they sum to its gap. Their
    intervals come from each round's own steps: launches differ in those as well. Rounds that were
    traced while the machine was busy with something else are left out, if most were not.

    ``rounds`` has the row's and the baseline's launch of every round in which both were traced;
    ``step_s`` has the clean steps of both, seconds. ``over``: ranks whose mean is taken instead of
    ``rank`` alone, where they do different work: only together do they have the baseline's.
    """
    apart = not_apart is None
    copies_known = all(launch.knows_copies for pair in rounds for launch in pair)
    unknown = [part for part, known in ((WAIT, apart), (COPIES, copies_known)) if not known]
    kept = _steady(rounds)
    headline: list[dict[str, float]] = []
    own: list[dict[str, float]] = []
    for row, base in kept:
        for found, (row_s, base_s) in (
            (headline, step_s),
            (own, (launch_step_s(row.result), launch_step_s(base.result))),
        ):
            parts = _mean([clean_parts(row, one, row_s, apart) for one in over or (rank,)])
            of_round = losses(parts, clean_parts(base, 0, base_s), batch_part)
            found.append(_held_by_others(of_round, unknown))
    names = [part.field for part in MEASURED if part not in unknown]
    budget = closed_budget(
        ideal_s=batch_part * step_s[1],
        measured_s=step_s[0],
        rank=rank,
        parts={name: _part([f[name] for f in headline], [f[name] for f in own]) for name in names},
        not_apart=not_apart,
        drift=max((drift_of_round(pair) for pair in kept), key=abs),
    )
    by_axis = None if over else losses_by_axis(kept, rank, budget, apart)
    left_out = len(rounds) - len(kept)
    return budget.model_copy(update={"rounds_left_out": left_out, "by_axis": by_axis})


def losses_by_axis(
    rounds: Sequence[Round], rank: int, budget: Budget, apart: bool
) -> list[AxisLoss] | None:
    """Divide exposed transfer and wait of a budget among the dimensions of the mesh.

    ``rounds`` are those that the budget rests on. Unless transfer and wait are ``apart``, all of it
    is transfer.

    Returns:
        The dimensions in the order in which the traces have them; None: no operation has one.
    """
    found: list[dict[str | None, tuple[float, float]]] = []
    own: list[dict[str | None, float]] = []
    for row, _ in rounds:
        along = exposed_by_axis(row, rank)
        in_headline = clean_parts(row, rank, budget.measured_s, apart)
        in_launch = clean_parts(row, rank, launch_step_s(row.result), apart)
        exposed_s = in_headline["exposed_transfer"] + in_headline["wait"]
        traced_s = sum(one.total_s for one in along.values())
        scale = exposed_s / traced_s if traced_s > 0 else 0.0
        to_launch = sum(in_launch.values()) / sum(in_headline.values())
        found.append(
            {
                axis: (scale * one.transfer_s, scale * one.wait_s)
                if apart
                else (scale * one.total_s, 0.0)
                for axis, one in along.items()
            }
        )
        own.append({axis: scale * to_launch * one.total_s for axis, one in along.items()})
    axes = list(dict.fromkeys(axis for of_round in found for axis in of_round))
    if not any(axes):
        return None
    losses_found = []
    for axis in axes:
        pairs = [of_round.get(axis, (0.0, 0.0)) for of_round in found]
        transfer_s, wait_s = (float(np.mean([pair[i] for pair in pairs])) for i in range(2))
        exposed = _part([sum(pair) for pair in pairs], [one.get(axis, 0.0) for one in own])
        rest_s = budget.measured_s - exposed.value
        losses_found.append(
            AxisLoss(
                axis=axis,
                exposed_transfer_s=transfer_s,
                wait_s=wait_s if apart else None,
                exposed_s=exposed,
                efficiency_without=budget.ideal_s / rest_s if rest_s > 0 else None,
            )
        )
    return losses_found


def _steady(rounds: Sequence[Round]) -> Sequence[Round]:
    """Return the rounds whose traced moments were like their clean windows.

    All of them where those are not at least two, and more than half: the budget does not close.
    """
    steady = [pair for pair in rounds if abs(drift_of_round(pair)) <= LARGEST_DRIFT]
    return steady if len(steady) >= 2 and 2 * len(steady) > len(rounds) else rounds


def _held_by_others(found: Mapping[str, float], unknown: Sequence[Part]) -> dict[str, float]:
    """Return the losses with each unknown part put to the part that holds it."""
    held = dict(found)
    for part in unknown:
        held[f"{part.held_by}_s"] += held.pop(part.field)
    return held


def _mean(parts: Sequence[StepParts]) -> StepParts:
    return {name: float(np.mean([one[name] for one in parts])) for name in parts[0]}


def _part(of_headline: Sequence[float], of_rounds: Sequence[float]) -> Estimate:
    """Return the mean of the first with the interval's width of the second."""
    center, width = estimate_signed(of_headline), estimate_signed(of_rounds).half_width
    if width is None:
        return center
    ends = {"low": center.value - width, "high": center.value + width}
    return center.model_copy(update=ends)


def drift(launch: LaunchAttribution) -> float:
    """Return the clean step next to the traced ones over that of the clean window, minus 1."""
    return launch.paired_step_s / launch.typical_clean_s - 1


def drift_of_round(pair: Round) -> float:
    """Return the larger drift of a round's two launches; see `drift`."""
    return max(map(drift, pair), key=abs)


def waits_most(launches: Sequence[LaunchAttribution]) -> int:
    """Return the rank that waits most for others, over all launches; of equals the lowest.

    A pipeline's bubble is waiting, too.
    """
    ranks = sorted(launches[0].breakdowns)
    of_ranks = [[launch.breakdowns[rank].parts for launch in launches] for rank in ranks]
    wait_s = [np.mean([one["wait"] + one["bubble"] for one in parts]) for parts in of_ranks]
    return ranks[int(np.argmax(wait_s))]
