"""From what the user asked to the plan: sizes, threads and steps, every default filled in."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.run import RunSpec
from scalebench.session.plan.cases import (
    Machine,
    Plan,
    Request,
    cases_to_run,
    check_races,
    check_recovery,
    chosen_cases,
    precision_of,
    repeats_of,
    step_plan_of,
    with_request,
    workload_of,
)
from scalebench.session.plan.cells import cells_of_case, in_order, only, row_name
from scalebench.spec import Cell, Device, Script, Suite
from scalebench.spec.presets import PacedShape
from scalebench.spec.script import ScriptTarget
from scalebench.spec.strategies.execution import WHY_NO_FLOAT16
from scalebench.spec.world import VirtualHosts


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
    """Say why rows on GPUs train in other formats; a script decides about its own arithmetic.

    ``emulating``: name of a GPU on which torch emulates bfloat16; None: none does.
    """
    ours = any(not isinstance(cell.strategy, Script) for cell in rows)
    formats = "float16 with a scaled loss, or in float32 where a strategy has none"
    told = f"{emulating} has no bfloat16: ranks train in {formats}"
    return [told] if emulating and ours else []


BUSY_THREADS = 4
"""Of a rank with a GPU: forward pass, backward pass, NCCL, the CUDA driver."""


def check_names(request: Request, suites: Sequence[Suite]) -> None:
    """Raise UsageError for what can be told wrong without knowing the machine."""
    check_races(request, suites)
    check_recovery(request, suites)
    for suite in suites:
        chosen = chosen_cases(suite, request.selection, request.only)
        for case in chosen:
            name = request.workload or case.workload or suite.workload
            if suite.script is None:
                workload_of(case, name, request.device or "cpu")


def make_plan(request: Request, suites: Sequence[Suite], machine: Machine) -> Plan:
    """Work out every cell of a run.

    Raises:
        UsageError: The request contradicts itself or the suites.
        EnvironmentUnfit: CUDA was asked for and there is none.
    """
    if request.only:
        suites = [one.model_copy(update={"collectives": None}) for one in suites if one.cases]
    device = choose_device(request, machine)
    emulating = machine.emulates_bfloat16 if device == "cuda" else None
    half = request.autocast
    request = _in_real_formats(request, suites, device, emulating)
    capacity = _capacity(request, device, machine)
    asked = request.world_sizes or _default_sizes(capacity, machine)
    trains = any(suite.cases for suite in suites)
    sizes = tuple(sorted({1, *asked} if trains else {*asked}))
    _check_collectives(request, suites, sizes)
    if request.virtual_hosts is not None:
        request.virtual_hosts.check(sizes, machine.num_cores)
    threads = _threads(request, machine, [n for n in sizes if n <= capacity])
    crowded = device == "cuda" and threads < BUSY_THREADS
    spec = RunSpec(
        suites=tuple(with_request(suite, request, device) for suite in suites),
        world_sizes=sizes,
        added_world_sizes=tuple(n for n in sizes if n not in asked),
        device=device,
        scaling=request.scaling or suites[0].scaling,
        launcher=machine.launcher if request.virtual_hosts is None else "lab",
        world=machine.world,
        virtual_hosts=request.virtual_hosts,
        oversubscribe=request.oversubscribe,
        threads=threads,
        pinned=_pinned(request, suites, crowded),
        steps=step_plan_of(request, suites[0], device),
        repeats=repeats_of(request, suites[0]),
        budget_s=request.budget_s,
        quick=request.quick,
        **precision_of(request, suites, device, machine),
        selection=request.selection,
        keep_going=request.keep_going,
        anonymise=request.anonymise,
    )
    rows = [
        cell
        for suite in spec.suites
        for case in cases_to_run(suite, request.selection, request.only)
        for cell in cells_of_case(suite, case, spec, capacity)
    ]
    optional = [
        row_name(suite.name, case.name, n)
        for suite in spec.suites
        for case in suite.cases
        if case.optional and request.selection is None
        for n in sizes
    ]
    rows = [_skip_format(cell, emulating, half) for cell in only(rows, request.only, optional)]
    notices = [
        *request.notices,
        *notices_of(spec, machine, capacity),
        *about_paced(rows),
        *about_scripts(rows),
        *about_emulation(rows, emulating),
    ]
    return Plan(spec, tuple(in_order(rows, spec)), tuple(notices))


def _in_real_formats(
    request: Request, suites: Sequence[Suite], device: Device, emulating: str | None
) -> Request:
    """Return the request with its precision: bfloat16 on GPUs, float16 on those without it."""
    if request.autocast is True and emulating:
        raise EnvironmentUnfit(
            f"--dtype bfloat16: {emulating} has none, and emulating it is slower than float32. "
            "Give --dtype float16 or float32."
        )
    saves = any(suite.recovery for suite in suites)  # checkpoints do not hold a loss scale
    half: bool | Literal["float16"] = "float16" if emulating and not saves else not emulating
    default = device == "cuda" and half
    return replace(request, autocast=default if request.autocast is None else request.autocast)


def _skip_format(cell: Cell, emulating: str | None, half: object) -> Cell:
    strategy = cell.strategy
    if half == "float16" and not strategy.scales_loss and not isinstance(strategy, Script):
        why = WHY_NO_FLOAT16.format(strategy.kind)
        return cell.model_copy(update={"skip_reason": cell.skip_reason or why})
    if not emulating or not (strategy.computes_in_bfloat16 or strategy.rounds_parameters):
        return cell
    why = f"{emulating} has no bfloat16, and emulating it is slower than float32"
    return cell.model_copy(update={"skip_reason": cell.skip_reason or why})


def _capacity(request: Request, device: Device, machine: Machine) -> int:
    """Return how many ranks have what they need to themselves: a GPU, a core, or their share."""
    if machine.world is not None:
        return machine.world.capacity(on_gpus=device == "cuda")
    if device == "cuda":
        return machine.num_gpus
    hosts = request.virtual_hosts
    capacity = hosts.capacity(machine.num_cores) if hosts is not None else None
    return machine.num_cores if capacity is None else capacity


def _threads(request: Request, machine: Machine, fitting: Sequence[int]) -> int:
    """Return the threads of each rank, the same at every N."""
    hosts = request.virtual_hosts
    if hosts is not None and hosts.threads is not None:
        return hosts.threads
    if request.threads is not None:
        return request.threads
    if machine.world is not None:
        return machine.world.threads(fitting or [1])
    return max(1, machine.num_cores // max(fitting))


def _pinned(request: Request, suites: Sequence[Suite], crowded: bool) -> bool:
    """Return whether ranks are pinned: not a user's script, which is left as torchrun leaves it.

    Nor crowded ranks, with more busy threads than processors: others would idle.
    """
    if request.pinned is False and request.virtual_hosts is not None:
        raise UsageError(
            "--unpinned was given with --launcher lab, and virtual hosts are always pinned. Leave "
            "out --unpinned, or give --pinned."
        )
    if request.pinned is not None:
        return request.pinned
    if request.virtual_hosts is not None:
        return True
    return not crowded and any(suite.script is None for suite in suites)


def _check_collectives(request: Request, suites: Sequence[Suite], sizes: Sequence[int]) -> None:
    """Raise UsageError where collectives cannot be timed as asked."""
    names = [suite.name for suite in suites if suite.collectives is not None]
    if names and max(sizes) < 2:
        raise UsageError(
            f"Suite {names[0]} times collectives, and one rank sends nothing. "
            "Give --gpus with 2 ranks or more."
        )
    if names and request.link_profile is not None:
        raise UsageError(
            f"Suite {names[0]} measures the links itself, and --link-profile also gives them. "
            "Leave out one of them."
        )


def choose_device(request: Request, machine: Machine) -> Device:
    """Return what the ranks train on.

    Raises:
        UsageError: Virtual hosts have CPU ranks only.
        EnvironmentUnfit: There is no CUDA device, or one that cannot be used and no one said that
            the CPU will do.
    """
    if request.virtual_hosts is not None:
        if request.device == "cuda":
            raise UsageError("--launcher lab runs CPU ranks only. Leave out --device cuda.")
        return "cpu"
    if request.device != "cpu" and machine.unusable is not None:
        raise EnvironmentUnfit(machine.unusable)
    if request.device == "cuda" and machine.num_gpus == 0:
        raise EnvironmentUnfit(
            "--device cuda: torch sees no CUDA device here. `scalebench doctor` says why; "
            "--device cpu runs the ranks on CPU over gloo."
        )
    return request.device or ("cuda" if machine.num_gpus else "cpu")


def _default_sizes(capacity: int, machine: Machine) -> tuple[int, ...]:
    """Return the powers of two up to the devices; of a world, up to its size, and that."""
    if machine.world is None:
        return _powers_of_two(capacity)
    return (*_powers_of_two(machine.world.size), machine.world.size)


def _powers_of_two(capacity: int) -> tuple[int, ...]:
    return tuple(1 << i for i in range(capacity.bit_length()))
