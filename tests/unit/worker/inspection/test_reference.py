"""The single-process reference: in the memory of one rank, and right where pieces are not."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from scalebench.spec import Ddp, Fsdp, Plain
from scalebench.spec.presets import PRESETS
from scalebench.spec.workload import Workload
from scalebench.worker.inspection import reference, verify
from scalebench.worker.inspection.deviation import (
    Deviation,
    deviations,
    total_norm,
)
from scalebench.worker.inspection.memory import watch_memory
from scalebench.worker.inspection.reference import NoReference, Reference, reference_run
from scalebench.worker.inspection.verify import flops_of, judge
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.data_parallel import PlainTraining
from scalebench.worker.workloads import build_workload
from tests.builders.runs import make_cell

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


def rank_0(world_size: int, strategy=None, rank_batch: int = 16, **changes) -> Rank0:
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


def peak_bytes(context: Rank0) -> int:
    with watch_memory(CPU) as watch, watch.stretch("activations"):
        reference_run([], context)
    assert watch.memory.allocated_bytes is not None
    return watch.memory.allocated_bytes


def test_four_ranks_are_checked_in_the_memory_of_one():
    """Weak scaling: the global batch of four ranks has four times the activations of one."""
    alone = peak_bytes(rank_0(1))
    assert peak_bytes(rank_0(4)) == pytest.approx(alone, rel=0.1)


@pytest.mark.parametrize("strategy", [Ddp(), Ddp(accumulate=4), Fsdp()])
@pytest.mark.parametrize("rank_batch", [8, 4])
def test_pieces_make_the_gradient_and_the_losses_of_the_whole_batch(strategy, rank_batch):
    """One rank with all samples trains on the same global batch."""
    in_pieces = reference_run([], rank_0(3, strategy, rank_batch))
    whole = reference_run([], rank_0(1, Ddp(), 3 * rank_batch))
    assert isinstance(in_pieces, Reference) and isinstance(whole, Reference)
    assert in_pieces.in_pieces and not whole.in_pieces
    assert max(deviations(in_pieces.gradients, whole.gradients).values()) < 1e-5
    assert in_pieces.losses == pytest.approx(whole.losses, rel=1e-4)


def summed_loss(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="sum")


def mean_loss(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def of_most_frequent(module, batch):
    """A loss that looks at the whole batch: classes are weighed by how often they are in it."""
    weights = torch.bincount(batch[1], minlength=4).float()
    return (
        nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")
        @ weights[batch[1]]
    ) / len(batch[1])


def perceptron(layers=(), loss=mean_loss):
    def build(spec, shard, loader=None):
        module = nn.Sequential(nn.Linear(16, 32), *(kind() for kind in layers), nn.Linear(32, 4))
        data = torch.Generator().manual_seed(100 + shard.rank)
        size = shard.batch_size
        batches = [
            (torch.randn(size, 16, generator=data), torch.randint(4, (size,), generator=data))
            for _ in range(NUM_STEPS)
        ]
        return Workload(module=module, batches=batches, loss=loss)

    return build


@pytest.mark.parametrize(
    ("build", "in_pieces"),
    [
        (perceptron(), True),
        (perceptron([lambda: nn.LayerNorm(32)]), True),
        (perceptron([lambda: nn.BatchNorm1d(32)]), False),
        (perceptron([nn.Dropout]), False),
        (perceptron(loss=summed_loss), False),
        (perceptron(loss=of_most_frequent), False),
    ],
)
def test_a_model_that_depends_on_the_split_is_computed_at_once(monkeypatch, build, in_pieces):
    monkeypatch.setattr(reference, "build_workload", build)
    monkeypatch.setattr(f"{__name__}.build_workload", build)
    found = reference_run([], rank_0(2))
    assert isinstance(found, Reference)
    assert found.in_pieces is in_pieces
    assert (found.deviation_of_parts().value < 1e-4) is in_pieces
    verdict = judge(Deviation(0.5, "0.weight"), Deviation(0.0), found, 1e-4)
    assert verdict.status == ("deviates" if in_pieces else "unverified")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError("planted"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_a_model_that_one_process_cannot_hold_has_no_reference_and_is_no_failure(
    monkeypatch, error
):
    def fails(self, batch):
        raise error

    monkeypatch.setattr(PlainTraining, "forward_backward", fails)
    found = reference_run([], rank_0(2))
    assert isinstance(found, NoReference)
    assert "one process cannot hold the reference" in found.reason
    assert str(error).splitlines()[0] in found.reason


@pytest.mark.parametrize("workload", ["gpt-tiny", "cnn-8", "mlp-tiny"])
def test_flops_follow_from_the_shapes_where_nothing_could_be_computed(workload):
    context = rank_0(2, workload=PRESETS[workload])
    computed = reference_run([], context)
    assert isinstance(computed, Reference)
    expected = flops_of(computed, context)
    assert expected
    assert flops_of(NoReference("too large"), context) == expected
    rank_1 = RankContext(context.cell, 1, 1, CPU)
    assert flops_of(NoReference("too large"), rank_1) is None


def compiled_to_something_else(monkeypatch):
    """Have compiled modules return other numbers than eager ones; no compiler is needed."""
    compiled = nn.Module.compile

    def compile_(module):
        def backend(graph, _):
            return lambda *inputs: [out * 1.5 for out in graph(*inputs)]

        compiled(module, backend=backend)

    monkeypatch.setattr(nn.Module, "compile", compile_)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("strategy", [Ddp, Plain])
def test_the_reference_computes_every_step_as_the_ranks_do(monkeypatch, strategy, compiled):
    compiled_to_something_else(monkeypatch)
    context = rank_0(1, strategy(compile=compiled), workload=PRESETS["mlp-tiny"])
    training = PlainTraining(Plain(compile=compiled), reference.fresh_workload(context), context)
    batches = context.batches_of(0)
    losses = [float(training.step(batches[0]))]
    gradients = {name: g.clone() for name, g in training.gradients()}
    losses += [float(training.step(batch)) for batch in batches[1:]]
    if strategy is Plain:
        monkeypatch.setattr(verify, "first_batches", lambda *_: batches)
        found = verify.inspect(context)
        assert found.losses == losses
        assert found.flops == flops_of(reference_run([], context), context) is not None
        return
    found = reference_run([], context)
    assert isinstance(found, Reference)
    assert found.losses == losses
    assert max(deviations(found.gradients, gradients).values()) == 0
    assert found.total_norm == total_norm(found.gradients)


@pytest.mark.parametrize(
    ("workload", "strategy", "least", "most"),
    [
        ("cnn-8", Ddp(autocast=True), 0.05, 0.4),
        ("gpt-tiny", Ddp(autocast=True), 1e-4, 0.02),
        ("cnn-8", Ddp(), 0, 0),
        ("cnn-8", Fsdp(reduce_dtype="bfloat16"), 0, 0),
    ],
)
def test_what_bfloat16_moves_is_measured_on_the_model_itself(workload, strategy, least, most):
    context = rank_0(2, strategy, 8, workload=PRESETS[workload])
    found = reference_run([], context)
    assert isinstance(found, Reference)
    assert least <= max(found.rounding.values(), default=0) <= most
    exact = reference_run([], rank_0(2, Ddp(), 8, workload=PRESETS[workload]))
    assert isinstance(exact, Reference)
    rounded = found.furthest(deviations(exact.gradients, found.gradients))
    assert judge(rounded, Deviation(0.0), found, found.allowed).status == "verified"
    alone = {name: 2 * gradient for name, gradient in found.gradients.items()}  # a sum, no mean
    wrong = found.furthest(deviations(alone, found.gradients))
    assert judge(wrong, Deviation(0.0), found, found.allowed).status == "deviates"


def test_rounding_that_hides_every_error_verifies_nothing():
    found = reference_run([], rank_0(2, Ddp(autocast=True), 8))
    assert isinstance(found, Reference)
    found.rounding = dict.fromkeys(found.gradients, 0.6)
    worst = found.furthest(dict.fromkeys(found.gradients, 1.1))
    verdict = judge(worst, Deviation(0.0), found, found.allowed)
    assert verdict.status == "unverified" and "bfloat16 alone" in (verdict.reason or "")
