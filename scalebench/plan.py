"""From what the user asked to the list of cells: every default filled in, nothing run yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Any

from scalebench.catalog import CustomTarget, PacedShape, WorkloadSpec, resolve_workload
from scalebench.costmodel.schedule_orders import why_no_pipeline
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records import RunSpec
from scalebench.selection import matches, words
from scalebench.spec import (
    Case,
    Cell,
    Collectives,
    Ddp,
    Device,
    Pipeline,
    Plain,
    Scaling,
    StepPlan,
    Strategy,
    Suite,
)
from scalebench.virtual_hosts import VirtualHosts
from scalebench.world import World

QUICK = {"window_s": 0.25, "min_steps": 5, "rounds_s": 0.25}
QUICK_REPEATS = 1
QUICK_COLLECTIVES = {"max_bytes": 2**18, "repeats": 3}


@dataclass(frozen=True)
class Request:
    """What the user asked for; None means: as the suite, or the machine, says."""

    world_sizes: tuple[int, ...] | None = None
    device: Device | None = None
    oversubscribe: bool = False
    workload: str | None = None
    autocast: bool | None = None
    compile: bool | None = None
    scaling: Scaling | None = None
    batch_size: int | None = None
    steps: int | None = None
    repeats: int | None = None
    precision: float | None = None
    budget_s: float | None = None
    quick: bool = False
    trace: bool = True
    selection: str | None = None
    virtual_hosts: VirtualHosts | None = None
    link_profile: Path | None = None
    max_batch: bool = False
    memory_limit_bytes: int | None = None
    keep_going: bool = False
    anonymise: bool = False
    allow_busy: bool = False


@dataclass(frozen=True)
class Plan:
    """What will be run: the resolved specification, the cells in order, what to tell first."""

    spec: RunSpec
    cells: tuple[Cell, ...]
    notices: tuple[str, ...]

    @property
    def custom_workloads(self) -> list[CustomTarget]:
        """The users' own workloads among the cells, each once."""
        found = {c.workload.name: c.workload for c in self.cells}
        return [w for w in found.values() if isinstance(w, CustomTarget)]


@dataclass(frozen=True)
class Machine:
    """What the plan has to know of the machine, or of the world that ranks are taken from."""

    num_gpus: int
    num_cores: int
    world: World | None = None

    @property
    def launcher(self) -> str | None:
        """Who has started the ranks; None: scalebench does."""
        return None if self.world is None else self.world.launcher


def check_names(request: Request, suites: Sequence[Suite]) -> None:
    """Raise UsageError for what can be told wrong without knowing the machine."""
    for suite in suites:
        chosen = _chosen(suite, request.selection)
        for case in chosen:
            name = request.workload or case.workload or suite.workload
            _workload_of(case, name, request.device or "cpu")


def make_plan(request: Request, suites: Sequence[Suite], machine: Machine) -> Plan:
    """Work out every cell of a run.

    Raises:
        UsageError: The request contradicts itself or the suites.
        EnvironmentUnfit: CUDA was asked for and there is none.
    """
    device = _choose_device(request, machine)
    capacity = _capacity(request, device, machine)
    asked = request.world_sizes or _default_sizes(capacity, machine)
    trains = any(suite.cases for suite in suites)
    sizes = tuple(sorted({1, *asked} if trains else {*asked}))
    _check_collectives(request, suites, sizes)
    if request.virtual_hosts is not None:
        request.virtual_hosts.check(sizes, machine.num_cores)
    spec = RunSpec(
        suites=tuple(_with_request(suite, request, device) for suite in suites),
        world_sizes=sizes,
        added_world_sizes=tuple(n for n in sizes if n not in asked),
        device=device,
        scaling=request.scaling or suites[0].scaling,
        launcher=machine.launcher or ("local" if request.virtual_hosts is None else "lab"),
        world=machine.world,
        virtual_hosts=request.virtual_hosts,
        oversubscribe=request.oversubscribe,
        threads=_threads(request, machine, [n for n in sizes if n <= capacity]),
        steps=_step_plan(request, suites[0]),
        repeats=_repeats(request, suites[0]),
        budget_s=request.budget_s,
        quick=request.quick,
        selection=request.selection,
        keep_going=request.keep_going,
        anonymise=request.anonymise,
    )
    rows = [
        cell
        for suite in spec.suites
        for case in _cases_to_run(suite, request.selection)
        for cell in _cells_of_case(suite, case, spec, capacity)
    ]
    notices = [*_notices(spec, machine, capacity), *_about_paced(rows)]
    return Plan(spec, tuple(_in_order(rows, spec)), tuple(notices))


