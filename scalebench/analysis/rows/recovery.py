"""What the checkpoints of a row cost, from the launches that saved and restored."""

from collections.abc import Sequence

import numpy as np

from scalebench.analysis.rows.launches import Context, Fields, Launches, known
from scalebench.grouping import by_key
from scalebench.records.measured.recovery import (
    ElasticRun,
    ElasticStretch,
    FaultTimeline,
    RecoveryRecord,
    SaveSample,
)
from scalebench.records.rows import race
from scalebench.spec.recovery import BADPUT, PHASES
from scalebench.stats import Estimate, estimate_over_launches, estimate_signed

NOTHING_BESIDE = "the checkpoint was on the disk before the next step began"
NOT_TOLD = "this system does not tell the peak of a process's memory"
ON_CPU = "the ranks are on the CPU"

DATA_NOT_NOTED = "the run did not note when the data was at its place; restore holds it"
NOT_SAVED = "no checkpoint of this row was saved"

OfRanks = tuple[SaveSample, ...]
"""One save, as each rank saw it."""


def recovery_of_row(row: Launches, _: Context) -> Fields:
    """Return what the launches that saved and restored say; none: no checkpoint was asked for."""
    launches = row.checkpoints
    records = [
        [rank.recovery for rank in result.ranks if rank.recovery is not None]
        for result in launches
        if result.status == "ok"
    ]
    faults = [fault for result in launches for fault in result.faults]
    elastic = [
        run
        for result in launches
        if result.elastic is not None
        for run in (result.elastic, *result.elastic_repeats)
    ]
    why = "no launch that saved or restored succeeded" if launches else NOT_SAVED
    return {"recovery": known(figures_of(records, faults, elastic) if records else None, why)}


def figures_of(
    launches: Sequence[Sequence[RecoveryRecord]],
    faults: Sequence[FaultTimeline] = (),
    elastic: Sequence[ElasticRun] = (),
) -> race.RecoveryFigures:
    """Return the figures of launches, each as its ranks recorded it, rank 0 first."""
    saves: dict[str, list[OfRanks]] = {}
    restores = []
    for ranks in launches:
        for of_ranks in zip(*(rank.saves for rank in ranks), strict=True):
            saves.setdefault(of_ranks[0].method, []).append(of_ranks)
        restores += [
            race.RestoreFigures(
                method=one.method,
                saved_world_size=one.saved_world_size,
                load_s=max(r.restores[number].load_s for r in ranks),
                first_step_s=max(r.restores[number].first_step_s for r in ranks),
                num_tensors=one.num_tensors,
                continues_equal=one.continues_equal,
            )
            for number, one in enumerate(ranks[0].restores)
        ]
    known = [rank for ranks in launches for rank in ranks]
    return race.RecoveryFigures(
        file_system=next((rank.file_system for rank in known if rank.file_system), None),
        saves=[save_figures(method, of_method) for method, of_method in saves.items()],
        restores=restores,
        failures=failure_figures(faults),
        elastic=elastic_figures(elastic) if elastic else None,
        unavailable={m: why for rank in known for m, why in rank.unavailable.items()},
    )


def save_figures(method: str, saves: Sequence[OfRanks]) -> race.SaveFigures:
    """Return what one way to save costs, over its saves."""
    quiet_s = float(np.median([_slowest_steps(save, "quiet_s") for save in saves]))
    stalls = [max(rank.stall_s for rank in save) for save in saves]
    durable = [max(rank.durable_s for rank in save) for save in saves]
    size = max(rank.bytes for save in saves for rank in save)
    beside = [max(rank.num_beside for rank in save) for save in saves]
    slower = [
        sum(_slowest_steps(save, "later_s")[:count]) - count * quiet_s
        for save, count in zip(saves, beside, strict=True)
    ]
    host = [rank.extra_host_bytes for save in saves for rank in save]
    device = [rank.extra_device_bytes for save in saves for rank in save]
    any_beside = any(beside)
    missing = {
        **({} if any_beside else dict.fromkeys(("slower_s", "slowdown"), NOTHING_BESIDE)),
        **({"extra_host_bytes": NOT_TOLD} if None in host else {}),
        **({"extra_device_bytes": ON_CPU} if None in device else {}),
    }
    return race.SaveFigures(
        method=method,
        stall_s=estimate_over_launches(stalls),
        durable_s=estimate_over_launches(durable),
        bytes=size,
        bandwidth_byte_per_s=estimate_over_launches([size / seconds for seconds in durable]),
        steps_beside=float(np.mean(beside)),
        slower_s=estimate_signed(slower) if any_beside else None,
        slowdown=sum(slower) / (sum(beside) * quiet_s) if any_beside else None,
        cost_s=estimate_over_launches(
            [a + max(b, 0.0) for a, b in zip(stalls, slower, strict=True)]
        ),
        extra_host_bytes=_largest(host),
        extra_device_bytes=_largest(device),
        unavailable=missing,
    )


