"""Ranks that save and restore under every strategy: run as a program by `test_checkpoints`.

Arguments: folder for checkpoints, stores and reports. Imports torch once; the ranks are forked.
Four ranks save and restore. Two load what the four have saved, train on and save; eight load what
the four and what the two have saved. Each rank writes what it recorded to
``<world size>-<rank>.json``: case → record, or the error's text.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from scalebench.spec import Cell, Ddp, Fsdp, Mesh, StepPlan, Strategy, Zero1
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import Recovery, SaveMethod
from scalebench.worker.checkpoints import trainee
from scalebench.worker.checkpoints.methods import open_saver
from scalebench.worker.checkpoints.restoring import measure_restores
from scalebench.worker.checkpoints.saving import measure_saves
from scalebench.worker.checkpoints.store import saved_of, store_of
from scalebench.worker.process.context import RankContext
from tests.integration.programs import main

TIMEOUT_S = 60
SMALL = PRESETS["gpt-tiny"].model_copy(update={"layers": 1, "width": 32, "context": 16})
SAVED_BY = 4
LOADED_BY = (2, 8)
RESTORE_FROM = {4: (4,), 2: (4,), 8: (4, 2)}
"""Ranks that load → those whose checkpoints they load, in order."""
STEPS_BETWEEN = 2
"""That two ranks train between what they load and what they save."""
CASES: dict[str, Strategy] = {
    "ddp": Ddp(),
    "fsdp": Fsdp(),
    "zero1": Zero1(),
    "mesh": Mesh(shard=None, tensor=2),
}
WHOLE = ("ddp", "zero1")
"""Cases whose checkpoints are not in parts: two ranks load them as eight would."""
SPOILED = "ddp"
"""The case in which a restored tensor is changed, to see that the comparison notices."""


def cases(world_size: int) -> list[str]:
    """Return the cases of one world size."""
    return [case for case in CASES if world_size < 8 or case not in WHOLE]


def make_cell(folder: Path, case: str, world_size: int) -> Cell:
    """Return a cell that saves or restores, on a global batch of 8."""
    groups = CASES[case].num_shards(world_size)
    return Cell(
        suite="saved",
        case=case,
        strategy=CASES[case],
        workload=SMALL,
        scaling="strong",
        world_size=world_size,
        global_batch=8,
        rank_batch=8 // groups,
        device="cpu",
        backend="gloo",
        threads=1,
        purpose="restore",
        steps=StepPlan(),
        recovery=Recovery(saves=2, steps=2, directory=os.fspath(folder)),
        restore_from=RESTORE_FROM[world_size],
    )


def look(context: RankContext) -> dict[str, Any]:
    """Save and restore as launches do it; return both records."""
    if context.cell.world_size == SAVED_BY:
        return {
            "saved": measure_saves(context).model_dump(),
            "restored": measure_restores(context).model_dump(),
        }
    report = {"restored": measure_restores(context).model_dump()}
    if context.cell.world_size == LOADED_BY[0]:
        report["handed_on"] = hand_on(context)
    return report


def hand_on(context: RankContext) -> list[int]:
    """Load what four ranks have saved, train on and save; return the steps of both checkpoints."""
    method: SaveMethod = "sharded"
    saver, store = open_saver(context), store_of(context.cell, method)
    found = store_of(context.cell, method, SAVED_BY).newest().checkpoint
    assert found is not None
    continued = trainee.Trainee(context)
    continued.restore(saver, method, found)
    continued.train(STEPS_BETWEEN)
    if context.rank == 0:
        store.begin(continued.step)
        continued.write_facts(store)
    context.barrier()
    continued.begin_save(store, saver, method).wait()
    digests = continued.digests()
    continued.finish()
    if context.rank == 0:
        trainee.write_digests(saved_of(context.cell, method), digests)
        store.complete(continued.step)
    return [found.step, continued.step]


def look_at_a_spoiled_one(context: RankContext) -> str:
    """Draw one random number too many after loading; return what the comparison says.

    Only rank 0 compares, and its error would leave the others waiting: they return before.
    """
    original = trainee.set_random_state

    def spoil(state: Any) -> None:
        original(state)
        torch.rand(1)

    trainee.set_random_state = spoil
    restored = trainee.Trainee(context)
    method: SaveMethod = "sharded"
    found = store_of(context.cell, method).newest().checkpoint
    assert found is not None
    restored.restore(open_saver(context), method, found)
    trainee.set_random_state = original
    try:
        restored.check_equal(trainee.read_digests(saved_of(context.cell, method)), True, "spoiled")
    except trainee.NotEqual as error:
        return str(error)
    return "nothing was noticed"


def run_rank(folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    """Run all cases as one rank."""
    timeout = timedelta(seconds=TIMEOUT_S)
    store = FileStore(os.fspath(folder / f"store-{world_size}"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    control = dist.new_group(backend="gloo", timeout=timeout)
    report: dict[str, Any] = {}
    for case in cases(world_size):
        cell = make_cell(folder / "checkpoints", case, world_size)
        report[case] = look(RankContext(cell, rank, rank, torch.device("cpu"), control))
    if world_size == SAVED_BY:
        cell = make_cell(folder / "checkpoints", SPOILED, world_size)
        context = RankContext(cell, rank, rank, torch.device("cpu"), control)
        report["spoiled"] = look_at_a_spoiled_one(context)
    dist.destroy_process_group()
    return report


if __name__ == "__main__":
    main(run_rank)
