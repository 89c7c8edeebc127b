"""Scaling: from the raw launches of a run to throughput, speedup and efficiency.

``S(N) = T_1 / T_N = X_N / X_1`` and ``E(N) = S(N) / N``, with X the samples per second of the
whole job, so that strong and weak scaling are one formula. T_1 is the bare model in one process
(``plain``); against the strategy's own N=1 it is called *wrapped*.

Launches are interleaved over sizes in rounds. Ratios are formed within a round and then
estimated over the rounds: what drifts from round to round cancels. How much launches differ is told
by all rows of a suite: see `round_noise`.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from scalebench.analysis.convergence.race import with_races
from scalebench.analysis.counted_batch import knows_samples
from scalebench.analysis.lost_ranks import OF_ALL_RANKS, WITHOUT_A_RANK, losses_of
from scalebench.analysis.prediction_scores import score, with_intervals
from scalebench.analysis.rows.against_fastest import with_fastest
from scalebench.analysis.rows.against_uncompressed import against_uncompressed
from scalebench.analysis.rows.attribution import StepTimes, attribute_row
from scalebench.analysis.rows.compression import compression_of_row
from scalebench.analysis.rows.efficiency import Ratios, calls_per_step, plain_baseline
from scalebench.analysis.rows.equal_loss import with_equal_losses
from scalebench.analysis.rows.fields import RowFields
from scalebench.analysis.rows.frameworks import framework_of_row
from scalebench.analysis.rows.inflation import inflation_of
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.lockstep import with_lockstep
from scalebench.analysis.rows.prediction import predict_row
from scalebench.analysis.rows.prediction_base import prediction_base
from scalebench.analysis.rows.rank_excess import rank_excess_of_row
from scalebench.analysis.rows.recovery import recovery_of_row
from scalebench.analysis.rows.resources import peak_memory_of, use_of_row
from scalebench.analysis.rows.script import script_of_row
from scalebench.analysis.rows.step_kinds import step_kinds_of_row
from scalebench.analysis.rows.wires import wires_of_row
from scalebench.analysis.run import StoredRun
from scalebench.analysis.steps import (
    clean_pace,
    clean_steps,
    launch_step_s,
    launch_throughput,
    mean_losses,
    mean_step,
)
from scalebench.analysis.unmeasured import NOT_REACHED
from scalebench.analysis.validity import validity_stamps
from scalebench.costmodel.links.times import LinkModel
from scalebench.records.largest_batch import from_notices
from scalebench.records.run import CellResult, Status
from scalebench.records.summary import (
    Correctness,
    Row,
    StepSamples,
    Summary,
    TimedCollectives,
    set_aside,
)
from scalebench.spec import Cell, Script
from scalebench.spec.presets import PacedShape
from scalebench.stats import Estimate, estimate_over_launches
from scalebench.units import bytes_

OWN_SCRIPT = "it is your own script: there is no reference to compare its results with"


def summarise(run: StoredRun) -> Summary:
    """Work out the summary of a run, however far it came."""
    ratios = Ratios.of(run)
    rows = [_row(launches, ratios, run) for launches in ratios.table.values()]
    rows = with_intervals(against_uncompressed(rows, ratios.table, _link(run)))
    rows = with_lockstep(with_races(rows, ratios.table), ratios.table)
    rows = with_fastest(with_equal_losses(rows, ratios.table), ratios)
    return Summary(
        run_id=run.info.run_id,
        created=run.info.created,
        status=run.info.status,
        scalebench_version=run.info.version,
        reproduce=shlex.join(run.info.command),
        environment=run.info.environment,
        notices=[*run.info.notices, *set_aside(run.damaged)],
        damaged=run.damaged,
        largest_batches=run.info.largest_batches or from_notices(run.info.notices, run.info.plan),
        certificate=run.info.certificate,
        precision=run.info.precision,
        model=score(rows, run.info.profile_differs),
        gate={suite.name: suite.gate for suite in run.info.spec.suites if suite.gate},
        collectives=_collectives(run),
        link=run.link,
        rows=rows,
    )


def _collectives(run: StoredRun) -> TimedCollectives | None:
    names = [suite.name for suite in run.info.spec.suites if suite.collectives is not None]
    if not names:
        return None
    if run.link is None:
        return TimedCollectives(
            suites=names, num_points=0, num_wrong=0, fits=[], failure=run.link_unavailable
        )
    wrong = run.link.num_wrong
    return TimedCollectives(
        suites=names,
        num_points=len(run.link.points),
        num_wrong=wrong,
        fits=[row for fit in run.link.fits for row in fit.rows()],
        failure=f"{wrong} elements of results are wrong" if wrong else None,
    )


def _row(row: Launches, ratios: Ratios, run: StoredRun) -> Row:
    table = ratios.table
    cell, good = row.cell, list(row.good.values())
    status, reason = _status(row, run.info.status)
    baseline = plain_baseline(row, table)
    wrapped = None if row.no_ratio else table.get((cell.suite, cell.case, 1))
    known: Sequence[CellResult | None] = good or (None,)
    counted = all(knows_samples(cell, launch) for launch in known)
    throughput = _throughput(good, counted) if good else None
    tokens = next((r.ranks[0].tokens_per_sample for r in good), None)
    starts = [r.launch_s for r in good if r.launch_s]
    losses = mean_losses(good[0]) if good else []
    step_s = _step_estimate(row)
    own = wrapped if wrapped is not None and cell.world_size > 1 else None
    alone = [one.inspection for one in (baseline, own) if one is not None and one.inspection]
    reference = _reference_launch(wrapped, baseline) if row.measured or row.inspection else None
    used = use_of_row(cell, row.inspection, row.good, alone, throughput, reference, row.shards)
    fields = (
        _attribution(row, baseline, ratios),
        used,
        _prediction(
            row,
            prediction_base(row, table),
            run,
            step_s,
            ratios.contention(row, baseline) if baseline else None,
        ),
        compression_of_row(row),
        script_of_row(row),
        step_kinds_of_row(row),
        rank_excess_of_row(row),
        recovery_of_row(row.checkpoints),
        framework_of_row(row),
        wires_of_row(cell, row.inspection),
    )
    predicted_bytes = used.values.get("predicted_memory_bytes")
    if status == "oom" and predicted_bytes is not None:
        reason = f"{reason}; predicted for a rank: {bytes_(predicted_bytes)}"
    values: dict[str, Any] = {
        "step_s": step_s,
        "throughput": throughput,
        "tokens_per_s": throughput.scaled(tokens) if throughput and tokens else None,
        "speedup": ratios.speedup(row, baseline),
        "efficiency": ratios.efficiency(row, baseline),
        "baseline": baseline.cell.row_key if baseline else None,
        "efficiency_wrapped": ratios.efficiency(row, wrapped),
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "loss_last_steps": len(losses) or None,
        "launch_s": estimate_over_launches(starts) if starts else None,
        "correctness": _correctness(row),
        "num_parameters": next((r.ranks[0].num_parameters for r in good), None),
    }
    lost = losses_of(good)
    values |= dict.fromkeys(OF_ALL_RANKS) if lost else {}
    reasons = dict.fromkeys(OF_ALL_RANKS, WITHOUT_A_RANK) if lost else {}
    return Row(
        suite=cell.suite,
        case=cell.case,
        strategy=cell.strategy.kind,
        strategy_settings=cell.strategy.model_dump(exclude={"kind"}),
        workload=cell.workload.name,
        scaling="unknown" if row.growth and row.growth.scaling == "unknown" else cell.scaling,
        device=cell.device,
        backend=cell.backend,
        world_size=cell.world_size,
        global_batch=cell.global_batch,
        rank_batch=cell.rank_batch,
        status=status,
        reason=reason,
        oversubscribed=cell.oversubscribed,
        pinned=cell.pinned,
        **_hosts(cell),
        num_clean_steps=sum(len(clean_steps(r)) for r in good),
        stamps=[
            *lost,
            *_stamps(row, baseline),
            *([] if counted else ["samples not counted"]),
            *(s for part in fields for s in part.stamps),
        ],
        unavailable={
            **_unavailable(values, row, baseline),
            **_no_hosts(cell),
            **{name: why for part in fields for name, why in part.reasons.items()},
            **reasons,
        },
        samples=[_samples(r) for r in good],
        **values,
        **{name: value for part in fields for name, value in part.values.items()},
    )


def _throughput(good: Sequence[CellResult], counted: bool) -> Estimate:
    """Estimate samples per second; steps per second where a script's samples are not known."""
    return estimate_over_launches(
        [launch_throughput(r) if counted else 1 / launch_step_s(r) for r in good]
    )


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


