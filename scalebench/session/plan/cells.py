"""The launches: every case at every size, skipped with the reason where it cannot be run."""

from collections.abc import Mapping, Sequence
from math import lcm

from scalebench.costmodel.pipeline_schedule import why_no_pipeline
from scalebench.errors import UsageError, unknown_name
from scalebench.records.run import RunSpec
from scalebench.session.plan.cases import recovery_cells, workload_of
from scalebench.spec import (
    Case,
    Cell,
    Ddp,
    Device,
    FromFramework,
    Fsdp,
    Fsdp1,
    Grouped,
    Mesh,
    PipeDream,
    Pipeline,
    Plain,
    Script,
    Strategy,
    Suite,
)
from scalebench.spec.presets import WorkloadSpec, divisible
from scalebench.spec.recovery import OPTIMIZERS
from scalebench.spec.workload import Divisible


def cells_of_case(suite: Suite, case: Case, spec: RunSpec, capacity: int) -> list[Cell]:
    """Return one measuring cell, repeat 0, per world size."""
    named = case.workload or suite.workload
    workload = suite.script or workload_of(case, named, spec.device)
    batch = case.batch_size or workload.batch_size
    sizes = _sizes(suite, case, spec)
    cells = []
    for n in sizes:
        missing = spec.world.too_small_for(n) if spec.world is not None else None
        too_many = n > capacity and missing is None
        skipped = missing
        if too_many and spec.device == "cuda" and not spec.oversubscribe:
            skipped = (
                f"{n} ranks need {n} GPUs and there are {capacity}; --oversubscribe shares them"
            )
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
                pinned=spec.pinned,
                loader=case.loader,
                recipe=case.recipe,
                race=suite.race,
                oversubscribed=too_many,
                virtual_hosts=spec.virtual_hosts,
                purpose="measure",
                steps=suite.steps,
                seed=suite.seed,
                limit_s=suite.cell_limit_s,
                collective_timeout_s=suite.timeout_s(spec.device),
                skip_reason=skipped
                or case.strategy.why_not(spec.device, n)
                or _unfit(case.strategy, workload, rank_batch, n)
                or _unfit_for_optimizer(case)
                or unfit_for_race(suite, case.strategy, rank_batch * shards, n),
            )
        )
    return [_with_parts(cell, cells) for cell in cells]


def _sizes(suite: Suite, case: Case, spec: RunSpec) -> tuple[int, ...]:
    """Return the world sizes of a case.

    In a race one rank is left to the baseline: what many ranks reach after so many samples, one
    reaches too.
    """
    if isinstance(case.strategy, Plain):
        return (1,)
    several = tuple(n for n in spec.world_sizes if n > 1)
    return several if suite.race is not None and several else spec.world_sizes


def _with_parts(cell: Cell, of_case: Sequence[Cell]) -> Cell:
    """Have a case's cell at N=1 time its steps on the batches of the other sizes, too.

    Not where the model is compiled: another batch size would be compiled again. The stages of a
    pipeline are made for one batch size.
    """
    batches = {other.rank_batch for other in of_case if other.skip_reason is None}
    parts = sorted(batches - {cell.rank_batch}, reverse=True)
    strategy = cell.strategy
    wanted = cell.world_size == 1 and not strategy.compile and not isinstance(strategy, Pipeline)
    wanted = wanted and strategy.has_reference and cell.race is None
    return cell.model_copy(update={"part_batches": tuple(parts)}) if wanted and parts else cell


def _backend(strategy: Strategy, device: Device, too_many: bool) -> str | None:
    if isinstance(strategy, Plain | Script):
        return None
    return "nccl" if device == "cuda" and not too_many else "gloo"


def _no_way_between(strategy: Strategy, device: Device, too_many: bool) -> str | None:
    """Say why ranks that share a GPU cannot run a strategy; None: they can."""
    in_stages = isinstance(strategy, Pipeline | PipeDream) or (
        isinstance(strategy, Mesh) and strategy.pipeline > 1
    )
    if in_stages and device == "cuda" and too_many:
        return (
            "ranks that share a GPU use gloo, and gloo cannot send between pipeline stages on GPUs"
        )
    return None


