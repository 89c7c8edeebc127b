"""A training that can be saved and can continue, also where one of its ranks is made to fail."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from scalebench.records.measured.recovery import (
    CAUGHT_UP,
    FaultFolder,
    RecoveryRecord,
    fault_folder,
)
from scalebench.spec.recovery import FaultPlan, SaveMethod
from scalebench.worker.checkpoints.methods import (
    RANDOM,
    Digests,
    Saver,
    Saving,
    Tensors,
    apply_settings,
    differences,
    digests_of,
    make_optimizer_state,
    open_saver,
    random_of,
    set_random_state,
    settings_of,
    state_of,
)
from scalebench.worker.checkpoints.store import Checkpoint, CheckpointStore, write_durable
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import build_training
from scalebench.worker.workloads.batches import endless

FACTS = "facts.json"
"""What a checkpoint has besides tensors: the place in the data, the optimizer's settings."""
METHOD: SaveMethod = "sharded"
MOST_STEPS = 100_000
"""A fault that never comes ends here, long before anybody waits for it."""


class TimedStep(NamedTuple):
    """When a step began, on the monotonic clock, and how many seconds it took."""

    start_ns: int
    seconds: float


class NotEqual(Exception):
    """A restored state is not the one that was saved."""


@dataclass(frozen=True)
class Facts:
    """What a checkpoint has besides tensors.

    Attributes:
        step: Steps trained; also how many batches were taken from the data.
    """

    step: int
    world_size: int
    settings: list[dict[str, Any]]


class Trainee:
    """One rank's training.

    Attributes:
        step: Steps trained so far, which is the place in the data.
        loss: Of this rank's batch in the last step, shape (); NaN before the first.
    """

    def __init__(self, context: RankContext) -> None:
        self.context = context
        workload = fresh_workload(context)
        self.training = build_training(workload, context)
        stream = endless(workload.batches, context.device, context.cell.rank_batch)
        self.batches = self.training.own_batches(stream)
        self.step = 0
        self.loss = torch.tensor(float("nan"))

    def train(self, count: int) -> list[TimedStep]:
        """Train some steps; the device has finished each before the next begins."""
        steps = []
        for _ in range(count):
            began = time.monotonic_ns()
            self.loss = self.training.step(next(self.batches))
            synchronise(self.context.device)
            steps.append(TimedStep(began, (time.monotonic_ns() - began) / 1e9))
            self.step += 1
        return steps

    def tensors(self) -> Tensors:
        """Return this rank's tensors of the state."""
        return state_of(self.training, self.context.rank)

    def digests(self) -> Digests:
        """Return a hash of every tensor, on rank 0; every rank takes part."""
        return digests_of(self.tensors(), self.context)

    def write_facts(self, store: CheckpointStore) -> None:
        """Put what a checkpoint has besides tensors into its folder, and wait for the disk.

        On rank 0, before `begin_save`: a save that is timed has only to write tensors.
        """
        facts = Facts(self.step, self.context.cell.world_size, settings_of(self.training.optimizer))
        write_durable(store.partial(self.step) / FACTS, json.dumps(facts.__dict__).encode())

    def begin_save(self, store: CheckpointStore, saver: Saver, method: SaveMethod) -> Saving:
        """Begin to save the tensors; every rank takes part, after `write_facts` on rank 0."""
        return saver.save(method, self.tensors(), store.partial(self.step))

    def restore(
        self,
        saver: Saver,
        method: SaveMethod,
        checkpoint: Checkpoint,
        when_loaded: Callable[[], None] = lambda: None,
    ) -> Facts:
        """Continue from a checkpoint, whatever number of ranks saved it; every rank takes part.

        A rank without a random state of its own, where fewer ranks saved, takes another rank's.

        ``when_loaded`` is called when the tensors are there, before the data comes to its place.
        """
        facts = Facts(**json.loads((checkpoint.folder / FACTS).read_text()))
        make_optimizer_state(self.training)
        tensors = self.tensors()
        source = self.context.rank % facts.world_size
        own = random_of(tensors, self.context.rank)
        wanted = {n: t for n, t in tensors.items() if not n.startswith(RANDOM)}
        wanted |= {f"{RANDOM}{source}.{name}": t for name, t in own.items()}
        saver.load(method, wanted, checkpoint.folder)
        apply_settings(self.training.optimizer, facts.settings)
        when_loaded()
        for _ in range(facts.step - self.step):
            next(self.batches)
        self.step = facts.step
        set_random_state(random_of(wanted, source))
        return facts

    def check_equal(self, saved: Digests, with_random: bool, what: str) -> int:
        """Return the number of tensors, every one of them equal bit for bit to what was saved.

        Every rank takes part; rank 0 compares.

        Raises:
            NotEqual: One is not; the text names it.
        """
        found = self.digests()
        if self.context.rank:
            return max(1, len(saved))
        different = differences(saved, found, with_random)
        if different:
            raise NotEqual(
                f"{what}: {len(different)} of {len(found)} tensors are not equal to those that "
                f"were saved, the first one is {different[0]}"
            )
        return len(found)

    def is_equal(self, saved: Digests) -> bool | None:
        """Return on rank 0 whether all tensors are equal to those of the hashes; else None.

        Every rank takes part.
        """
        found = self.digests()
        return not differences(saved, found, with_random=True) if self.context.rank == 0 else None

    def finish(self) -> None:
        """End what runs during the training; every rank takes part."""
        self.training.finish()


def synchronise(device: torch.device) -> None:
    """Wait until a device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write_digests(path: Path, digests: Digests) -> None:
    """Keep hashes for the code that compares with them later."""
    path.write_text(json.dumps(digests))


def read_digests(path: Path) -> Digests:
    """Return hashes that were kept."""
    return dict(json.loads(path.read_text()))


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
