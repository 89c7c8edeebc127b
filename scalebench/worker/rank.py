"""One rank of one cell: join the job, do what the cell asks, leave a record."""

import gc
import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from scalebench.records.files import read_model, write_model
from scalebench.records.measured.rank import Memory, RankRecord
from scalebench.records.measured.recovery import fault_folder
from scalebench.records.paths import LaunchPaths
from scalebench.spec import Cell, Purpose, Script, SharedLaunch
from scalebench.worker.checkpoints.saving import measure_restores, measure_saves
from scalebench.worker.checkpoints.trainee import note_start, train_and_fail
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import (
    inspect,
    inspect_compressed,
    measure_fit,
    measure_shard,
)
from scalebench.worker.measure.loop import Loop, Measurement
from scalebench.worker.measure.race import RaceRun
from scalebench.worker.measure.rounds import Rounds, logged_exposed_s
from scalebench.worker.portable import (
    allocator_retries,
    device_facts,
    memory,
    peak_rss_bytes,
    step_clock,
)
from scalebench.worker.process import setup as process
from scalebench.worker.process.context import RankContext, TimeSlots, connected
from scalebench.worker.process.failure import describe
from scalebench.worker.process.setup import NcclLog, write_nccl_log
from scalebench.worker.process.store_queue import rendezvous_store
from scalebench.worker.process.token import Token
from scalebench.worker.script.supervise import run_script
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.compressed import traffic_of
from scalebench.worker.strategies.execution import optimizer_kind, tf32_in_force
from scalebench.worker.workloads.batches import endless, refuse_prefetching

Keep = Callable[[dict[str, Any]], None]
"""Writes what a rank has seen as its record; a later call replaces it."""

DID_NOT_COME_BACK = "a rank was lost while steps were traced"


def run_cell(request: dict[str, Any]) -> int:
    """Run one rank and write its record, whatever happens; return the process's exit code.

    Args:
        request: ``rank`` and ``folder``, the scratch folder of the launch; ``local_rank``,
            ``host`` and ``store`` where the ranks need not be on one machine.
    """
    rank = int(request["rank"])
    local_rank = int(request.get("local_rank", rank))
    paths = LaunchPaths(Path(request["folder"]))
    cell = read_model(paths.job_json, Cell)
    here = _Place(rank, local_rank, paths, paths.record(rank))
    return _run_rank(cell, here, request)


def run_shared(request: dict[str, Any]) -> int:
    """Run one rank of one of the cells that take turns; see `run_cell`.

    Args:
        request: ``process``, its number among all of them, and ``folder``.
    """
    number = int(request["process"])
    paths = LaunchPaths(Path(request["folder"]))
    shared = read_model(paths.job_json, SharedLaunch)
    place, rank = shared.places()[number]
    planned = shared.cells[place]
    cell = planned.model_copy(update={"limit_s": shared.limit_s})
    here = _Place(rank, rank, paths, paths.record(number), paths.store_of(place))
    if rank:
        return _run_rank(cell, here, request, TimeSlots(None, planned.limit_s))
    with Token(paths.root, place, len(shared.cells), shared.seed, shared.limit_s) as token:
        return _run_rank(cell, here, request, TimeSlots(token, planned.limit_s))


@dataclass(frozen=True)
class _Place:
    """Which rank this process is, and where its files are."""

    rank: int
    local_rank: int
    paths: LaunchPaths
    record: Path
    store: Path | None = None


def _run_rank(
    cell: Cell, here: _Place, request: dict[str, Any], time_slots: TimeSlots | None = None
) -> int:
    rank, local_rank, paths = here.rank, here.local_rank, here.paths
    host = request.get("host") or socket.gethostname()
    identity = {"rank": rank, "local_rank": local_rank, "pid": os.getpid(), "host": host}
    nccl = None
    try:
        if isinstance(cell.strategy, Script):
            return run_script(request, cell, paths, identity)
        process.keep_sockets_in(paths.root)
        facts = process.prepare_rank(cell, local_rank)
        if cell.purpose == "fail":
            folder = fault_folder(cell)
            note_start(folder, folder.read_plan(), rank)
        if cell.purpose == "inspect" and cell.backend == "nccl" and cell.world_size > 1:
            nccl = write_nccl_log(paths.nccl_log(rank), Path(request["log"]))
        store = here.store or (
            rendezvous_store(request, paths, cell) if cell.backend else paths.store
        )
        with connected(cell, rank, store, local_rank, time_slots) as context:
            facts |= device_facts(context.device.type == "cuda")
            facts["backend"] = dist.get_backend() if dist.is_initialized() else None

            def keep(seen: dict[str, Any]) -> None:
                arithmetic = tf32_in_force(context.device)  # the user's module may have set it
                of_rank = {"facts": facts | arithmetic | seen["facts"]}
                record = RankRecord(**identity, **seen | of_rank | _wires(nccl))
                write_model(here.record, record, indent=None)

            _WORK[cell.purpose](context, keep)
    except BaseException as error:
        of_failed = {"memory": _peaks_so_far(cell), **_wires(nccl, ask_gpus=False)}
        record = RankRecord(**identity, error=describe(error), **of_failed)
        write_model(here.record, record)
        print(record.error.traceback if record.error else "", flush=True)
        return 1
    return 0


