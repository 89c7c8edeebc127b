"""Ranks that save and restore under every strategy: run as a program by `test_checkpoints`.

Four ranks save and restore. Two load what the four have saved, train on and save; eight load what
the four and what the two have saved.
"""

import os

import torch

from scalebench.spec import Ddp, Fsdp, Mesh, Strategy, Zero1
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import Recovery, SaveMethod
from scalebench.worker.checkpoints import trainee
from scalebench.worker.checkpoints.methods import open_saver
from scalebench.worker.checkpoints.saving import measure_restores, measure_saves
from scalebench.worker.checkpoints.store import saved_of, store_of
from tests.integration.programs import inspecting, looked_at, main

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


def cases(world_size):
    return [case for case in CASES if world_size < 8 or case not in WHOLE]


def cell_of(folder, case, world_size):
    recovery = Recovery(saves=2, steps=2, directory=os.fspath(folder))
    changes = {"purpose": "restore", "recovery": recovery, "restore_from": RESTORE_FROM[world_size]}
    return inspecting(CASES[case], SMALL, world_size, 8, suite="saved", case=case, **changes)


def look(context):
    if context.cell.world_size == SAVED_BY:
        return {
            "saved": measure_saves(context).model_dump(),
            "restored": measure_restores(context).model_dump(),
        }
    report = {"restored": measure_restores(context).model_dump()}
    if context.cell.world_size == LOADED_BY[0]:
        report["handed_on"] = hand_on(context)
    return report


def hand_on(context):
    """Load what four ranks have saved, train on and save; return the steps of both checkpoints."""
    method: SaveMethod = "sharded"
    saver, store = open_saver(context), store_of(context.cell, method)
    found = store_of(context.cell, method, SAVED_BY).newest().checkpoint
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


def look_at_a_spoiled_one(context):
    """Draw one random number too many after loading; return what the comparison says.

    Only rank 0 compares, and its error would leave the others waiting: they return before.
    """
    original = trainee.set_random_state

    def spoil(state):
        original(state)
        torch.rand(1)

    trainee.set_random_state = spoil
    restored = trainee.Trainee(context)
    method: SaveMethod = "sharded"
    found = store_of(context.cell, method).newest().checkpoint
    restored.restore(open_saver(context), method, found)
    trainee.set_random_state = original
    try:
        restored.check_equal(trainee.read_digests(saved_of(context.cell, method)), True, "spoiled")
    except trainee.NotEqual as error:
        return str(error)
    return "nothing was noticed"


def run_rank(folder, rank, world_size):
    checkpoints = folder / "checkpoints"
    cells = {case: cell_of(checkpoints, case, world_size) for case in cases(world_size)}
    if world_size == SAVED_BY:
        cells["spoiled"] = cells[SPOILED].model_copy()
    spoiled = cells.get("spoiled")
    return looked_at(
        folder,
        rank,
        cells,
        lambda own: (look_at_a_spoiled_one if own.cell is spoiled else look)(own),
    )


if __name__ == "__main__":
    main(run_rank)
