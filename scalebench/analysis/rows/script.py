"""What a row says of a user's script alone: between its steps, and how it is distributed."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from scalebench.analysis.attribution import LARGEST_DIFFERENCE
from scalebench.analysis.rows.launches import (
    NO_LAUNCH,
    Context,
    Fields,
    Launches,
    Unavailable,
    known,
    null,
)
from scalebench.analysis.rows.rank_excess import stalls_of
from scalebench.analysis.rows.script_checks import checks_of
from scalebench.analysis.steps import clean_pace, launch_step_s, period_of
from scalebench.grouping import totals
from scalebench.records.measured.rank import RankRecord, StepGap
from scalebench.records.rows import script
from scalebench.records.rows.steps import StepKinds
from scalebench.records.run import CellResult
from scalebench.spec import Script
from scalebench.stats import estimate_over_launches

MOST_NAMED = 3

NOT_RECORDED = "the launch did not record it"
OF_NO_SCRIPT = {
    "outside_step": "only a script does something else between its steps",
    "wrappers": "the strategy says how the model is distributed",
    "script": "it is no script of the user's own",
}
"""Field → why no other strategy has it."""


def script_of_row(row: Launches, context: Context) -> Fields:
    """Return what only a script's row has, and its marks."""
    if not isinstance(row.cell.strategy, Script):
        return {name: Unavailable(why) for name, why in OF_NO_SCRIPT.items()}
    good = list(row.good.values())
    ranks = [rank for result in good for rank in result.ranks]
    if not ranks:
        return null(OF_NO_SCRIPT, NO_LAUNCH)
    early = [rank.ended_after for rank in ranks if rank.ended_after is not None]
    killed = sorted({rank.rank for rank in ranks if rank.facts.get("killed_at_end")})
    named = f"rank{'s' if killed[1:] else ''} {', '.join(map(str, killed))}"
    noted = all(rank.gaps is not None for rank in ranks)
    return {
        "wrappers": known(_wrappers(ranks[0]), "the modules have no wrapper that is recognised"),
        "script": known(_facts(row, context), NOT_RECORDED),
        "outside_step": known(_outside(row) if noted else None, NOT_RECORDED),
        "stamps": [
            *([f"ended early: after {min(early)} steps"] if early else []),
            *([f"killed at its end: {named}"] if killed else []),
        ],
    }


def _wrappers(rank: RankRecord) -> list[script.Wrapper] | None:
    """Return what a rank has wrapped its modules in; None: nothing that is known."""
    stored = rank.facts.get("wrappers")
    try:
        return [script.Wrapper.model_validate(one) for one in stored or ()] or None
    except ValidationError:  # of a version that knows others
        return None


def _facts(row: Launches, context: Context) -> script.ScriptFacts | None:
    """Return what was seen of the script's own code; None: an older version did not look."""
    launches = list(row.good.values())
    ranks = [rank for result in launches for rank in result.ranks]
    stored = ranks[0].facts
    searches = [s for rank in ranks if (s := rank.facts.get("unused_search_s")) is not None]
    if "groups" not in stored:
        return None
    try:
        return script.ScriptFacts(
            host_waits=_host_waits(stored.get("host_waits")),
            host_waits_unavailable=stored.get("host_waits_unavailable"),
            unused_search_s=median(searches) if searches else None,
            loader=stored.get("loader"),
            groups=stored["groups"],
            calls_per_step=stored.get("calls_per_step"),
            backwards_per_step=stored.get("backwards_per_step"),
            batch_wait_s=_batch_wait(launches),
            checks=checks_of(row, context),
        )
    except (ValidationError, KeyError, TypeError):  # of a version that knows others
        return None


def _batch_wait(launches: Sequence[CellResult]) -> float | None:
    stalls = [stalls_of(result) for result in launches]
    found = [float(one.mean(axis=1).min()) for one in stalls if one is not None and one.size]
    return sum(found) / len(found) if found else None


def _host_waits(stored: Mapping[str, Any] | None) -> script.HostWaits | None:
    if stored is None:
        return None
    return script.HostWaits(
        per_step=stored["calls"] / stored["steps"],
        steps=stored["steps"],
        seconds_per_step=stored["seconds"] / stored["steps"] if "seconds" in stored else None,
        places=[script.HostWaitPlace.model_validate(place) for place in stored["places"]],
    )