def skip_indivisible(cells: Sequence[Cell], workloads: Mapping[str, Divisible]) -> list[Cell]:
    """Return the cells, skipped where users' own workloads turn out not to be divisible."""
    found = []
    for cell in cells:
        workload = workloads.get(cell.workload.name)
        if cell.skip_reason is None and workload is not None:
            reason = cell.strategy.why_not_divided(workload, cell.world_size)
            cell = cell.model_copy(update={"skip_reason": reason})
        found.append(cell)
    return found


def _not_divisible(batch: int, n: int, sizes: Sequence[int]) -> UsageError:
    step = lcm(*sizes)
    below, above = batch // step * step, -(-batch // step) * step
    nearest = " or ".join(str(b) for b in (below, above) if b)
    return UsageError(
        f"A global batch of {batch} cannot be divided over {n} ranks (strong scaling). "
        f"Give --batch-size {nearest}, or --scaling weak."
    )


def _unfit(strategy: Strategy, workload: WorkloadSpec, rank_batch: int, n: int) -> str | None:
    """Say why a strategy cannot run with N ranks, a workload or a batch; None: it can."""
    if isinstance(strategy, PipeDream):
        return why_no_pipeline(strategy.as_pipeline(), rank_batch, n)
    if isinstance(strategy, Pipeline):
        return why_no_pipeline(strategy, rank_batch, n)
    if isinstance(strategy, Mesh) and strategy.expert == 1 and strategy.ranks_per_pipeline(n) > 1:
        in_line = strategy.ranks_per_pipeline(n)
        reason = why_no_pipeline(strategy.as_pipeline(), rank_batch, in_line)
        if reason is not None:
            return reason
    if isinstance(strategy, Ddp | FromFramework) and rank_batch % strategy.accumulate:
        return (
            f"{rank_batch} samples per rank at N={n} cannot be split into {strategy.accumulate} "
            "microbatches"
        )
    return strategy.why_not_divided(divisible(workload), n)


def _unfit_for_optimizer(case: Case) -> str | None:
    """Say why a case's strategy cannot train with its optimizer; None: it can."""
    recipe = case.recipe
    if recipe is None or not recipe.needs_whole_layers:
        return None
    return case.strategy.why_not_whole_layers(OPTIMIZERS[recipe.optimizer])


def unfit_for_race(
    suite: Suite, strategy: Strategy, global_batch: int, world_size: int
) -> str | None:
    """Say why a batch cannot take part in a suite's race; None: it can, or there is none."""
    race = suite.race
    if race is None:
        return None
    divided = strategy.why_no_race(world_size)
    if divided is not None:
        return divided
    if race.evaluate_every % global_batch == 0:
        return None
    return (
        f"the race is evaluated every {race.evaluate_every} samples, which are not a whole number "
        f"of steps with a batch of {global_batch}"
    )


def independent_cells(rows: Sequence[Cell], spec: RunSpec) -> list[Cell]:
    """Return the cells that tell apart why a rank computes slower at N: repeat 0.

    The plain baseline on the rank's batch, on one rank alone: what a smaller batch costs. The same
    on N ranks that train at once and send nothing: what sharing the machine costs. Only where rows
    take turns, which makes them comparable, and where steps are traced, which they explain.
    """
    if not spec.shared or spec.quick or not spec.steps.trace:
        return []
    found: dict[str, Cell] = {}
    for row in rows:
        base = _baseline_among(rows, row)
        if base is None or row.race or row.world_size == 1 or row.skip_reason or row.oversubscribed:
            continue
        alone = [] if row.rank_batch == base.rank_batch else [1]
        for num_ranks in (*alone, row.world_size):
            cell = _independent(base, num_ranks, row.rank_batch)
            found.setdefault(cell.id, cell)
    return list(found.values())


