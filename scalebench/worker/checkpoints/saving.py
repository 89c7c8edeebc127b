"""Timing saves, by turns in one training; and restores in fresh processes, equal bit for bit."""

import shutil
import time
from pathlib import Path

import psutil
import torch

from scalebench.errors import UsageError
from scalebench.records.measured.recovery import RecoveryRecord, RestoreSample, SaveSample
from scalebench.spec.recovery import Recovery, SaveMethod
from scalebench.units import bytes_
from scalebench.worker.checkpoints.methods import Digests, Saver, Saving, open_saver, why_not
from scalebench.worker.checkpoints.store import Checkpoint, after_of, saved_of, size_of, store_of
from scalebench.worker.checkpoints.trainee import (
    TimedStep,
    Trainee,
    read_digests,
    synchronise,
    write_digests,
)
from scalebench.worker.process.context import RankContext


def file_system_of(folder: Path) -> str | None:
    """Return the kind as the system calls it: ``ext4``, ``tmpfs``, ``nfs4``; None: not known."""
    places = folder.resolve()
    found = {
        Path(partition.mountpoint): partition.fstype
        for partition in psutil.disk_partitions(all=True)
    }
    return next((found[p] for p in (places, *places.parents) if p in found), None)


STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
CLEAR_PEAK = "5"
"""Sets the peak of the resident set to what is resident now (``proc_pid_clear_refs(5)``)."""


class PeakMemory:
    """The peak of host and device memory, from when this was made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._host = _reset_host()
        self._on_device = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._on_device = torch.cuda.memory_allocated(device)

    def extra_host_bytes(self) -> int | None:
        """Return the peak since the beginning, above what was resident then; None: not told."""
        peak = _status_bytes("VmHWM")
        if self._host is None or peak is None:
            return None
        return max(0, peak - self._host)

    def extra_device_bytes(self) -> int | None:
        """Return the same of the GPU's allocator; None: the ranks are on the CPU."""
        if self.device.type != "cuda":
            return None
        return max(0, torch.cuda.max_memory_allocated(self.device) - self._on_device)


def _reset_host() -> int | None:
    """Have the peak begin again; return what is resident, or None where neither can be had."""
    try:
        CLEAR.write_text(CLEAR_PEAK)
    except OSError:
        return None
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else None


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
        saves=samples, file_system=file_system_of(directory), unavailable=dict(unavailable)
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
    (missing,) = context.agree_max([wanted - shutil.disk_usage(directory).free])
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
