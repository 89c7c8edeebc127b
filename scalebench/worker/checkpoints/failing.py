"""What a rank does where one of them is made to fail: train and save, or continue after it."""

import os
import time
from collections.abc import Callable

import torch.distributed as dist

from scalebench.records.measured.fault_events import CAUGHT_UP, FaultFolder, fault_folder
from scalebench.records.measured.recovery import RecoveryRecord
from scalebench.spec.recovery import FaultPlan, SaveMethod
from scalebench.worker.checkpoints.methods import Saver, open_saver
from scalebench.worker.checkpoints.store import CheckpointStore
from scalebench.worker.checkpoints.trainee import Trainee
from scalebench.worker.process.context import RankContext

METHOD: SaveMethod = "sharded"
MOST_STEPS = 100_000
"""A fault that never comes ends here, long before anybody waits for it."""


class InjectedFailure(Exception):
    """What scalebench raises in a rank that is to fail."""


def note_start(folder: FaultFolder, plan: FaultPlan, rank: int) -> None:
    """Note that a rank's process has begun; begin slowly if the plan says so."""
    if plan.attempt:
        folder.note(plan.attempt, rank, "slow-start")
        time.sleep(plan.slow_start_s)
    folder.note(plan.attempt, rank, "started", os.getpid())


def train_and_fail(context: RankContext) -> RecoveryRecord:
    """Train as the plan of the newest attempt says."""
    folder = fault_folder(context.cell)
    return train(context, folder, folder.read_plan())


def train(context: RankContext, folder: FaultFolder, plan: FaultPlan) -> RecoveryRecord:
    """Train until the fault comes, or until the step that was lost is done again.

    Where the fault comes in a job that has been restarted, it comes after that step.

    Raises:
        InjectedFailure: This rank is to raise.
        NoCheckpoint: There is nothing to continue from.
    """
    attempt, rank = plan.attempt, context.rank
    folder.note(attempt, rank, "connected")
    trainee, saver = Trainee(context), open_saver(context)
    folder.note(attempt, rank, "built")
    store = CheckpointStore(folder.checkpoints)
    lost = 0  # the step that has to be done again, and nothing is saved until then
    if attempt:
        if plan.until is None:
            lost = folder.last_step(attempt - 1, context.cell.world_size) + 1
        time.sleep(plan.slow_load_s)
        folder.note(attempt, rank, "slept-before-loading")
        _load(trainee, saver, store, lambda: folder.note(attempt, rank, "state"))
    folder.note(attempt, rank, "loaded", trainee.step)
    target = plan.until or (MOST_STEPS if plan.fails else lost)
    raises = plan.fails and plan.kind == "raise" and plan.rank == rank
    raises_after = lost + plan.at_step if raises else None
    while trainee.step < target:
        trainee.train(1)
        folder.note(attempt, rank, "step", trainee.step, float(trainee.loss))
        if trainee.step == lost:
            folder.note(attempt, rank, CAUGHT_UP, lost)
        is_due = trainee.step % plan.save_every == 0 or trainee.step == plan.until
        if is_due and trainee.step > lost:
            _save(trainee, saver, store)
        if trainee.step == raises_after:
            folder.note(attempt, rank, "failed")
            raise InjectedFailure("scalebench raised this to see how the job recovers")
    trainee.finish()
    return RecoveryRecord()


def _save(trainee: Trainee, saver: Saver, store: CheckpointStore) -> None:
    if trainee.context.rank == 0:
        store.begin(trainee.step)
        trainee.write_facts(store)
    dist.barrier()  # of the training: its time-out is what notices a rank that hangs
    trainee.begin_save(store, saver, METHOD).wait()
    dist.barrier()
    if trainee.context.rank == 0:
        store.complete(trainee.step)


def _load(
    trainee: Trainee, saver: Saver, store: CheckpointStore, when_loaded: Callable[[], None]
) -> None:
    found = store.newest()
    if found.checkpoint is None:
        raise store.why_none(found)
    trainee.restore(saver, METHOD, found.checkpoint, when_loaded)