def _workload_of(case: Case, name: str, device: Device) -> WorkloadSpec:
    """Return the workload called ``name``.

    Raises:
        UsageError: There is none, it brings its own loader and the case asks for one, or it has
            nothing to do on the device.
    """
    workload = resolve_workload(name, device)
    if case.loader is not None and isinstance(workload, CustomTarget):
        raise UsageError(
            f"Case {case.name} feeds a built-in workload through a DataLoader, and {name} brings "
            "its own batches. Choose a case without a loader, and return a DataLoader in "
            f"Workload(batches=...) of {name}; or give a built-in --workload."
        )
    if isinstance(workload, PacedShape) and device == "cuda":
        raise UsageError(
            f"--workload {name} waits instead of computing and has nothing to do for a GPU. "
            "Give --device cpu, or another workload."
        )
    return workload


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
    if machine.world is not None:
        return machine.world.threads(fitting or [1])
    return max(1, machine.num_cores // max(fitting))


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
            f"Suite {names[0]} measures the links that --link-profile would tell. Leave out one "
            "of them."
        )


def _choose_device(request: Request, machine: Machine) -> Device:
    if request.virtual_hosts is not None:
        if request.device == "cuda":
            raise UsageError("--launcher lab runs CPU ranks only. Leave out --device cuda.")
        return "cpu"
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


def _repeats(request: Request, suite: Suite) -> int:
    return request.repeats or (QUICK_REPEATS if request.quick else suite.repeats)


def _step_plan(request: Request, suite: Suite) -> StepPlan:
    changes: dict[str, Any] = dict(QUICK) if request.quick else {}
    changes |= {"steps": request.steps} if request.steps else {}
    changes |= {"precision": request.precision} if request.precision else {}
    changes |= {} if request.trace else {"trace": False}
    return suite.steps.model_copy(update=changes)


def _with_request(suite: Suite, request: Request, device: Device) -> Suite:
    """Return the suite with the request's values in place of its own."""
    autocast = device == "cuda" if request.autocast is None else request.autocast
    compiled = device == "cuda" if request.compile is None else request.compile
    cases = tuple(
        case.model_copy(
            update={
                "strategy": case.strategy.model_copy(
                    update={
                        "autocast": case.strategy.autocast or autocast,
                        "compile": case.strategy.compile or compiled,
                    }
                ),
                "workload": request.workload or case.workload or suite.workload,
                "batch_size": request.batch_size or case.batch_size or suite.batch_size,
            }
        )
        for case in suite.cases
    )
    collectives = suite.collectives and _collectives_to_time(suite, suite.collectives, request)
    changes = {
        "cases": cases,
        "collectives": collectives,
        "scaling": request.scaling or suite.scaling,
        "steps": _step_plan(request, suite),
        "repeats": _repeats(request, suite),
    }
    return suite.model_copy(update=changes)


def _collectives_to_time(suite: Suite, asked: Collectives, request: Request) -> Collectives:
    """Return the collectives with what the request says; ``-k`` chooses where nothing trains."""
    changes: dict[str, Any] = dict(QUICK_COLLECTIVES) if request.quick else {}
    if request.selection is not None and not suite.cases:
        chosen = tuple(op for op in asked.operations if matches(request.selection, op))
        if not chosen:
            raise UsageError(
                f"-k {request.selection!r} matches no operation of suite {suite.name}. "
                f"Operations: {', '.join(asked.operations)}."
            )
        changes["operations"] = chosen
    return asked.model_copy(update=changes)


def _cases_to_run(suite: Suite, selection: str | None) -> list[Case]:
    """Return the chosen cases, each after the plain baseline that it is measured against."""
    ordered: list[Case] = []
    for case in _chosen(suite, selection):
        baseline = _baseline_of(case, ordered, suite)
        ordered += [baseline, case]
    return list(dict.fromkeys(ordered))


