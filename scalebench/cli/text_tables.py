"""Small tables for the terminal: the plan of a dry run, the inventory, the doctor's findings."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalebench.analysis.validity import unmeasured_cases
from scalebench.session.machine.diagnosis import Finding
from scalebench.session.plan import Plan
from scalebench.session.plan.max_batch import Forecast
from scalebench.spec import Cell
from scalebench.spec.script import ScriptTarget
from scalebench.spec.world import FORWARDED_BIT_PER_S, rate_text
from scalebench.units import bytes_, count, flop_rate, rough_time, significant


def columns(rows: Sequence[Sequence[str]], indent: int = 2) -> str:
    """Align rows of cells in columns; numbers are the caller's business."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join((" " * indent + line).rstrip() for line in lines)


def render_plan(forecast: Forecast, plan: Plan) -> str:
    """Return what ``--dry-run`` prints."""
    header = ("suite", "case", "N", "batch", "per rank", "backend", "launches", "state per rank")
    body = [
        (
            row.cell.suite,
            row.cell.case,
            str(row.cell.world_size),
            *_batches(row.cell),
            row.cell.backend or "—",
            f"skipped: {row.cell.skip_reason}" if row.cell.skip_reason else str(row.num_launches),
            "unknown" if row.state_bytes is None else bytes_(row.state_bytes),
        )
        for row in forecast.rows
    ]
    num_launches = sum(row.num_launches for row in forecast.rows)
    num_checks = sum(row.num_checks for row in forecast.rows)
    timed_or_not = (
        f" ({num_launches - num_checks} timed; {num_checks} check results and count memory)"
        if num_checks
        else ""
    )
    wall = (
        f"the time depends on {forecast.depends_on}"
        if forecast.wall_s is None
        else f"about {rough_time(forecast.wall_s)}"
    )
    timed = [
        f"suite {suite.name} times {', '.join(suite.collectives.operations)}"
        for suite in plan.spec.suites
        if suite.collectives is not None
    ]
    if not forecast.rows:
        return "\n".join([*plan.notices, *timed, "No model is trained."])
    unmeasured = unmeasured_cases(row.cell for row in forecast.rows)
    return "\n".join(
        [
            *plan.notices,
            *timed,
            f"{plan.spec.scaling} scaling, workload {forecast.rows[0].cell.workload.name}",
            "",
            columns([header, *body], indent=0),
            "",
            f"{num_launches} launches{timed_or_not}, {wall}",
            *_beside_the_rows(forecast, plan),
            *(f"Nothing of {name} can be measured: exit code 4." for name in unmeasured),
            "Nothing was trained."
            if forecast.wall_s is None
            else "The time is estimated from usual times; nothing was trained.",
            "State is predicted: parameters, gradients, optimizer, buckets. Activations are extra.",
        ]
    )


def _beside_the_rows(forecast: Forecast, plan: Plan) -> list[str]:
    """Say what else is launched than what the table of rows counts, and how."""
    spec, lines = plan.spec, []
    if forecast.num_independent:
        lines.append(
            f"{forecast.num_independent} more launches train plain ranks that send nothing: what "
            "sharing the machine costs."
        )
    if spec.shared and not all(suite.race for suite in spec.suites):
        lines.append("In each round the rows of a suite are launched together and take turns.")
    if spec.precision is not None and spec.precision_budget_s is not None:
        lines.append(
            "Further rounds follow until every efficiency is known to "
            f"±{100 * spec.precision:g} %, or for {rough_time(spec.precision_budget_s)} in all."
        )
    return lines


def _batches(cell: Cell) -> tuple[str, str]:
    """Write the batch of all ranks and of one; a script's may be known only when it has run."""
    if isinstance(cell.workload, ScriptTarget) and not cell.workload.takes_batch:
        return "counted", "counted"
    return str(cell.global_batch), str(cell.rank_batch)