def _hosts(cell: Cell) -> dict[str, Any]:
    """Return what the row says of the virtual hosts that it was measured on."""
    hosts = cell.virtual_hosts
    if hosts is None:
        return {"virtual_hosts": False}
    return {
        "virtual_hosts": True,
        "link": hosts.link,
        "link_bit_per_s": hosts.rates(hosts.num_hosts(cell.world_size)),
        "cpus_per_rank": hosts.cpus_per_rank,
        "cpu_shares": hosts.cpu_shares and list(hosts.cpu_shares[: cell.world_size]),
    }


def _no_hosts(cell: Cell) -> dict[str, str]:
    """Return why the row says nothing of links or shares of the processor."""
    if cell.virtual_hosts is None:
        why = "the ranks did not run on virtual hosts"
        return dict.fromkeys(("link", "link_bit_per_s", "cpus_per_rank", "cpu_shares"), why)
    if cell.virtual_hosts.cpu_shares is not None:
        return {"cpus_per_rank": "ranks have different shares: see cpu_shares"}
    if cell.virtual_hosts.cpus_per_rank is None:
        return dict.fromkeys(("cpus_per_rank", "cpu_shares"), "no CPU share was set")
    return {"cpu_shares": "all ranks have the same: see cpus_per_rank"}


def _step_estimate(row: Launches) -> Estimate | None:
    good = row.good.values()
    return estimate_over_launches([launch_step_s(r) for r in good]) if good else None