def _chosen(suite: Suite, selection: str | None) -> list[Case]:
    """Return the cases to run; an optional one needs a word that no default case's name has."""
    if selection is None or not suite.cases:
        return [case for case in suite.cases if not case.optional]
    default_names = [case.name for case in suite.cases if not case.optional]
    special = [w for w in words(selection) if not any(w in name for name in default_names)]
    chosen = [
        case
        for case in suite.cases
        if matches(selection, case.name)
        and (not case.optional or any(word in case.name for word in special))
    ]
    if not chosen:
        names = ", ".join(case.name for case in suite.cases)
        raise UsageError(f"-k {selection!r} matches no case of suite {suite.name}. Cases: {names}.")
    return chosen


def _baseline_of(case: Case, known: Sequence[Case], suite: Suite) -> Case:
    """Return the plain case that a case is measured against.

    One that is fed by the same loader, if the suite has it; else the one with resident batches,
    so that what the loader costs is part of the loss.
    """
    wanted = case.strategy.baseline()
    for loader in (case.loader, None):
        for other in (*known, *suite.cases):
            same_work = (other.workload, other.batch_size) == (case.workload, case.batch_size)
            if other.strategy == wanted and same_work and other.loader == loader:
                return other
    name, number = _baseline_name(wanted), 2
    taken = {c.name for c in (*known, *suite.cases)}
    while name in taken:
        name, number = f"{_baseline_name(wanted)}-{number}", number + 1
    return Case(name=name, strategy=wanted, workload=case.workload, batch_size=case.batch_size)


def _baseline_name(strategy: Plain) -> str:
    marks = [("-bf16", strategy.autocast), ("-compiled", strategy.compile)]
    return "plain" + "".join(mark for mark, on in marks if on)


def _cells_of_case(suite: Suite, case: Case, spec: RunSpec, capacity: int) -> list[Cell]:
    """Return one measuring cell, repeat 0, per world size."""
    workload = _workload_of(case, case.workload or suite.workload, spec.device)
    batch = case.batch_size or workload.batch_size
    sizes = (1,) if isinstance(case.strategy, Plain) else spec.world_sizes
    cells = []
    for n in sizes:
        missing = spec.world.too_small_for(n) if spec.world is not None else None
        too_many = n > capacity and missing is None
        skipped = _too_few_gpus(n, capacity, spec) if too_many else None
        skipped = missing or skipped
        skipped = skipped or _no_way_between(case.strategy, spec.device, too_many)
        shards = case.strategy.num_shards(n)
        whole = batch * n if suite.scaling == "weak" else batch
        if whole % shards and skipped is None:
            raise _not_divisible(batch, shards, spec.world_sizes)
        rank_batch = whole // shards
        cells.append(
            Cell(
                suite=suite.name,
                case=case.name,
                strategy=case.strategy,
                workload=workload,
                scaling=suite.scaling,
                world_size=n,
                global_batch=rank_batch * shards,
                rank_batch=rank_batch,
                device=spec.device,
                backend=_backend(case.strategy, spec.device, too_many),
                threads=spec.threads,
                loader=case.loader,
                oversubscribed=too_many,
                virtual_hosts=spec.virtual_hosts,
                purpose="measure",
                steps=suite.steps,
                seed=suite.seed,
                limit_s=suite.cell_limit_s,
                collective_timeout_s=suite.collective_timeout_s,
                skip_reason=skipped
                or case.strategy.why_not(spec.device, n)
                or _unfit(case.strategy, rank_batch, n),
            )
        )
    return [_with_parts(cell, cells) for cell in cells]


def _with_parts(cell: Cell, of_case: Sequence[Cell]) -> Cell:
    """Have a case's cell at N=1 time its steps on the batches of the other sizes, too.

    Not where the model is compiled: another batch size would be compiled anew. The stages of a
    pipeline are made for one batch size.
    """
    batches = {other.rank_batch for other in of_case if other.skip_reason is None}
    parts = sorted(batches - {cell.rank_batch}, reverse=True)
    strategy = cell.strategy
    wanted = cell.world_size == 1 and not strategy.compile and not isinstance(strategy, Pipeline)
    return cell.model_copy(update={"part_batches": tuple(parts)}) if wanted and parts else cell


