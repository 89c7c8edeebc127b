"""Scaling: from the raw launches of a run to throughput, speedup and efficiency.

``S(N) = T_1 / T_N = X_N / X_1`` and ``E(N) = S(N) / N``, with X the samples per second of the
whole job, so that strong and weak scaling are one formula. T_1 is the bare model in one process
(``plain``); against the strategy's own N=1 it is called *wrapped*.

Launches are interleaved over sizes in rounds. Ratios are formed within a round and then
estimated over the rounds: what drifts from round to round cancels.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalebench.catalog import PacedShape
from scalebench.costmodel.link_model import LinkModel
from scalebench.launches import clean_steps, launch_step_s, launch_throughput
from scalebench.loss_race import Course, compare
from scalebench.model_scores import score, with_intervals
from scalebench.records import CellResult, Status
from scalebench.row_attribution import StepTimes, attribute_row
from scalebench.row_break_even import NoBreakEven, replayed_break_even
from scalebench.row_compression import compression_of_row
from scalebench.row_fields import RowFields
from scalebench.row_prediction import predict_row
from scalebench.row_resources import use_of_row
from scalebench.spec import Cell
from scalebench.stats import Estimate, estimate_over_launches
from scalebench.store import StoredRun
from scalebench.summary import Correctness, Row, StepSamples, Summary, TimedCollectives
from scalebench.validity import validity_stamps


@dataclass(frozen=True)
class Launches:
    """All cells of one row, and what became of those that were run.

    Attributes:
        cell: The row's cell (of its first launch).
        inspection: Result of the launch that checked correctness, if it was run.
        measured: Repeat → result, of the launches that were run.
        num_planned: Measuring launches that the plan holds.
    """

    cell: Cell
    inspection: CellResult | None = None
    measured: Mapping[int, CellResult] = field(default_factory=dict)
    num_planned: int = 0

    @property
    def good(self) -> dict[int, CellResult]:
        """The measuring launches that ended well."""
        return {r: result for r, result in self.measured.items() if result.status == "ok"}


def ratio_by_round(row: Launches, base: Launches, per_rank: bool) -> Estimate | None:
    """Estimate X_N / X_1 (or X_N / (N·X_1)) over the rounds in which both launches went well.

    Returns:
        None when there is no such round.
    """
    divisor = row.cell.world_size if per_rank else 1
    ratios = [
        launch_throughput(result) / launch_throughput(base.good[repeat]) / divisor
        for repeat, result in row.good.items()
        if repeat in base.good
    ]
    return estimate_over_launches(ratios) if ratios else None


def summarise(run: StoredRun) -> Summary:
    """Work out the summary of a run, however far it came."""
    table = grouped(run)
    rows = [_row(launches, table, run) for launches in table.values()]
    rows = with_intervals(_beside_none(rows, table, _link(run)))
    return Summary(
        run_id=run.info.run_id,
        created=run.info.created,
        status=run.info.status,
        scalebench_version=run.info.version,
        reproduce=shlex.join(run.info.command),
        environment=run.info.environment,
        notices=[*run.info.notices, *_damage(run)],
        certificate=run.info.certificate,
        model=score(rows),
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


def _damage(run: StoredRun) -> list[str]:
    return [f"{name} was set aside: {why}" for name, why in run.damaged.items()]


def grouped(run: StoredRun) -> dict[tuple[str, str, int], Launches]:
    """Return the launches of every row: (suite, case, world size) → launches."""
    cells: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in run.info.plan:
        if cell.purpose == "measure":
            cells.setdefault(cell.row_key, []).append(cell)
    inspections = {
        result.cell.row_key: result
        for result in run.results.values()
        if result.cell.purpose == "inspect"
    }
    return {
        key: Launches(
            cell=launches[0],
            inspection=inspections.get(key),
            measured={c.repeat: run.results[c.id] for c in launches if c.id in run.results},
            num_planned=len(launches),
        )
        for key, launches in cells.items()
    }


def _row(row: Launches, table: Mapping[tuple[str, str, int], Launches], run: StoredRun) -> Row:
    cell, good = row.cell, list(row.good.values())
    status, reason = _status(row, run.info.status)
    baseline = _plain_baseline(row, table)
    wrapped = table.get((cell.suite, cell.case, 1))
    throughput = estimate_over_launches([launch_throughput(r) for r in good]) if good else None
    tokens = next((r.ranks[0].tokens_per_sample for r in good), None)
    starts = [r.launch_s for r in good if r.launch_s]
    losses = _mean_losses(good[0]) if good else []
    step_s = _step_estimate(row)
    inspected = baseline.inspection if baseline else None
    fields = (
        _attribution(row, baseline),
        use_of_row(row.inspection, row.good, inspected, throughput),
        _prediction(row, wrapped, run, step_s),
        compression_of_row(cell, row.inspection, row.good),
    )
    values: dict[str, Any] = {
        "step_s": step_s,
        "throughput": throughput,
        "tokens_per_s": throughput.scaled(tokens) if throughput and tokens else None,
        "speedup": ratio_by_round(row, baseline, per_rank=False) if baseline else None,
        "efficiency": ratio_by_round(row, baseline, per_rank=True) if baseline else None,
        "efficiency_wrapped": ratio_by_round(row, wrapped, per_rank=True) if wrapped else None,
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "launch_s": estimate_over_launches(starts) if starts else None,
        "correctness": _correctness(row),
        "num_parameters": next((r.ranks[0].num_parameters for r in good), None),
    }
    return Row(
        suite=cell.suite,
        case=cell.case,
        strategy=cell.strategy.kind,
        strategy_settings=cell.strategy.model_dump(exclude={"kind"}),
        workload=cell.workload.name,
        scaling=cell.scaling,
        device=cell.device,
        backend=cell.backend,
        world_size=cell.world_size,
        global_batch=cell.global_batch,
        rank_batch=cell.rank_batch,
        status=status,
        reason=reason,
        oversubscribed=cell.oversubscribed,
        **_hosts(cell),
        num_clean_steps=sum(len(clean_steps(r)) for r in good),
        stamps=[*_stamps(row, baseline), *(s for part in fields for s in part.stamps)],
        unavailable={
            **_unavailable(values, row, baseline),
            **_no_hosts(cell),
            **{name: why for part in fields for name, why in part.reasons.items()},
        },
        samples=[StepSamples(repeat=r.cell.repeat, step_s=clean_steps(r)) for r in good],
        **values,
        **{name: value for part in fields for name, value in part.values.items()},
    )


def _beside_none(
    rows: Sequence[Row],
    table: Mapping[tuple[str, str, int], Launches],
    link: LinkModel | str,
) -> list[Row]:
    """Return the rows, those of compressed training held against ``none``: losses and steps."""
    compared = list(rows)
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if row.compression is not None and row.step_s is not None:
            key = (row.suite, row.workload, row.world_size, row.global_batch)
            alike.setdefault(key, []).append(index)
    for indices in alike.values():
        courses = {i: _course(rows[i], table) for i in indices}
        exact = next((i for i in indices if _method(rows[i]) == "none"), None)
        if exact is None:
            continue
        for index, losses in compare(courses, courses[exact]).items():
            ratio = _step_ratio(_launches(rows[index], table), _launches(rows[exact], table))
            told = (rows[index].compression or {}) | {"losses": losses}
            told["step_ratio_to_none"] = ratio.model_dump() if ratio else None
            if index != exact:
                told |= _replayed(rows[index], rows[exact], table, link)
            compared[index] = rows[index].model_copy(update={"compression": told})
    return compared


def _replayed(
    row: Row, exact: Row, table: Mapping[tuple[str, str, int], Launches], link: LinkModel | str
) -> dict[str, Any]:
    """Return the link on which a row's step is as long as that of ``none``, or why none is."""
    told = row.compression or {}
    reasons = dict(told.get("unavailable", {}))
    name = "break_even_replayed_byte_per_s"
    own, whole = (table.get((one.suite, one.case, 1)) for one in (row, exact))
    try:
        if isinstance(link, str):
            raise NoBreakEven(link)
        if row.world_size == 1:
            raise NoBreakEven("one rank sends nothing")
        found = replayed_break_even(
            _launches(row, table).cell, own.good if own else {}, whole.good if whole else {}, link
        )
    except NoBreakEven as reason:
        return {name: None, "unavailable": reasons | {name: str(reason)}}
    gives = link.bandwidth_byte_per_s("all_reduce", row.world_size)
    return {name: found.model_dump(), "link_byte_per_s": gives, "unavailable": reasons}


