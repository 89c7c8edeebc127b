"""What was run: a row's case, how its work was divided, where, and what became of it."""

from scalebench.analysis.rows.context import Context
from scalebench.analysis.rows.fields import Fields, null
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.resources import memory_of_row
from scalebench.analysis.unmeasured import NOT_REACHED
from scalebench.records.run import CellResult, Status
from scalebench.spec import Cell
from scalebench.units import bytes_


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