def _backend(strategy: Strategy, device: Device, too_many: bool) -> str | None:
    if isinstance(strategy, Plain):
        return None
    return "nccl" if device == "cuda" and not too_many else "gloo"


def _too_few_gpus(n: int, capacity: int, spec: RunSpec) -> str | None:
    if spec.device == "cpu" or spec.oversubscribe:
        return None
    return f"{n} ranks need {n} GPUs and there are {capacity}; --oversubscribe shares them"


def _no_way_between(strategy: Strategy, device: Device, too_many: bool) -> str | None:
    """Say why ranks that share a GPU cannot run a strategy; None: they can."""
    if isinstance(strategy, Pipeline) and device == "cuda" and too_many:
        return (
            "stages send to one another, and gloo, over which ranks share a GPU, cannot from GPUs"
        )
    return None


def _not_divisible(batch: int, n: int, sizes: Sequence[int]) -> UsageError:
    step = lcm(*sizes)
    below, above = batch // step * step, -(-batch // step) * step
    nearest = " or ".join(str(b) for b in (below, above) if b)
    return UsageError(
        f"A global batch of {batch} cannot be divided over {n} ranks (strong scaling). "
        f"Give --batch-size {nearest}, or --scaling weak."
    )


def _unfit(strategy: Strategy, rank_batch: int, n: int) -> str | None:
    """Say why a strategy cannot run with N ranks or a batch; None: it can."""
    if isinstance(strategy, Pipeline):
        return why_no_pipeline(strategy, rank_batch, n)
    if not isinstance(strategy, Ddp) or rank_batch % strategy.accumulate == 0:
        return None
    return (
        f"{rank_batch} samples per rank at N={n} cannot be cut into "
        f"{strategy.accumulate} microbatches"
    )


def _in_order(rows: Sequence[Cell], spec: RunSpec) -> list[Cell]:
    """Return all launches: inspections first, then rounds over cases and sizes.

    Correctness comes before speed. Each round launches every cell once, so that a drift of the
    machine hits all sizes alike.
    """
    inspections = [cell.model_copy(update={"purpose": "inspect"}) for cell in rows]
    repeats_of = {suite.name: suite.repeats for suite in spec.suites}
    rounds = [
        cell.model_copy(update={"repeat": repeat})
        for repeat in range(max(repeats_of.values(), default=0))
        for cell in rows
        if repeat < repeats_of[cell.suite]
    ]
    return inspections + rounds


def _notices(spec: RunSpec, machine: Machine, capacity: int) -> list[str]:
    notices = []
    if spec.virtual_hosts is not None:
        notices += _about_virtual_hosts(spec, spec.virtual_hosts)
    elif spec.device == "cpu":
        why = "no CUDA device" if machine.num_gpus == 0 else "--device cpu"
        plural = "" if spec.threads == 1 else "s"
        notices.append(f"CPU ranks over gloo ({why}), {spec.threads} thread{plural} per rank")
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
    if spec.virtual_hosts is not None and spec.virtual_hosts.cpus_per_rank is not None:
        return f"shares of {spec.virtual_hosts.cpus_per_rank:g} of a core that fit here"
    return "cores" if spec.device == "cpu" else "GPUs"


def _about_virtual_hosts(spec: RunSpec, hosts: VirtualHosts) -> list[str]:
    """Say what the hosts are, and at which sizes their links may not hold."""
    share = "no CPU quota"
    if hosts.cpus_per_rank is not None:
        share = f"{hosts.cpus_per_rank:g} of a core per rank"
    several = f", {hosts.ranks_per_host} ranks per host" if hosts.ranks_per_host > 1 else ""
    told = [
        f"Virtual hosts on this machine (CPU ranks over gloo), links of {hosts.link}, "
        f"{share}{several}: no other traffic, no latency added"
    ]
    overloads = {n: hosts.overload(n) for n in spec.world_sizes}
    told += [f"N = {n}: link not held: {why}" for n, why in overloads.items() if why]
    return told


def _about_paced(rows: Sequence[Cell]) -> list[str]:
    names = dict.fromkeys(c.workload.name for c in rows if isinstance(c.workload, PacedShape))
    return [
        f"Workload {name}: stages of a fixed duration instead of arithmetic; gradients and "
        "communication are real"
        for name in names
    ]
