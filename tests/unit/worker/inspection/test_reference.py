from dataclasses import replace

import pytest
import torch

from scalebench.spec import Ddp, Fsdp
from scalebench.worker.inspection import reference
from scalebench.worker.inspection.reference import Reference, deviations, reference_run
from scalebench.worker.process.context import RankContext
from scalebench.worker.workloads import build_workload
from tests.builders.runs import make_cell
from tests.examples import cases

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
NUM_STEPS = 3


class Rank0(RankContext):
    """Rank 0, to which the other ranks' batches come without other processes."""

    def batches_of_ranks(self):
        return [self.batches_of(shard) for shard in range(self.cell.num_shards)]

    def batches_of(self, shard):
        torch.manual_seed(0)
        workload = build_workload(self.cell.workload, replace(self.shard, rank=shard))
        stream = iter(workload.batches)
        return [next(stream) for _ in range(NUM_STEPS)]


@pytest.fixture(autouse=True)
def no_other_processes(monkeypatch):
    monkeypatch.setattr(
        reference, "gather_on_rank_0", lambda batches, context: context.batches_of_ranks()
    )


def rank_0(world_size, strategy=None, rank_batch=16, **changes):
    cell = make_cell(
        strategy=strategy or Ddp(),
        world_size=world_size,
        scaling="weak",
        rank_batch=rank_batch,
        global_batch=rank_batch * world_size,
        purpose="inspect",
        **changes,
    )
    return Rank0(cell, 0, 0, CPU)


@cases("strategy", Ddp(), Ddp(accumulate=4), Fsdp())
@cases("rank_batch", 8, 4)
def test_pieces_make_the_gradient_and_the_losses_of_the_whole_batch(strategy, rank_batch):
    """One rank with all samples trains on the same global batch."""
    in_pieces = reference_run([], rank_0(3, strategy, rank_batch))
    whole = reference_run([], rank_0(1, Ddp(), 3 * rank_batch))
    assert isinstance(in_pieces, Reference) and isinstance(whole, Reference)
    assert in_pieces.in_pieces and not whole.in_pieces
    assert max(deviations(in_pieces.gradients, whole.gradients).values()) < 1e-5
    assert in_pieces.losses == pytest.approx(whole.losses, rel=1e-4)
