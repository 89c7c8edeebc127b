"""Ranks' shards of jobs that are larger than this machine: measured here, one rank at a time.

What a rank computes and keeps among 64 is known to the strategy; that the other 63 are not there
changes neither. So its step without communication and its memory are measured, not carried on
from smaller sizes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from scalebench import machine
from scalebench.analysis.projection.rows import MeasuredShard
from scalebench.analysis.projection.starts import cases_at_one, cell_at
from scalebench.analysis.run import StoredRun
from scalebench.analysis.timing.steps import launch_step_s
from scalebench.errors import EnvironmentUnfit
from scalebench.launch.base import Launcher
from scalebench.records.run import launched_result
from scalebench.records.storage.folder import Scratch
from scalebench.spec import Cell, Mesh

OnProgress = Callable[[str, object], None]


def measure_shards(
    launcher: Launcher, run: StoredRun, world_sizes: Sequence[int], on_progress: OnProgress
) -> list[MeasuredShard]:
    """Measure rank 0 of every case of a run at other numbers of ranks.

    Raises:
        EnvironmentUnfit: This machine or torch is not that of the run.
    """
    here = machine.fingerprint(launcher.survey())
    different = machine.differences(here, run.info.environment)
    if different:
        raise EnvironmentUnfit(
            f"{run.paths.root} was made with a different {', '.join(different)}: a shard measured "
            "here says nothing about it. Leave out --measure-shard, or start a new run here."
        )
    if run.info.spec.virtual_hosts is not None:
        launcher.move_to(run.info.spec.virtual_hosts, 1)
    with Scratch() as logs:
        return [
            _measured(launcher, one.cell, world_size, logs, on_progress)
            for one in cases_at_one(run)
            for world_size in world_sizes
        ]


def _measured(
    launcher: Launcher, cell: Cell, world_size: int, logs: Path, on_progress: OnProgress
) -> MeasuredShard:
    shard = MeasuredShard(suite=cell.suite, case=cell.case, world_size=world_size)
    there = cell_at(cell, world_size)
    if isinstance(there, str):
        return shard.model_copy(update={"reason": there})
    if isinstance(cell.strategy, Mesh) and cell.strategy.pipeline > 1:
        reason = "the shard of a stage of a pipeline depends on what the other stages send"
        return shard.model_copy(update={"reason": reason})
    if not cell.strategy.works_alone:
        reason = f"the shard of a rank under {cell.strategy.kind} depends on what the others send"
        return shard.model_copy(update={"reason": reason})
    on_progress(f"a shard of {cell.case} at N={world_size}", None)
    alone = there.model_copy(update={"purpose": "shard", "repeat": 0, "part_batches": ()})
    launched = launcher.launch(alone, logs / alone.id)
    if launched.failure is not None or not launched.records:
        reason = launched.failure.message if launched.failure else "it left no record"
        return shard.model_copy(update={"reason": reason})
    times = (launched.launch_s, launched.wall_s)
    result = launched_result(alone, launched.records, launched.failure, "", times)
    peak = launched.records[0].memory.allocated_bytes
    found = {"step_s": launch_step_s(result), "peak_memory_bytes": peak}
    return shard.model_copy(update=found)
