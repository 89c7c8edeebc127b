"""Does a batch fit? Trains two steps and counts the memory; nothing is compared, nothing timed."""

from collections.abc import Callable

from scalebench import units
from scalebench.records.measured.rank import Memory
from scalebench.worker.inspection.memory import watch_memory
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import build_watched
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.workloads.batches import endless

NUM_STEPS = 2
"""The optimizer makes its state in the first; DDP rebuilds its buckets in the second."""


def measure_fit(context: RankContext) -> Memory:
    """Return the peak of building and training.

    Raises:
        MemoryError: It is above the cell's limit.
    """
    memory = train_watched(context)
    peak, limit = memory.allocated_bytes, context.cell.memory_limit_bytes
    if limit is not None and peak is not None and peak > limit:
        raise MemoryError(
            f"the peak of {units.bytes_(peak)} is above the limit of {units.bytes_(limit)}"
        )
    return memory


def train_watched(
    context: RankContext, prepare: Callable[[Training], None] = lambda _: None
) -> Memory:
    """Return the memory of building and of two steps.

    ``prepare`` is given the training before its first step.
    """
    cell = context.cell
    workload = fresh_workload(context)
    feed = endless(workload.batches, context.device, cell.rank_batch)
    batches = [next(feed) for _ in range(NUM_STEPS)]
    with watch_memory(context.device) as watch:
        training, _kept = build_watched(watch, context)
        prepare(training)
        for batch in batches:
            with watch.stretch("communication", kept=training.keeps_buffers):
                training.step(batch)
    training.finish()
    return watch.memory