def _attribution(row: Launches, baseline: Launches | None, ratios: Ratios) -> RowFields:
    """Attribute a row, by the steps of the rounds that its efficiency rests on."""
    base = baseline.good if baseline else {}
    rounds = [repeat for repeat in row.good if repeat in base]
    row_s = _mean_step_s(row.good, rounds or list(row.good))
    steps = StepTimes(row_s, _mean_step_s(base, rounds)) if row_s else None
    fields = attribute_row(row, baseline, steps)
    budget = fields.values.get("budget")
    if budget is not None:
        inflation = inflation_of(row, baseline, ratios, budget)
        if inflation is not None:
            fields.values["budget"] = budget.model_copy(update={"inflation": inflation})
    return fields


def _prediction(
    row: Launches,
    base: Launches | None,
    run: StoredRun,
    measured: Estimate | None,
    contention: Estimate | None,
) -> RowFields:
    """Predict a row from its base (mostly N=1), the run's own calibration, and contention."""
    step_s = measured.value if measured else None
    factor = contention.value if contention else None
    return predict_row(row, base, _link(run), step_s, factor)


def _link(run: StoredRun) -> LinkModel | str:
    if run.link is None:
        return run.link_unavailable
    return LinkModel(run.link.fits, rehearsals=run.link.played)


def _mean_step_s(good: Mapping[int, CellResult], rounds: Sequence[int]) -> float | None:
    steps = [launch_step_s(good[repeat]) for repeat in rounds]
    return estimate_over_launches(steps).value if steps else None