def failure_figures(faults: Sequence[FaultTimeline]) -> list[race.FailureFigures]:
    """Return what failures cost, one for each kind and for who started the ranks again."""
    groups = by_key(((fault.kind, fault.restarted_by), fault) for fault in faults)
    return [
        race.FailureFigures(
            kind=kind,
            restarted_by=by,
            phases_s={
                phase: estimate_signed([fault.phases_s[phase] for fault in group])
                for phase in PHASES
            },
            restart_s=estimate_signed([_restart_s(fault) for fault in group]),
            total_s=estimate_signed([fault.total_s for fault in group]),
            lost_steps=float(np.mean([f.failed_after - f.saved_after for f in group])),
            badput_s=_badput(group),
            unavailable={"data": DATA_NOT_NOTED} if not _noted_data(group) else {},
        )
        for (kind, by), group in groups.items()
    ]


def elastic_figures(runs: Sequence[ElasticRun]) -> race.ElasticFigures:
    """Return how a job went on with fewer ranks, and with all again; once or more often."""
    first = runs[0]
    deviations = [
        abs(loss / run.unbroken_loss[stretch.first - 1 + number] - 1)
        for run in runs
        for stretch in run.stretches
        for number, loss in enumerate(stretch.loss)
        if stretch.first + number <= len(run.unbroken_loss)
    ]
    return race.ElasticFigures(
        stretches=[
            _stretch_figures(same) for same in zip(*(r.stretches for r in runs), strict=True)
        ],
        shrink_s=first.shrink_s,
        grow_s=first.grow_s,
        loss_deviation=max(deviations, default=None),
        shrink_over_losses_s=_over_losses([run.shrink_s for run in runs]),
        grow_over_losses_s=_over_losses([run.grow_s for run in runs]),
    )


def _over_losses(values: Sequence[float]) -> Estimate | None:
    return estimate_signed(values) if len(values) > 1 else None


def _stretch_figures(same: Sequence[ElasticStretch]) -> race.ElasticStretchFigures:
    """Return the figures of the first of several stretches, with intervals over all."""
    stretch = same[0]
    step_s = float(np.median(stretch.step_s)) if stretch.step_s else None
    samples = stretch.world_size * stretch.rank_batch
    each = [samples / float(np.median(one.step_s)) for one in same if one.step_s]
    return race.ElasticStretchFigures(
        world_size=stretch.world_size,
        rank_batch=stretch.rank_batch,
        accumulate=stretch.accumulate,
        first_step=stretch.first,
        num_steps=len(stretch.loss),
        step_s=step_s,
        throughput=samples / step_s if step_s else None,
        throughput_over_losses=_over_losses(each),
        loss=stretch.loss,
    )


def _badput(group: Sequence[FaultTimeline]) -> dict[str, Estimate | None]:
    """Return what the failures of one kind take, by the field's names for lost time, seconds."""
    noted = _noted_data(group)
    found: dict[str, Estimate | None] = {}
    for name, phases in BADPUT.items():
        seconds = [sum(fault.phases_s[phase] for phase in phases) for fault in group]
        if name == "restore" and noted:
            seconds = [s - (f.data_s or 0.0) for s, f in zip(seconds, group, strict=True)]
        elif name == "data":
            seconds = [fault.data_s or 0.0 for fault in group]
        found[name] = estimate_signed(seconds) if noted or name != "data" else None
    return found


def _noted_data(group: Sequence[FaultTimeline]) -> bool:
    return all(fault.data_s is not None for fault in group)


def _restart_s(fault: FaultTimeline) -> float:
    until = PHASES.index("load") + 1
    return sum(fault.phases_s[phase] for phase in PHASES[:until])


def _slowest_steps(save: OfRanks, which: str) -> list[float]:
    """Return the duration of each step on the rank that was slowest in it."""
    return [max(steps) for steps in zip(*(getattr(rank, which) for rank in save), strict=True)]


def _largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None