def _method(row: Row) -> str:
    return str((row.compression or {}).get("method"))


def _launches(row: Row, table: Mapping[tuple[str, str, int], Launches]) -> Launches:
    return table[row.suite, row.case, row.world_size]


def _step_ratio(row: Launches, exact: Launches) -> Estimate | None:
    """Estimate a row's step over that of ``none``, within the rounds: drift cancels."""
    ratios = [
        launch_step_s(result) / launch_step_s(exact.good[repeat])
        for repeat, result in row.good.items()
        if repeat in exact.good
    ]
    return estimate_over_launches(ratios) if ratios else None


def _course(row: Row, table: Mapping[tuple[str, str, int], Launches]) -> Course:
    """Return how a row trained in the launch that trained longest."""
    launches = _launches(row, table).good
    longest = max(launches.values(), key=lambda result: result.ranks[0].num_trained)
    assert row.step_s is not None
    return Course(_mean_losses(longest), row.step_s.value)


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
    }


def _no_hosts(cell: Cell) -> dict[str, str]:
    """Return why the row says nothing of links or shares of the processor."""
    if cell.virtual_hosts is None:
        why = "the ranks did not run on virtual hosts"
        return dict.fromkeys(("link", "link_bit_per_s", "cpus_per_rank"), why)
    if cell.virtual_hosts.cpus_per_rank is None:
        return {"cpus_per_rank": "no share of the processor was set"}
    return {}