def _batch_words(cell: Cell) -> str:
    return f"{cell.reference_batch}{'' if cell.scaling == 'strong' else ' per rank'}"


def _reference_launch(*others: Launches | None) -> CellResult | None:
    """Return a launch of another row that knows how large the model is."""
    good = (result for other in others if other is not None for result in other.good.values())
    return next(good, None)


def _status(row: Launches, run_status: str) -> tuple[Status, str | None]:
    if row.cell.skip_reason:
        return "skipped", row.cell.skip_reason
    results = [
        *([row.inspection] if row.inspection else []),
        *row.measured.values(),
        *row.checkpoints,
    ]
    bad = [result for result in results if result.status != "ok"]
    if bad:
        return bad[0].status, _reason(bad[0], row)
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


def _correctness(row: Launches) -> Correctness | None:
    """Return the comparison with the reference as rank 0 tells it (every rank was compared)."""
    if isinstance(row.cell.strategy, Script):
        return Correctness(status="unverified", reason=OWN_SCRIPT) if row.good else None
    ranks = row.inspection.ranks if row.inspection is not None else []
    verification = next((rank.verification for rank in ranks if rank.rank == 0), None)
    if verification is None:
        return None
    return Correctness.model_validate(verification.model_dump())


def _stamps(row: Launches, baseline: Launches | None) -> list[str]:
    correctness = _correctness(row)
    stamps = {
        "oversubscribed": row.cell.oversubscribed,
        "paced": isinstance(row.cell.workload, PacedShape),
        "unsteady": any(not r.ranks[0].steady for r in row.good.values()),
        "unverified": correctness is not None and correctness.status == "unverified",
    }
    others = list(baseline.good.values()) if baseline else []
    watched = validity_stamps(list(row.good.values()), others)
    known = [name for name, applies in stamps.items() if applies]
    hosts = row.cell.virtual_hosts
    overload = hosts.overload(row.cell.world_size) if hosts is not None else None
    return [*known, *([f"link not held: {overload}"] if overload else []), *watched]


def _unavailable(
    values: Mapping[str, Any], row: Launches, baseline: Launches | None
) -> dict[str, str]:
    """Return the reason for every null."""
    return {
        name: _reason_for_null(name, row, baseline)
        for name, value in values.items()
        if value is None
    }


def _reason_for_null(name: str, row: Launches, baseline: Launches | None) -> str:
    if row.no_ratio and name in ("baseline", "speedup", "efficiency", "efficiency_wrapped"):
        return row.no_ratio
    if name == "baseline":
        return f"no plain baseline at a batch of {_batch_words(row.cell)}"
    if not row.good and name != "correctness":
        return "no launch of this row succeeded"
    if name == "launch_s" and any(result.shared_with for result in row.good.values()):
        return (
            "the row took turns with others, and its first step waited for its turn; --isolated "
            "measures it"
        )
    if name in ("speedup", "efficiency"):
        if baseline is None:
            return f"no plain baseline at a batch of {_batch_words(row.cell)}"
        if not baseline.good:
            return "no launch of the plain baseline succeeded"
        own, theirs = calls_per_step(row), calls_per_step(baseline)
        if own != theirs:
            told = [" or ".join(map(str, sorted(calls))) for calls in (own, theirs)]
            return (
                f"a step is {told[0]} optimizer calls here and {told[1]} in the baseline: call "
                "scalebench.step() after each step"
            )
        return "no round in which both the row and the baseline succeeded"
    return {
        "tokens_per_s": "the workload has no tokens",
        "num_parameters": "no optimizer was seen",
        "efficiency_wrapped": "no round in which the strategy succeeded at N=1",
        "correctness": "the inspection launch failed",
        "loss_first": "the losses of a script are not known",
        "loss_last": "the losses of a script are not known",
    }.get(name, "not recorded")