def _baseline_among(rows: Sequence[Cell], row: Cell) -> Cell | None:
    """Return the plain row whose computation a rank of this row has a part of."""
    same = (row.suite, row.workload, row.reference_batch)
    for other in rows:
        is_baseline = other.strategy == row.strategy.baseline() and other.loader is None
        if is_baseline and (other.suite, other.workload, other.reference_batch) == same:
            return other
    return None


def _independent(base: Cell, num_ranks: int, rank_batch: int) -> Cell:
    return base.model_copy(
        update={
            "purpose": "independent",
            "world_size": num_ranks,
            "backend": None if num_ranks == 1 else "gloo",
            "global_batch": num_ranks * rank_batch,
            "rank_batch": rank_batch,
            "part_batches": (),
            "steps": base.steps.model_copy(update={"trace": False}),
        }
    )


def shard_cells(rows: Sequence[Cell], spec: RunSpec) -> list[Cell]:
    """Return the cells that do one rank's shard of a row, alone: repeat 0.

    What a rank of a group computes and keeps is another thing than at N=1, and no smaller
    batch stands for it: predictions of the step and of the memory start from these. A sharded
    rank copies what it gathers and scatters, which N=1 does without. Not where somebody else
    started the ranks, and not on a GPU, where it was not tried; nor a stage of a pipeline, which
    waits for what the others send.
    """
    if spec.device != "cpu" or spec.world is not None or not spec.steps.trace:
        return []
    return [
        row.model_copy(
            update={
                "purpose": "shard",
                "part_batches": (),
                "steps": row.steps.model_copy(update={"trace": False}),
            }
        )
        for row in rows
        if isinstance(row.strategy, Grouped | Fsdp | Fsdp1)
        and row.world_size > 1
        and row.skip_reason is None
        and not (isinstance(row.strategy, Mesh) and row.strategy.pipeline > 1)
    ]


def row_name(suite: str, case: str, world_size: int) -> str:
    """Return what ``--only`` calls a row: ``ddp.ddp-bucket-1mb.n4``."""
    return f"{suite}.{case}.n{world_size}"


def only(rows: Sequence[Cell], wanted: Sequence[str], optional: Sequence[str]) -> list[Cell]:
    """Return the rows that are wanted by name; all, if none is named.

    Everything else about them is as if all were run, so that the numbers compare: threads, sizes,
    batches, names of baselines. ``optional`` are names of rows that are made once they are wanted.

    Raises:
        UsageError: A name is none of the rows.
    """
    named = {row_name(*cell.row_key): cell for cell in rows}
    for name in wanted:
        if name not in named:
            raise unknown_name("row", name, {*named, *optional} - {name})
    return [cell for name, cell in named.items() if name in wanted or not wanted]


def in_order(rows: Sequence[Cell], spec: RunSpec) -> list[Cell]:
    """Return all launches: inspections first, then rounds over cases and sizes.

    Correctness comes before speed. Each round launches every cell once, so that a drift of the
    machine affects all sizes equally. Checkpoints come last: their disk traffic disturbs no one.
    """
    timed = [*rows, *independent_cells(rows, spec), *shard_cells(rows, spec)]
    compared = [cell for cell in rows if cell.strategy.has_reference]
    inspections = [cell.model_copy(update={"purpose": "inspect"}) for cell in compared]
    repeats_of = {suite.name: suite.repeats for suite in spec.suites}
    rounds = [
        _repeated(cell, repeat)
        for repeat in range(max(repeats_of.values(), default=0))
        for cell in timed
        if repeat < repeats_of[cell.suite]
    ]
    return inspections + rounds + recovery_cells(rows, spec)


def _repeated(cell: Cell, repeat: int) -> Cell:
    """Return a further launch of a cell; in a race it has a seed of its own, the same in all cases.

    So cases are compared on the same initial parameters and the same samples.
    """
    seed = cell.seed + repeat if cell.race is not None else cell.seed
    return cell.model_copy(update={"repeat": repeat, "seed": seed})
