"""A row's headline: its step, throughput, speedup and efficiency, and how its training went."""

from collections.abc import Sequence
from typing import Any

from scalebench.analysis.rows.context import Context
from scalebench.analysis.rows.efficiency import calls_per_step
from scalebench.analysis.rows.fields import NO_LAUNCH, Fields, known, null
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.resources import peak_memory_of
from scalebench.analysis.steps import clean_pace, clean_steps, mean_losses, mean_step
from scalebench.records.run import CellResult
from scalebench.records.summary import StepSamples
from scalebench.stats import estimate_over_launches

IN_TURNS = (
    "the row took turns with others, and its first step waited for its turn; --isolated measures it"
)
NO_LOSSES = "the losses of a script are not known"
NOT_AT_ONE_RANK = "no round in which the strategy succeeded at N=1"

LOST_A_RANK = "lost a rank"
OF_ALL_RANKS = ("throughput", "tokens_per_s", "speedup", "efficiency", "efficiency_wrapped")
WITHOUT_A_RANK = "a rank was lost, so the steps are not those of all ranks"


def headline_of_row(row: Launches, run: Context) -> Fields:
    """Return what a row's launches say of its speed, alone and against its baseline."""
    good, base, ratios = list(row.good.values()), run.baseline(row), run.ratios
    losses = mean_losses(good[0]) if good else []
    starts = [result.launch_s for result in good if result.launch_s]
    tokens = next((result.ranks[0].tokens_per_sample for result in good), None)
    in_turns = any(result.shared_with for result in good)
    no_base = None if base else _no_baseline(row)
    lost = _losses_of(good)

    def of_good(value: Any, why: str = "not recorded") -> Any:
        return known(value, why if good else NO_LAUNCH)

    def ratio(value: Any, why: str) -> Any:
        return known(value, row.no_ratio) if row.no_ratio else of_good(value, why)

    return {
        "step_s": of_good(row.step_s),
        "throughput": of_good(row.throughput),
        "tokens_per_s": of_good(
            row.throughput.scaled(tokens) if row.throughput and tokens else None,
            "the workload has no tokens",
        ),
        "speedup": ratio(ratios.speedup(row, base), _why_no_ratio(row, base)),
        "efficiency": ratio(ratios.efficiency(row, base), _why_no_ratio(row, base)),
        "baseline": known(base and base.cell.row_key, row.no_ratio or no_base),
        "efficiency_wrapped": ratio(ratios.efficiency(row, run.at_one_rank(row)), NOT_AT_ONE_RANK),
        "loss_first": of_good(losses[0] if losses else None, NO_LOSSES),
        "loss_last": of_good(losses[-1] if losses else None, NO_LOSSES),
        "loss_last_steps": of_good(len(losses) or None),
        "launch_s": of_good(
            estimate_over_launches(starts) if starts else None,
            *([IN_TURNS] if in_turns else []),
        ),
        "num_parameters": of_good(
            next((result.ranks[0].num_parameters for result in good), None),
            "no optimizer was seen",
        ),
        "num_clean_steps": sum(len(clean_steps(result)) for result in good),
        "samples": [_samples(result) for result in good],
        "stamps": lost,
        **(null(OF_ALL_RANKS, WITHOUT_A_RANK) if lost else {}),
    }


def _no_baseline(row: Launches) -> str:
    per_rank = "" if row.cell.scaling == "strong" else " per rank"
    return f"no plain baseline at a batch of {row.cell.reference_batch}{per_rank}"


def _why_no_ratio(row: Launches, base: Launches | None) -> str:
    """Say why a row has no ratio to its baseline, where it has none."""
    if base is None:
        return _no_baseline(row)
    if not base.good:
        return "no launch of the plain baseline succeeded"
    own, theirs = calls_per_step(row), calls_per_step(base)
    if own != theirs:
        told = [" or ".join(map(str, sorted(calls))) for calls in (own, theirs)]
        return (
            f"a step is {told[0]} optimizer calls here and {told[1]} in the baseline: call "
            "scalebench.step() after each step"
        )
    return "no round in which both the row and the baseline succeeded"


def _samples(result: CellResult) -> StepSamples:
    mean = mean_step(result)
    return StepSamples(
        repeat=result.cell.repeat,
        step_s=clean_steps(result),
        pace_s=clean_pace(result),
        mean_s=mean.seconds,
        mean_variance=mean.variance,
        peak_memory_bytes=peak_memory_of(result),
    )


def _losses_of(results: Sequence[CellResult]) -> list[str]:
    """Return a stamp for each rank that launches lost and went on without."""
    return [
        f"{LOST_A_RANK}: rank {one.rank} ({one.message}){_when(result, one.rank)}"
        for result in results
        for one in result.lost
    ]


def _when(result: CellResult, rank: int | None) -> str:
    """Say how far all ranks had come by then, where the others noted it."""
    noted = [record.facts.get("lost_ranks", {}).get(str(rank)) for record in result.ranks]
    known = [samples for samples in noted if samples is not None]
    launch = f" of launch {result.cell.repeat}" if result.cell.repeat else ""
    return f" after {min(known)} samples{launch}" if known else launch