def render_inventory(inventory: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return what ``scalebench list`` prints."""
    parts = []
    for kind, entries in inventory.items():
        rows = []
        for entry in entries:
            size = (
                f"{count(entry['num_parameters'])} parameters, "
                if "num_parameters" in entry
                else ""
            )
            about = f"{size}{entry['about']}"
            if entry.get("hides_bundled"):
                about += (
                    f" ({entry['file']}, not the suite of this name that comes with scalebench)"
                )
            if entry["cannot_run"]:
                about = f"{about}; cannot run: {entry['cannot_run']}".lstrip("; ")
            rows.append((entry["name"], about))
            for case in entry.get("cases", ()):
                how = "; optional: select it with -k" if case["optional"] else ""
                rows.append((f"  {case['name']}", f"{case['about']}{how}"))
        parts.append(f"{kind}\n{columns(rows) if rows else '  none yet'}")
    return "\n\n".join(parts)


def _siblings(facts: Mapping[str, Any]) -> str:
    """Say where processors share a core: one rank a core is measured, not one a processor."""
    if facts["processors"] <= facts["cores"]:
        return ""
    return f" of {facts['processors']} processors; siblings share a core, or a limit applies"


def render_diagnosis(
    facts: Mapping[str, Any], conditions: Mapping[str, Any], findings: Sequence[Finding]
) -> str:
    """Return what ``scalebench doctor`` prints."""
    rows = [
        ("machine", f"{facts['host']}, {facts['os']}"),
        ("processor", f"{facts['cpu']}, {facts['cores']} core(s) usable{_siblings(facts)}"),
        (
            "memory",
            f"{bytes_(conditions['memory_available_bytes'])} free of "
            f"{bytes_(facts['memory_bytes'])}",
        ),
        ("torch", f"{facts['torch']}, backends {', '.join(facts['backends'])}"),
        _platform(facts),
        *(
            (f"cuda:{d['index']}", f"{d['name']}, {bytes_(d['memory_bytes'])}")
            for d in facts["devices"]
        ),
        *((f"rate of {r['device']}", _rates(r)) for r in facts.get("rates", [])),
        *((f"peers of cuda:{d['index']}", _peers(d)) for d in facts["devices"]),
        ("links", _links(conditions["links"])),
        ("clock", _clock(conditions)),
        ("threads", f"per rank: {facts['cores']} cores ÷ the largest number of ranks"),
        *_virtual_hosts(conditions.get("virtual_hosts")),
        ("/dev/shm", bytes_(conditions["shm_bytes"]) if conditions["shm_bytes"] else "none"),
    ]
    lines = [line for finding in findings for line in _finding_lines(finding)]
    return "\n".join([columns(rows, indent=0), "", *(lines or ["No problems found."])])


def _platform(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Say for which GPUs torch is built, and which library connects them."""
    for name, version, library in (("CUDA", "cuda", "NCCL"), ("ROCm", "hip", "RCCL")):
        if facts.get(version):
            connects = f", {library} {facts['nccl']}" if facts["nccl"] else ""
            return name, f"{facts[version]}{connects}"
    return "CUDA", "none in this torch"


def _virtual_hosts(possible: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Say what --launcher lab can do here; nothing where it was not tried."""
    if possible is None:
        return []
    if possible["network"]:
        return [("virtual hosts", "none: see below")]
    how = "in a user namespace" if possible["rootless"] else "in network namespaces"
    share = "without CPU shares: see below" if possible["quota"] else "with CPU shares"
    limit = rate_text(FORWARDED_BIT_PER_S)
    return [("virtual hosts", f"{how}, {share}; links of up to {limit} in all, no added latency")]


def _rates(rate: Mapping[str, Any]) -> str:
    matrix, copy = flop_rate(rate["matrix_flop_per_s"]), bytes_(rate["copy_byte_per_s"])
    return f"matrix {matrix}, copy {copy}/s (read + written)"


def _peers(device: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"cuda:{other}" for other in device.get("peers", ())) or "none reach it directly"
    )


def _links(links: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{name} ({significant(link['bit_per_s'] / 1e9)} Gbit/s)" if link["bit_per_s"] else name
        for name, link in sorted(links.items())
    )


def _clock(conditions: Mapping[str, Any]) -> str:
    clock = conditions["cpu_clock_hz"]
    governor = conditions["cpu_governor"]
    rate = f"CPU {significant(clock / 1e9)} GHz" if clock else "not told"
    return f"{rate}, governor {governor}" if governor else rate


def _finding_lines(finding: Finding) -> list[str]:
    remedy = [f"         → {finding.remedy}"] if finding.remedy else []
    return [f"{finding.level:<8} {finding.text}", *remedy]