def _step_estimate(row: Launches) -> Estimate | None:
    good = row.good.values()
    return estimate_over_launches([launch_step_s(r) for r in good]) if good else None


def _attribution(row: Launches, baseline: Launches | None) -> RowFields:
    """Attribute a row, by the steps of the rounds that its efficiency rests on."""
    base = baseline.good if baseline else {}
    rounds = [repeat for repeat in row.good if repeat in base]
    row_s = _mean_step_s(row.good, rounds or list(row.good))
    steps = StepTimes(row_s, _mean_step_s(base, rounds)) if row_s else None
    return attribute_row(row.good, base, steps)


def _prediction(
    row: Launches, wrapped: Launches | None, run: StoredRun, measured: Estimate | None
) -> RowFields:
    """Predict a row from its strategy at N=1 and the run's own calibration."""
    link = _link(run)
    at_one = wrapped.good if wrapped else {}
    return predict_row(row.cell, row.good, at_one, link, measured.value if measured else None)


def _link(run: StoredRun) -> LinkModel | str:
    return LinkModel(run.link.fits) if run.link is not None else run.link_unavailable


def _mean_step_s(good: Mapping[int, CellResult], rounds: Sequence[int]) -> float | None:
    steps = [launch_step_s(good[repeat]) for repeat in rounds]
    return estimate_over_launches(steps).value if steps else None


def _plain_baseline(
    row: Launches, table: Mapping[tuple[str, str, int], Launches]
) -> Launches | None:
    """Return the plain model's launches, with the same loader if there are such."""
    wanted = row.cell.strategy.baseline()
    for loader in (row.cell.loader, None):
        for other in table.values():
            cell = other.cell
            if (
                cell.strategy == wanted
                and cell.loader == loader
                and cell.suite == row.cell.suite
                and cell.workload == row.cell.workload
                and _reference_batch(cell) == _reference_batch(row.cell)
            ):
                return other
    return None


def _reference_batch(cell: Cell) -> int:
    """Return the batch that stays the same over N: global when strong, per rank when weak."""
    return cell.global_batch // (1 if cell.scaling == "strong" else cell.world_size)


def _status(row: Launches, run_status: str) -> tuple[Status, str | None]:
    if row.cell.skip_reason:
        return "skipped", row.cell.skip_reason
    results = [*([row.inspection] if row.inspection else []), *row.measured.values()]
    bad = [result for result in results if result.status != "ok"]
    if bad:
        return bad[0].status, _reason(bad[0], row)
    if not row.measured:
        return "skipped", f"not run: the run is {run_status}"
    return "ok", None


def _reason(first_bad: CellResult, row: Launches) -> str:
    reason = first_bad.reason or "no reason recorded"
    if row.good:
        return (
            f"{reason} (the numbers are of the {len(row.good)} of {row.num_planned} launches "
            "that went well)"
        )
    return reason


def _mean_losses(result: CellResult) -> list[float]:
    """Return the loss of the global batch, the mean over the ranks, up to the last clean step.

    In the rounds that follow, some steps are trained without synchronisation.
    """
    losses = np.array([rank.loss for rank in result.ranks], dtype=float)
    return [float(x) for x in losses.mean(axis=0)[: result.ranks[0].num_trained]]


def _correctness(row: Launches) -> Correctness | None:
    """Return the comparison with the reference as rank 0 tells it (every rank was compared)."""
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
    if not row.good and name != "correctness":
        return "no launch of this row went well"
    if name in ("speedup", "efficiency"):
        there = baseline is not None and baseline.good
        return "no round in which the baseline went well, too" if there else "no plain baseline"
    return {
        "tokens_per_s": "the workload has no tokens",
        "efficiency_wrapped": "no round in which the strategy went well at N=1",
        "correctness": "the inspecting launch did not end well",
    }.get(name, "not recorded")


def failed_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that make a run exit with 4: failed or out of memory, not skipped."""
    return [row for row in rows if row.status in ("failed", "oom")]
