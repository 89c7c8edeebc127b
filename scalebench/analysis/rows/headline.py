"""A row's headline: step, throughput, training, and whether launches compute the same."""

from collections.abc import Sequence
from typing import Any

from scalebench.analysis import steps
from scalebench.analysis.rows.launches import (
    NO_LAUNCH,
    Context,
    Fields,
    Launches,
    Unavailable,
    calls_per_step,
    known,
    null,
)
from scalebench.analysis.rows.resources import memory_of_row, peak_memory_of
from scalebench.analysis.validity import NOT_REACHED
from scalebench.records.measured.rank import RankRecord
from scalebench.records.rows.steps import Reproducible
from scalebench.records.run import CellResult, Status
from scalebench.records.summary import StepSamples
from scalebench.spec import Cell, Script
from scalebench.stats import estimate_over_launches
from scalebench.units import bytes_

ONE_LAUNCH = "it takes two launches to compare their losses"
NO_LOSSES_RECORDED = "no losses were recorded"
OF_RACES = "each launch of a race has another seed"

Losses = Sequence[tuple[int, float | None]]
"""Step and loss, of each backward pass that was recorded."""
IN_TURNS = (
    "the row took turns with others, and its first step waited for its turn; --isolated measures it"
)
NO_LOSSES = "the losses of a script are not known"
NOT_AT_ONE_RANK = "no round in which the strategy succeeded at N=1"

NOT_SCALED = "the loss is scaled in float16 only"

LOST_A_RANK = "lost a rank"
OF_ALL_RANKS = ("throughput", "tokens_per_s", "speedup", "efficiency", "efficiency_wrapped")
WITHOUT_A_RANK = "a rank was lost, so the steps are not those of all ranks"


def reproducible_of_row(row: Launches, _: Context) -> Fields:
    """Say from which step on the launches' losses differ."""
    good = list(row.good.values())
    if len(good) < 2:
        return {"reproducible": Unavailable(ONE_LAUNCH)}
    if any(rank.race is not None for launch in good for rank in launch.ranks):
        return {"reproducible": Unavailable(OF_RACES)}
    launches = [[_losses(rank) for rank in launch.ranks] for launch in good]
    if not all(all(of_rank) for of_rank in launches):
        return {"reproducible": Unavailable(NO_LOSSES_RECORDED)}
    pairs = [
        pair
        for other in launches[1:]
        for one, another in zip(launches[0], other, strict=True)
        for pair in zip(one, another, strict=False)
    ]
    differing = [min(a[0], b[0]) for a, b in pairs if a != b]
    noted = [rank.facts["checks"] for one in good for rank in one.ranks if rank.facts.get("checks")]
    named = [name for one in noted for name in one.get("nondeterministic") or ()]
    seeds = [[one["seed"] for one in _seeded(launch)] for launch in good]
    found = Reproducible(
        equal=not differing,
        first_step=min(differing, default=None),
        num_steps=1 + min(of_rank[-1][0] for of_launch in launches for of_rank in of_launch),
        num_launches=len(good),
        seeds_differ=any(one != seeds[0] for one in seeds) if noted else None,
        operations=list(dict.fromkeys(named)),
    )
    return {"reproducible": found}


def _losses(rank: RankRecord) -> Losses:
    """Return the losses of the clean window: what follows begins at another step in each launch."""
    noted = (rank.facts.get("checks") or {}).get("losses")
    if noted is not None:
        return [(step, loss) for step, loss in noted if loss is not None]
    later = [block.first for block in rank.blocks if block.phase not in ("warmup", "clean")]
    return list(enumerate(rank.loss[: min(later, default=None)]))


def _seeded(launch: CellResult) -> list[dict[str, int]]:
    return [rank.facts["checks"] for rank in launch.ranks if rank.facts.get("checks")]


def headline_of_row(row: Launches, run: Context) -> Fields:
    """Return what a row's launches say of its speed, alone and against its baseline."""
    good, base, ratios = list(row.good.values()), run.baseline(row), run.ratios
    losses = steps.mean_losses(good[0]) if good else []
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
            estimate_over_launches(starts) if starts else None, *([IN_TURNS] if in_turns else [])
        ),
        "num_parameters": of_good(
            next((result.ranks[0].num_parameters for result in good), None), "no optimizer was seen"
        ),
        **_loss_scale(good),
        "num_clean_steps": sum(len(steps.clean_steps(result)) for result in good),
        "samples": [_samples(result) for result in good],
        "stamps": lost,
        **(null(OF_ALL_RANKS, WITHOUT_A_RANK) if lost else {}),
    }


