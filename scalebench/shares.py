"""Ranks' shares of jobs that are larger than this machine: measured here, one rank at a time.

What a rank computes and keeps among 64 is known to the strategy; that the other 63 are not there
changes neither. So its step without communication and its memory are measured, not carried on
from smaller sizes.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from scalebench import machine
from scalebench.errors import EnvironmentUnfit
from scalebench.launch.base import Launcher
from scalebench.launches import launch_step_s
from scalebench.outcome import launched_result
from scalebench.projection import MeasuredShare, cases_at_one, cell_at
from scalebench.spec import Cell
from scalebench.store import StoredRun

MEASURABLE = ("ddp", "zero1", "fsdp", "fsdp1")
"""Strategies whose ranks do the same work whatever the others answer."""

Tell = Callable[[str, object], None]


def measure_shares(
    launcher: Launcher, run: StoredRun, world_sizes: Sequence[int], tell: Tell
) -> list[MeasuredShare]:
    """Measure rank 0 of every case of a run at other numbers of ranks.

    Args:
        launcher: On the machine of the run.
        run: Whose cases.
        world_sizes: Numbers of ranks.
        tell: Is told what is being measured.

    Raises:
        EnvironmentUnfit: This machine or torch is not that of the run.
    """
    here = machine.fingerprint(launcher.survey())
    different = machine.differences(here, run.info.environment)
    if different:
        raise EnvironmentUnfit(
            f"{run.paths.root} was made under another {', '.join(different)}: a share measured "
            "here says nothing about it. Leave out --measure-shard, or start a new run here."
        )
    if run.info.spec.virtual_hosts is not None:
        launcher.move_to(run.info.spec.virtual_hosts, 1)
    with tempfile.TemporaryDirectory(prefix="scalebench-shares-") as logs:
        return [
            _measured(launcher, one.cell, world_size, Path(logs), tell)
            for one in cases_at_one(run)
            for world_size in world_sizes
        ]


def _measured(
    launcher: Launcher, cell: Cell, world_size: int, logs: Path, tell: Tell
) -> MeasuredShare:
    share = MeasuredShare(suite=cell.suite, case=cell.case, world_size=world_size)
    there = cell_at(cell, world_size)
    if isinstance(there, str):
        return share.model_copy(update={"reason": there})
    if cell.strategy.kind not in MEASURABLE:
        reason = f"the share of a rank under {cell.strategy.kind} depends on what the others send"
        return share.model_copy(update={"reason": reason})
    tell(f"a share of {cell.case} at N={world_size}", None)
    alone = there.model_copy(update={"purpose": "shard", "repeat": 0, "part_batches": ()})
    launched = launcher.launch(alone, logs / alone.id)
    if launched.failure is not None or not launched.records:
        reason = launched.failure.message if launched.failure else "it left no record"
        return share.model_copy(update={"reason": reason})
    times = (launched.launch_s, launched.wall_s)
    result = launched_result(alone, launched.records, launched.failure, "", times)
    peak = launched.records[0].memory.allocated_bytes
    found = {"step_s": launch_step_s(result), "peak_memory_bytes": peak}
    return share.model_copy(update=found)
