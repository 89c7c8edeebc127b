"""Timing saves: each method by turns, with steps before and after, in one training."""

import time
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.records.recovery import RecoveryRecord, SaveSample
from scalebench.spec.recovery import Recovery, SaveMethod
from scalebench.units import bytes_
from scalebench.worker.checkpoints.file_systems import file_system_of
from scalebench.worker.checkpoints.methods import Saver, Saving, free_bytes, open_saver, why_not
from scalebench.worker.checkpoints.peak_memory import PeakMemory
from scalebench.worker.checkpoints.places import after_of, saved_of, store_of
from scalebench.worker.checkpoints.store import size_of
from scalebench.worker.checkpoints.trainee import TimedStep, Trainee, synchronise, write_digests
from scalebench.worker.process.context import RankContext

WARMUP_STEPS = 5
ROOM = 3
"""Times the state's size that the directory needs free: two checkpoints and one being written."""


def measure_saves(context: RankContext) -> RecoveryRecord:
    """Train and save, every method by turns; leave the last checkpoint of each and its hashes.

    Raises:
        UsageError: The directory has no room for the checkpoints.
    """
    plan = _plan(context)
    directory = Path(plan.directory or ".")
    directory.mkdir(parents=True, exist_ok=True)
    trainee, saver = Trainee(context), open_saver(context)
    trainee.train(WARMUP_STEPS)
    unavailable = {m: why for m in plan.methods if (why := why_not(m, context.device))}
    methods = [m for m in plan.methods if m not in unavailable]
    _check_room(trainee, directory, len(methods))
    samples = []
    for number in range(plan.saves + 1):
        for method in methods:
            last = number == plan.saves
            sample = _save(trainee, saver, method, plan, last)
            if number:  # the first starts threads and opens connections
                samples.append(sample)
    trainee.finish()
    return RecoveryRecord(
        saves=samples,
        file_system=file_system_of(directory),
        unavailable=dict(unavailable),
    )


def _plan(context: RankContext) -> Recovery:
    plan = context.cell.recovery
    assert plan is not None, "only cells of a suite with recovery are saved"
    return plan


def _check_room(trainee: Trainee, directory: Path, num_methods: int) -> None:
    """Raise UsageError, on every rank alike, unless the checkpoints have room."""
    context = trainee.context
    own = sum(t.numel() * t.element_size() for t in trainee.tensors().values())
    (state,) = context.agree_max([float(own)])
    wanted = ROOM * num_methods * state
    (missing,) = context.agree_max([wanted - free_bytes(directory)])
    if missing > 0:
        raise UsageError(
            f"The directory for checkpoints has {bytes_(int(wanted - missing))} free, and the "
            f"suite needs about {bytes_(int(wanted))}. Give --checkpoint-dir a larger one."
        )


def _save(
    trainee: Trainee, saver: Saver, method: SaveMethod, plan: Recovery, last: bool
) -> SaveSample:
    """Train, save once, train on until it is on the disk; of the last one hashes are kept."""
    context, store = trainee.context, store_of(trainee.context.cell, method)
    context.barrier()
    _, *quiet = trainee.train(plan.steps + 1)  # the first waits for the other ranks
    step = trainee.step
    if context.rank == 0:
        store.begin(step)
        trainee.write_facts(store)
    if last:
        _keep_hashes(trainee, saved_of(context.cell, method))
    synchronise(context.device)
    peak = PeakMemory(context.device)
    context.barrier()
    began = time.monotonic_ns()
    saving = trainee.begin_save(store, saver, method)
    later = trainee.train(plan.steps)
    if last:
        _keep_hashes(trainee, after_of(context.cell, method))
    later += _train_until_durable(trainee, saving, plan.steps)
    saving.wait()
    durable_ns = saving.durable_ns or began
    extra = peak.extra_host_bytes(), peak.extra_device_bytes()
    context.barrier()
    size = 0
    if context.rank == 0:
        size = size_of(store.complete(step).folder)
        store.keep_newest()
    return SaveSample(
        method=method,
        step=step,
        stall_s=(saving.returned_ns - began) / 1e9,
        durable_s=(durable_ns - began) / 1e9,
        bytes=size,
        quiet_s=[one.seconds for one in quiet],
        later_s=[one.seconds for one in later],
        num_beside=sum(one.start_ns < durable_ns for one in later),
        extra_host_bytes=extra[0],
        extra_device_bytes=extra[1],
    )


def _train_until_durable(trainee: Trainee, saving: Saving, count: int) -> list[TimedStep]:
    """Train, as many steps on every rank, until each rank's part is on the disk."""
    steps: list[TimedStep] = []
    while any(trainee.context.agree_max([float(not saving.is_durable)])):
        steps += trainee.train(count)
    return steps


def _keep_hashes(trainee: Trainee, path: Path) -> None:
    digests = trainee.digests()
    if trainee.context.rank == 0:
        write_digests(path, digests)
