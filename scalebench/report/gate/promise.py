"""What the gate promises about false alarms in this call, in words."""

from scalebench.gate.result import GateResult

_COVERED = {
    "launches": (
        "covers how launches of one job differ, not how jobs and hosts do; for those use "
        "--interleave, or accept more runs of the same code (`scalebench baseline accept --add`)"
    ),
    "runs": "covers how jobs and hosts differ, too: estimated from {runs} accepted runs{hosts}",
    "interleaved": "covers drift of the machine, too: both versions were interleaved in one job",
}


def promise_text(result: GateResult) -> str | None:
    """Return one sentence; None: nothing rests on launches."""
    covers = result.covers
    if covers is None:
        return None
    runs = min(row.base_runs for row in result.deciding if row.basis == "launches")
    allowed = [row.host_allowance for row in result.deciding if row.metric == "step_s"]
    hosts = (
        f", and a host may be {100 * min(allowed):g} % slower than theirs" if any(allowed) else ""
    )
    rate = f"at most {100 * result.false_alarm_rate:g} gate in 100 fails by mistake"
    return f"if nothing changed, {rate}; this {_COVERED[covers].format(runs=runs, hosts=hosts)}"
