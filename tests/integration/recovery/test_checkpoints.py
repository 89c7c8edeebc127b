"""Checkpoints over real ranks: saved at four, loaded at four, two and eight, equal bit for bit.

Also in a chain: the two train on and save, and the eight load that. Run as a program, this
file is the ranks.
"""

import os

import pytest
import torch

from scalebench.records.measured.recovery import RecoveryRecord
from scalebench.spec import Ddp, Fsdp, Mesh, Strategy, Zero1
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import Recovery, SaveMethod
from scalebench.worker.checkpoints import trainee
from scalebench.worker.checkpoints.methods import open_saver
from scalebench.worker.checkpoints.saving import measure_restores, measure_saves
from scalebench.worker.checkpoints.store import CheckpointStore, saved_of, store_of
from tests.examples import cases
from tests.integration.programs import inspecting, looked_at, main, reports_of

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


def of_size(world_size):
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
    cells = {case: cell_of(checkpoints, case, world_size) for case in of_size(world_size)}
    if world_size == SAVED_BY:
        cells["spoiled"] = cells[SPOILED].model_copy()
    spoiled = cells.get("spoiled")
    return looked_at(
        folder,
        rank,
        cells,
        lambda own: (look_at_a_spoiled_one if own.cell is spoiled else look)(own),
    )


METHODS = ["full", "sharded", "async"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return reports_of("recovery.test_checkpoints", folder, (SAVED_BY, *LOADED_BY))


@cases("case", *CASES)
def test_every_method_saves_as_often_as_asked_and_its_bytes_are_counted(reports, case):
    for rank, report in enumerate(reports[SAVED_BY]):
        saves = RecoveryRecord(**report[case]["saved"]).saves
        assert [save.method for save in saves] == 2 * METHODS
        assert all(0 < save.stall_s <= save.durable_s for save in saves)
        assert all((save.bytes > 200_000) == (rank == 0) for save in saves)
        assert all(len(save.quiet_s) == 2 <= len(save.later_s) for save in saves)


@cases("case", *CASES)
def test_a_restored_state_is_equal_bit_for_bit(reports, case):
    restores = RecoveryRecord(**reports[SAVED_BY][0][case]["restored"]).restores
    assert [one.method for one in restores] == METHODS
    assert all(one.num_tensors > 50 for one in restores)
    assert [one.continues_equal for one in restores] == [True] * len(METHODS)


LOADED = [(size, case) for size in LOADED_BY for case in of_size(size)]


@cases("world_size, case", *LOADED)
def test_another_number_of_ranks_loads_the_same_state(reports, case, world_size):
    for report in reports[world_size]:
        restores = RecoveryRecord(**report[case]["restored"]).restores
        loaded = [(one.saved_world_size, one.method, one.continues_equal) for one in restores]
        assert loaded == [(size, "sharded", None) for size in RESTORE_FROM[world_size]]
        assert all(one.num_tensors > 50 for one in restores)


@cases("case", *of_size(8))
def test_two_ranks_train_on_from_four_before_eight_load_what_they_saved(reports, case):
    """That the eight have the same bits as the two is checked as they load."""
    saves = RecoveryRecord(**reports[SAVED_BY][0][case]["saved"]).saves
    last = max(save.step for save in saves if save.method == "sharded")
    for report in reports[2]:
        assert report[case]["handed_on"] == [last, last + STEPS_BETWEEN]
    eight = RecoveryRecord(**reports[8][0][case]["restored"]).restores
    assert 2 in {one.saved_world_size for one in eight}


def test_one_random_number_too_many_is_noticed(reports):
    said = reports[SAVED_BY][0]["spoiled"]
    assert "are not equal to those that were saved" in said
    assert "random.0.host" in said


def test_without_a_complete_checkpoint_the_reason_says_what_to_do(tmp_path):
    store = CheckpointStore(tmp_path)
    store.begin(4)
    told = str(store.why_none(store.newest()))
    assert told.startswith(f"No complete checkpoint in {tmp_path}: step-")
    assert "is unfinished" in told and told.endswith("--checkpoint-dir.")


if __name__ == "__main__":
    main(run_rank)
