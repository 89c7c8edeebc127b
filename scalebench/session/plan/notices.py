"""What the reader has to know about a whole run before it begins."""

from collections.abc import Sequence

from scalebench.records.run import RunSpec
from scalebench.session.plan.request import Machine
from scalebench.spec import Cell, Script
from scalebench.spec.presets import PacedShape
from scalebench.spec.script import ScriptTarget
from scalebench.spec.virtual_hosts import VirtualHosts


def notices_of(spec: RunSpec, machine: Machine, capacity: int) -> list[str]:
    """Return what holds for every row: device, threads, links, what is scarce."""
    notices = []
    if spec.virtual_hosts is not None:
        notices += _about_virtual_hosts(spec, spec.virtual_hosts)
    elif spec.device == "cpu":
        why = "no CUDA device" if machine.num_gpus == 0 else "--device cpu"
        plural = "" if spec.threads == 1 else "s"
        left = "" if spec.pinned else ", unpinned"
        notices.append(f"CPU ranks over gloo ({why}), {spec.threads} thread{plural} per rank{left}")
    elif not spec.pinned and any(suite.script is None for suite in spec.suites):
        notices.append("GPU ranks are not pinned: their threads may use every processor")
    if spec.world is not None:
        notices.append(spec.world.describe(spec.world_sizes))
    num_ranks = spec.world.size if spec.world is not None else max(spec.world_sizes)
    beyond = [n for n in spec.world_sizes if capacity < n <= num_ranks]
    if beyond and (spec.device == "cpu" or spec.oversubscribe):
        things = _scarce_things(spec)
        sizes = ", ".join(map(str, beyond))
        notices.append(
            f"N = {sizes}: more ranks than {things} ({capacity}): oversubscribed, mechanics only"
        )
    if spec.added_world_sizes:
        notices.append("N = 1 was added: speedup and efficiency are measured against it")
    return notices


def _scarce_things(spec: RunSpec) -> str:
    if spec.virtual_hosts is not None and spec.virtual_hosts.cpu is not None:
        return f"shares of {spec.virtual_hosts.cpu} of a core that fit here"
    return "cores" if spec.device == "cpu" else "GPUs"


def _about_virtual_hosts(spec: RunSpec, hosts: VirtualHosts) -> list[str]:
    """Say what the hosts are, and at which sizes their links may not hold."""
    cpu_share = "no CPU quota"
    if hosts.cpu is not None:
        cpu_share = f"{hosts.cpu} of a core per rank"
    several = f", {hosts.ranks_per_host} ranks per host" if hosts.ranks_per_host > 1 else ""
    messages = [
        f"Virtual hosts on this machine (CPU ranks over gloo), links of {hosts.link}, "
        f"{cpu_share}{several}: no other traffic, no latency added"
    ]
    overloads = {n: hosts.overload(n) for n in spec.world_sizes}
    messages += [f"N = {n}: link not held: {why}" for n, why in overloads.items() if why]
    return messages


def about_paced(rows: Sequence[Cell]) -> list[str]:
    """Say which workloads wait instead of computing."""
    names = dict.fromkeys(c.workload.name for c in rows if isinstance(c.workload, PacedShape))
    return [
        f"Workload {name}: stages of a fixed duration instead of arithmetic; gradients and "
        "communication are real"
        for name in names
    ]


def about_scripts(rows: Sequence[Cell]) -> list[str]:
    """Say how the work of the user's own script grows with N, and what is no placeholder."""
    targets = dict.fromkeys(c.workload for c in rows if isinstance(c.workload, ScriptTarget))
    in_braces = [
        f"{target.shown} gets {{{name}}} as it stands: it is no placeholder of scalebench's"
        for target in targets
        for name in target.other_braces
    ]
    return in_braces + [
        f"{target.shown}: the same arguments at every N; what its ranks are seen to do tells "
        "whether that is strong or weak scaling"
        for target in targets
        if not target.depends_on_size and target.scaling is None
    ]


def about_emulation(rows: Sequence[Cell], emulating: str | None) -> list[str]:
    """Say why rows on GPUs train in float32; a script decides about its own arithmetic.

    Args:
        rows: Of the plan.
        emulating: Name of a GPU on which torch emulates bfloat16; None: none does.
    """
    ours = any(not isinstance(cell.strategy, Script) for cell in rows)
    return [f"{emulating} has no bfloat16: ranks train in float32"] if emulating and ours else []