def _wires(log: NcclLog | None, ask_gpus: bool = True) -> dict[str, Any]:
    if log is None:
        return {}
    return {"wires": log.read(ask_gpus), "wires_unavailable": log.reason}


def _peaks_so_far(cell: Cell) -> Memory:
    """Return the peaks of a rank that has failed, as far as they can still be told."""
    try:
        return Memory(**memory(cell.device))
    except RuntimeError:  # the device is what failed
        return Memory(rss_bytes=peak_rss_bytes())


def _measure(context: RankContext, keep: Keep) -> None:
    """Time steps with no instrument on; look into some more steps afterwards.

    What was timed is kept before: nothing that happens to this process later takes it away.
    """
    with context.slot():
        workload = fresh_workload(context)
        if context.time_slots is not None:
            refuse_prefetching(workload.batches)
        num_parameters = sum(p.numel() for p in workload.module.parameters())  # not yet divided
        training = build_training(workload, context)
        stream = endless(workload.batches, context.device, context.cell.rank_batch)
        batches = training.own_batches(stream)
        gc.collect()
        device = context.device.type
        retries = allocator_retries(device)
        loop = Loop(training, batches, context, step_clock(device))
        if context.cell.race is None:
            loop.warm_up(context.cell.steps)
    points = None
    if context.cell.race is None:
        loop.measure_clean(context.cell.steps)
    else:
        points = RaceRun(loop, workload, context.cell.race).run()
    clean: dict[str, Any] = {
        "steady": loop.seen.steady,
        "first_step_ns": loop.seen.first_step_ns,
        "race": points,
        "num_parameters": num_parameters,
        "tokens_per_sample": workload.tokens_per_sample,
        "memory": Memory(**memory(device, retries)),
        "compression": traffic_of(training),
        "loss_scale": training.scaler and training.scaler.history(),
        "facts": {"optimizer": optimizer_kind(training.optimizer), **training.facts},
    }
    lost = training.lost_ranks
    if lost:
        clean["facts"]["lost_ranks"] = {str(rank): samples for rank, samples in lost.items()}
    keep(clean | _steps(loop.seen, context) | {"trace_unavailable": DID_NOT_COME_BACK})
    with context.slot(last=True) as slot:
        looked = Rounds(loop).run()
        slot.ends_together = not looked.gave_up
        training.finish()
    keep(
        clean
        | _steps(loop.seen, context)
        | {
            "trace": looked.trace,
            "trace_unavailable": looked.trace_unavailable,
            "another_rank_left": looked.another_rank_left,
            "clock": looked.clock,
            "logged_exposed_s": logged_exposed_s(training),
        }
    )


def _steps(seen: Measurement, context: RankContext) -> dict[str, Any]:
    return {
        "step_s": seen.step_s,
        "data_s": seen.data_s if context.cell.loader is not None else None,
        "loss": _json_losses(seen.loss),
        "blocks": seen.blocks,
    }


def _inspect(context: RankContext, keep: Keep) -> None:
    """Compare with the reference, and count memory; nothing is timed."""
    compresses = context.cell.strategy.kind == "compressed"
    found = inspect_compressed(context) if compresses else inspect(context)
    keep(
        {
            "verification": found.verification,
            "loss": _json_losses(found.losses),
            "memory": found.memory,
            "flops_per_sample": found.flops and found.flops.total,
            "convolution_flops_per_sample": found.flops and found.flops.convolutions,
            "gradient_error": found.gradient_error,
            "facts": found.facts,
        }
    )


def _shard(context: RankContext, keep: Keep) -> None:
    seen, told = measure_shard(context)
    clean = {"steady": seen.steady, "first_step_ns": seen.first_step_ns}
    keep(clean | told | _steps(seen, context) | {"loss": []})


def _keeps(field: str, work: Callable[[RankContext], Any]) -> Callable[[RankContext, Keep], None]:
    return lambda context, keep: keep({field: work(context), "loss": [], "facts": {}})


_WORK: dict[Purpose, Callable[[RankContext, Keep], None]] = {
    "inspect": _inspect,
    "measure": _measure,
    "independent": _measure,
    "fit": _keeps("memory", measure_fit),
    "shard": _shard,
    "save": _keeps("recovery", measure_saves),
    "restore": _keeps("recovery", measure_restores),
    "fail": _keeps("recovery", train_and_fail),
}


def _json_losses(losses: list[float]) -> list[float | None]:
    """Replace what JSON cannot hold: a loss that is not finite becomes null."""
    return [loss if math.isfinite(loss) else None for loss in losses]