def _outside(row: Launches) -> script.OutsideSteps:
    found = [
        (rank.rank, repeat, gap)
        for repeat, result in row.good.items()
        for rank in result.ranks
        for gap in _of_clean_window(rank)
    ]
    by_rank = totals((rank, gap.outside_s) for rank, _, gap in found)
    longest = max(by_rank, key=by_rank.__getitem__, default=0)
    seconds = by_rank.get(longest, 0.0)
    whole = sum(
        rank.step_s[i]
        for r in row.good.values()
        for rank in r.ranks
        if rank.rank == longest
        for i in _clean(rank)
    )
    return script.OutsideSteps(
        seconds=seconds,
        share=seconds / whole if whole else 0.0,
        num_gaps=sum(rank == longest for rank, _, _ in found),
        largest=[
            script.LongestGap(
                step=g.step, rank=rank, repeat=repeat, seconds=g.outside_s, kind=_kind(g)
            )
            for rank, repeat, g in _longest_of_each(found)[:MOST_NAMED]
        ],
        **_parts([gap for rank, _, gap in found if rank == longest]),
    )


def _longest_of_each(found: Sequence[tuple[int, int, StepGap]]) -> list[tuple[int, int, StepGap]]:
    """Return each gap once, of the rank where it was longest; the longest first."""
    kept: dict[tuple[int, int], tuple[int, int, StepGap]] = {}
    for rank, repeat, gap in sorted(found, key=lambda one: -one[2].outside_s):
        kept.setdefault((repeat, gap.step), (rank, repeat, gap))
    return list(kept.values())


def _parts(gaps: Sequence[StepGap]) -> dict[str, float]:
    """Return how gaps divide into evaluation and checkpoints; empty: not recorded."""
    if any(gap.evaluation_s is None or gap.checkpoint_s is None for gap in gaps):
        return {}
    return {
        "evaluation_s": sum(gap.evaluation_s or 0.0 for gap in gaps),
        "checkpoint_s": sum(gap.checkpoint_s or 0.0 for gap in gaps),
    }


def _kind(gap: StepGap) -> Literal["evaluation", "checkpoint"] | None:
    """Return what took most of a gap; None: not recorded."""
    if gap.evaluation_s is None or gap.checkpoint_s is None:
        return None
    return "evaluation" if gap.evaluation_s >= gap.checkpoint_s else "checkpoint"


def _of_clean_window(rank: RankRecord) -> list[StepGap]:
    steps = _clean(rank)
    return [gap for gap in rank.gaps or () if gap.step in steps and gap.outside_s > 0]


def _clean(rank: RankRecord) -> set[int]:
    blocks = [block for block in rank.blocks if block.phase == "clean"]
    return {i for b in blocks for i in range(b.first, b.first + b.count)}


ALIKE = 1e-9
"""Of logarithms: what clocks tell."""

NONE_DIFFERS = "the mean step is the typical one"


def step_kinds_of_row(row: Launches, _: Context) -> Fields:
    """Return the typical step, and how steps differ where the mean one is another."""
    good = list(row.good.values())
    if not good:
        return null(["typical_step_s", "step_kinds"], NO_LAUNCH)
    typical_s = [float(np.median(clean_pace(result))) for result in good]
    longer = [launch_step_s(one) / typical for one, typical in zip(good, typical_s, strict=True)]
    differ = min(longer) > LARGEST_DIFFERENCE
    return {
        "typical_step_s": estimate_over_launches(typical_s),
        "step_kinds": known(kinds_of(clean_pace(good[0])) if differ else None, NONE_DIFFERS),
        "stamps": ["steps differ"] if differ else [],
    }


def kinds_of(step_s: Sequence[float]) -> StepKinds | None:
    """Divide steps into short and long ones, by their logarithms; None: all are alike.

    Where the squares of the two kinds' distance are largest. Source: Otsu 1979.
    """
    steps = np.sort(np.asarray(step_s, dtype=float))
    logs, count = np.log(steps), np.arange(1, len(steps))
    below = np.cumsum(logs)[:-1] / count
    above = (logs.sum() - np.cumsum(logs)[:-1]) / (len(steps) - count)
    apart = count * (len(steps) - count) * (above - below) ** 2
    if not len(apart) or apart.max() <= ALIKE:
        return None
    cut = int(np.argmax(apart)) + 1
    period = period_of(np.asarray(step_s, dtype=float))
    return StepKinds(
        period=period if period > 1 else None,
        short_s=float(steps[:cut].mean()),
        long_s=float(steps[cut:].mean()),
        long_share=1 - cut / len(steps),
    )
