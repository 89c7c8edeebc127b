"""Cells, results and stored runs, made by hand: every number in them is known."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scalebench.analysis.run import StoredRun
from scalebench.records.files import write_model
from scalebench.records.measured.rank import Block, Memory, RankRecord, Verification
from scalebench.records.paths import RunPaths
from scalebench.records.run import CellResult, RunInfo, RunSpec
from scalebench.spec import Case, Cell, Ddp, Plain, Script, StepPlan, Strategy, Suite
from scalebench.spec.presets import PRESETS
from scalebench.spec.script import ScriptTarget

WARMUP_S = 9.0
FIRST_OF_BLOCK_S = 5.0
STARTED = "2024-05-01T12:00:00+00:00"


def make_cell(
    case: str = "ddp",
    world_size: int = 2,
    repeat: int = 0,
    strategy: Strategy | None = None,
    **changes: Any,
) -> Cell:
    """A cell that trains gpt-tiny on 32 samples per step; ``changes`` replace fields."""
    weak = changes.get("scaling") == "weak"
    if strategy is None:
        strategy = Plain() if case.startswith("plain") else Ddp()
    batch, rank_batch = (32 * world_size, 32) if weak else (32, 32 // world_size)
    fields: dict[str, Any] = {"suite": "ddp", "case": case, "strategy": strategy}
    fields |= {"workload": PRESETS["gpt-tiny"], "scaling": "strong", "world_size": world_size}
    fields |= {"global_batch": batch, "rank_batch": rank_batch, "device": "cpu", "threads": 1}
    fields |= {"backend": None if strategy.kind == "plain" else "gloo", "purpose": "measure"}
    fields |= {"repeat": repeat, "steps": StepPlan()}
    return Cell(**{**fields, **changes})


def make_script_cell(world_size: int = 1, repeat: int = 0, **target: Any) -> Cell:
    """A cell of a user's script; ``target`` replaces what is known of the script."""
    script = ScriptTarget(**{"name": "train", "program": "train.py", **target})
    parts: dict[str, Any] = {"strategy": Script(), "backend": None, "workload": script}
    return make_cell("script", world_size, repeat, **parts)


def make_record(rank: int = 0, clean_s: Sequence[float] = (0.1,) * 4, **changes: Any) -> RankRecord:
    """One rank that warmed up for a step, then ran one clean block of ``clean_s``."""
    warmup = Block(phase="warmup", first=0, count=1)
    clean = Block(phase="clean", first=1, count=len(clean_s) + 1)
    fields: dict[str, Any] = {"rank": rank, "local_rank": rank, "pid": 1000 + rank, "host": "here"}
    fields |= {"step_s": [WARMUP_S, FIRST_OF_BLOCK_S, *clean_s], "blocks": [warmup, clean]}
    fields |= {"loss": [5.5] * (len(clean_s) + 1) + [5.0], "steady": True, "first_step_ns": 1}
    fields |= {"num_parameters": 421_000, "tokens_per_sample": 64}
    fields |= {"memory": Memory(rss_bytes=500_000_000)}
    return RankRecord(**{**fields, **changes})


def make_result(cell: Cell, step_s: float = 0.1, **changes: Any) -> CellResult:
    """A launch that went well, every clean step of every rank ``step_s`` long."""
    ranks = [make_record(rank, (step_s,) * 4) for rank in range(cell.world_size)]
    fields: dict[str, Any] = {"cell": cell, "status": "ok", "started": STARTED, "launch_s": 0.4}
    fields |= {"wall_s": 1.5, "ranks": ranks}
    return CellResult(**{**fields, **changes})


def make_inspection(cell: Cell, allocated_bytes: int = 1_000_000, **changes: Any) -> CellResult:
    """The launch that checked a row's correctness and found nothing wrong."""
    plain = cell.strategy.kind == "plain"
    checked = Verification(
        status="verified", gradient_deviation=2e-7, loss_deviation=1e-8, tolerance=1e-4, num_steps=3
    )
    ranks = []
    for rank in range(cell.world_size):
        verification = checked if rank == 0 else Verification(status="verified")
        told = {"rank": rank, "local_rank": rank, "pid": 2000 + rank, "host": "here"}
        told |= {"loss": [5.5, 5.4, 5.3], "memory": Memory(allocated_bytes=allocated_bytes + rank)}
        told |= {"verification": Verification(status="reference") if plain else verification}
        ranks.append(RankRecord(**told))
    inspect = cell.model_copy(update={"purpose": "inspect", "repeat": 0})
    return make_result(inspect, **{"ranks": ranks, "launch_s": None, **changes})


def make_failed(cell: Cell, reason: str = "rank 0: it broke", status: str = "failed") -> CellResult:
    """A launch that went wrong and left no record."""
    return make_result(cell, status=status, reason=reason, ranks=[], launch_s=None)


def make_info(plan: Iterable[Cell], **changes: Any) -> RunInfo:
    """``run.json`` of a complete run of ``plan``."""
    plan = list(plan)
    strategies = {cell.case: cell.strategy for cell in plan} or {"plain": Plain()}
    cases = tuple(Case(name=name, strategy=strategy) for name, strategy in strategies.items())
    fields: dict[str, Any] = {
        "run_id": "20240501T120000Z_ddp_cpu_abcdefg",
        "version": "0.1.0",
        "created": STARTED,
        "command": ["scalebench", "run", "ddp", "--gpus", "1,2"],
        "spec": RunSpec(
            suites=(Suite(name="ddp", question="How well does it scale?", cases=cases),),
            world_sizes=tuple(sorted({cell.world_size for cell in plan} or {1})),
            device="cpu",
            scaling="strong",
            threads=1,
            steps=StepPlan(),
            repeats=3,
        ),
        "environment": {"torch": "2.13.0", "devices": [], "cpu": "a processor", "cores": 2},
        "plan": plan,
        "notices": ["CPU ranks over gloo (no CUDA device), 1 thread(s) per rank"],
        "status": "complete",
    }
    return RunInfo(**{**fields, **changes})


def make_run(
    results: Iterable[CellResult], plan: Iterable[Cell] | None = None, **changes: Any
) -> StoredRun:
    """A run as `load_run` returns it; without ``plan``, exactly the cells that have a result."""
    results = list(results)
    planned = [result.cell for result in results] if plan is None else list(plan)
    info = make_info(planned, **changes)
    return StoredRun(RunPaths(Path("unused")), info, {r.cell.id: r for r in results})


def make_small_run() -> list[CellResult]:
    """Three rounds of plain and DDP at N = 1 and 2, inspected: efficiency 0.8 at N = 2."""
    plain, one, two = make_cell("plain", 1), make_cell("ddp", 1), make_cell("ddp", 2)
    rounds = [
        make_result(cell.model_copy(update={"repeat": repeat}), step_s * (1 + 0.1 * repeat))
        for repeat in range(3)
        for cell, step_s in ((plain, 0.4), (one, 0.5), (two, 0.25))
    ]
    return [*(make_inspection(cell) for cell in (plain, one, two)), *rounds]


def make_stored_run(root: Path, results: Iterable[CellResult] | None = None) -> RunPaths:
    """Write a run folder (default: the small run) and return its paths."""
    run = make_run(make_small_run() if results is None else results)
    paths = RunPaths(root)
    paths.cells.mkdir(parents=True)
    write_model(paths.run_json, run.info)
    for cell_id, result in run.results.items():
        write_model(paths.cell(cell_id), result)
    return paths