def _loss_scale(good: Sequence[CellResult]) -> Fields:
    """Return what became of the scale of a loss in float16."""
    scale = good[0].ranks[0].loss_scale if good else None
    if scale is None:
        return null(("loss_scale", "num_skipped_steps"), NOT_SCALED if good else NO_LAUNCH)
    skipped = sum(len(steps.skipped_steps(result.ranks)) for result in good)
    return {"loss_scale": scale, "num_skipped_steps": skipped}


def _no_baseline(row: Launches) -> str:
    if isinstance(row.cell.strategy, Script):
        return "the script was not run at N=1"
    per_rank = "" if row.cell.scaling == "strong" else " per rank"
    return f"no plain baseline at a batch of {row.cell.reference_batch}{per_rank}"


def _why_no_ratio(row: Launches, base: Launches | None) -> str:
    """Say why a row has no ratio to its baseline, where it has none."""
    if base is None:
        return _no_baseline(row)
    if not base.good:
        is_script = isinstance(row.cell.strategy, Script)
        return f"no launch of the {'script at N=1' if is_script else 'plain baseline'} succeeded"
    own, theirs = calls_per_step(row), calls_per_step(base)
    if own != theirs:
        told = [" or ".join(map(str, sorted(calls))) for calls in (own, theirs)]
        return (
            f"a step is {told[0]} optimizer calls here and {told[1]} in the baseline: call "
            "scalebench.step() after each step"
        )
    return "no round in which both the row and the baseline succeeded"


def _samples(result: CellResult) -> StepSamples:
    mean = steps.mean_step(result)
    return StepSamples(
        repeat=result.cell.repeat,
        step_s=steps.clean_steps(result),
        pace_s=steps.clean_pace(result),
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


def setting_of_row(row: Launches, run: Context) -> Fields:
    """Return what the plan says of a row, and whether it was carried out."""
    cell = row.cell
    status, reason = _status(row, run.status)
    if status == "oom":
        predicted = memory_of_row(row, run)["predicted_memory_bytes"]
        told = isinstance(predicted, int)
        reason = f"{reason}; predicted for a rank: {bytes_(predicted)}" if told else reason
    return {
        "suite": cell.suite,
        "case": cell.case,
        "strategy": cell.strategy.kind,
        "strategy_settings": cell.strategy.model_dump(exclude={"kind"}),
        "workload": cell.workload.name,
        "scaling": "unknown" if row.growth and row.growth.scaling == "unknown" else cell.scaling,
        "device": cell.device,
        "backend": cell.backend,
        "world_size": cell.world_size,
        "global_batch": cell.global_batch,
        "rank_batch": cell.rank_batch,
        "status": status,
        "reason": reason,
        "oversubscribed": cell.oversubscribed,
        "pinned": cell.pinned,
        **_hosts(cell),
    }


def _hosts(cell: Cell) -> Fields:
    """Return what a row says of the virtual hosts that it was measured on."""
    hosts = cell.virtual_hosts
    if hosts is None:
        names = ("link", "link_bit_per_s", "cpus_per_rank", "cpu_shares")
        why = "the ranks did not run on virtual hosts"
        return {"virtual_hosts": False, **null(names, why)}
    fields: Fields = {
        "virtual_hosts": True,
        "link": hosts.link,
        "link_bit_per_s": hosts.rates(hosts.num_hosts(cell.world_size)),
        "cpus_per_rank": hosts.cpus_per_rank,
        "cpu_shares": hosts.cpu_shares and list(hosts.cpu_shares[: cell.world_size]),
    }
    if hosts.cpu_shares is not None:
        return fields | null(["cpus_per_rank"], "ranks have different shares: see cpu_shares")
    if hosts.cpus_per_rank is None:
        return fields | null(["cpus_per_rank", "cpu_shares"], "no CPU share was set")
    return fields | null(["cpu_shares"], "all ranks have the same: see cpus_per_rank")


def _status(row: Launches, run_status: str) -> tuple[Status, str | None]:
    if row.cell.skip_reason:
        return "skipped", row.cell.skip_reason
    inspected = [row.inspection] if row.inspection else []
    results = [*inspected, *row.measured.values(), *row.checkpoints]
    bad = next((result for result in results if result.status != "ok"), None)
    if bad is not None:
        return bad.status, _reason(bad, row)
    if not row.measured:
        return "skipped", f"{NOT_REACHED}{run_status}"
    return "ok", None


def _reason(first_bad: CellResult, row: Launches) -> str:
    reason = first_bad.reason or "no reason recorded"
    if row.good:
        return (
            f"{reason} (numbers from {len(row.good)} of {row.num_planned} launches that succeeded)"
        )
    return reason
