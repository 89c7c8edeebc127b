"""Timing restores in fresh processes, and checking that they bring back every bit."""

import time

from scalebench.records.measured.recovery import RecoveryRecord, RestoreSample
from scalebench.spec.recovery import SaveMethod
from scalebench.worker.checkpoints.methods import Saver, open_saver, why_not
from scalebench.worker.checkpoints.state import Digests
from scalebench.worker.checkpoints.store import Checkpoint, after_of, saved_of, store_of
from scalebench.worker.checkpoints.trainee import Trainee, read_digests, synchronise
from scalebench.worker.process.context import RankContext

RESHARDED: SaveMethod = "sharded"
"""What is loaded with another number of ranks than saved it."""


def measure_restores(context: RankContext) -> RecoveryRecord:
    """Load what every method saved, and what other numbers of ranks saved; compare all bits.

    Raises:
        NotEqual: A restored state is not the one that was saved.
        NoCheckpoint: There is none that is complete.
    """
    cell = context.cell
    assert cell.recovery is not None, "only cells of a suite with recovery are restored"
    saver = open_saver(context)
    methods = [m for m in cell.recovery.methods if why_not(m, context.device) is None]
    wanted = [
        (method, size)
        for size in cell.restore_from
        for method in methods
        if size == cell.world_size or method == RESHARDED
    ]
    return RecoveryRecord(restores=[_restore(context, saver, *one) for one in wanted])


def _continues_in_order(
    context: RankContext, saver: Saver, method: SaveMethod, checkpoint: Checkpoint, after: Digests
) -> bool:
    """Tell whether a training that has its final buckets continues as the one that never stopped.

    DDP orders its buckets again after its first step, and from 4 ranks on that decides in which
    order numbers are added. So this training takes one step before it is loaded.
    """
    assert context.cell.recovery is not None
    trainee = Trainee(context)
    trainee.train(1)
    trainee.restore(saver, method, checkpoint)
    trainee.train(context.cell.recovery.steps)
    equal = _all_equal(trainee, after)
    trainee.finish()
    return equal


def _all_equal(trainee: Trainee, after: Digests) -> bool:
    """Return on every rank what rank 0 found."""
    different = trainee.is_equal(after) is False
    return not any(trainee.context.agree_max([float(different)]))


def _restore(
    context: RankContext, saver: Saver, method: SaveMethod, saved_by: int
) -> RestoreSample:
    cell = context.cell
    assert cell.recovery is not None
    where = f"{cell.case}, {method}, saved by {saved_by} and loaded by {cell.world_size} ranks"
    trainee = Trainee(context)
    context.barrier()
    began = time.perf_counter()
    store = store_of(cell, method, saved_by)
    found = store.newest()
    if found.checkpoint is None:
        raise store.why_none(found)
    trainee.restore(saver, method, found.checkpoint)
    synchronise(context.device)
    context.barrier()
    load_s = time.perf_counter() - began
    same_size = saved_by == cell.world_size
    saved = read_digests(saved_of(cell, method, saved_by))
    num_tensors = trainee.check_equal(saved, same_size, where)
    (first,) = trainee.train(1)
    continues = None
    if same_size:
        trainee.train(cell.recovery.steps - 1)
        after = read_digests(after_of(cell, method, saved_by))
        continues = _all_equal(trainee, after)
    trainee.finish()
    if continues is False:
        continues = _continues_in_order(context, saver, method, found.checkpoint, after)
    return RestoreSample(
        method=method,
        saved_world_size=saved_by,
        load_s=load_s,
        first_step_s=first.seconds,
        num_tensors=num_tensors,
        continues_equal=continues,
    )
