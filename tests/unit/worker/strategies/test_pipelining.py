"""What pipelines are made of, without ranks: layout, stand-ins for the loss, costs, marks."""

import time

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Pipeline, Suite
from scalebench.spec.presets import PRESETS, GptShape, MlpShape
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.pipelining.costs import count_layers, time_layers
from scalebench.worker.strategies.pipelining.schedule import inputs_of, loss_of
from scalebench.worker.strategies.pipelining.stages import cut
from scalebench.worker.workloads import build_workload

CPU = torch.device("cpu")
TINY = GptShape(name="tiny", layers=3, heads=2, width=16, context=8, batch_size=4)


def built(shape, batch_size: int = 4) -> Workload:
    torch.manual_seed(0)
    return build_workload(shape, Shard(0, 1, batch_size, 0, torch.device("cpu")))


@pytest.mark.parametrize(
    "shape",
    [TINY, MlpShape(name="m", layers=3, width=8, features=5, batch_size=4), PRESETS["cnn-8"]],
)
def test_the_layers_one_after_the_other_are_the_module(shape) -> None:
    workload = built(shape)
    batch = next(iter(workload.batches))
    (inputs,) = inputs_of(workload.loss, batch)
    output = nn.Sequential(*workload.layers)(inputs)
    torch.testing.assert_close(output, workload.module(inputs), rtol=0, atol=0)
    assert loss_of(workload.loss, output, batch) == workload.loss(workload.module, batch)
    used = {id(p) for layer in workload.layers for p in layer.parameters()}
    assert used == {id(p) for p in workload.module.parameters()}


def test_a_loss_that_cannot_be_taken_apart_is_refused() -> None:
    with pytest.raises(Unsupported, match="must call module"):
        inputs_of(lambda module, batch: module(x=batch), torch.ones(2))
    with pytest.raises(Unsupported, match="does not call the module"):
        inputs_of(lambda module, batch: batch.sum(), torch.ones(2))


def test_what_layers_keep_is_what_autograd_keeps() -> None:
    """Held against a real forward pass: each storage once, neither parameters nor the batch."""
    layers = [nn.Linear(8, 16), nn.Sequential(nn.GELU(), nn.LayerNorm(16)), nn.Linear(16, 4)]
    workload = Workload(
        nn.Sequential(*layers),
        [torch.randn(6, 8)],
        lambda model, batch: model(batch).mean(),
        layers=layers,
    )
    counted = count_layers(Pipeline(microbatches=2), workload, CPU).kept_bytes
    batch = passed = torch.randn(3, 8, requires_grad=True)
    real = []
    for layer in layers:
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = layer(passed)
        anyhow = {t.untyped_storage().data_ptr() for t in (batch, *layer.parameters())}
        real.append(sum(size for place, size in kept.items() if place not in anyhow))
        passed = output.detach().requires_grad_()
    assert counted == tuple(real)
    assert counted[::2] == (0, 3 * 16 * 4)


class Waits(nn.Module):
    """A layer that takes a known time, and costs no FLOPs."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return values * self.weight


def test_layers_are_cut_by_the_time_that_they_take() -> None:
    layers = [Waits(s) for s in (0.06, 0.02, 0.02, 0.02)]
    module = nn.Sequential(*layers)
    workload = Workload(
        module, [torch.ones(4, 4)], lambda model, batch: model(batch).mean(), layers=layers
    )
    measured = Pipeline(microbatches=2, split="measured")
    for seconds, layer in zip(time_layers(measured, workload, CPU), layers, strict=True):
        assert layer.seconds <= seconds < layer.seconds + 0.02
    parts, told = cut(measured, workload, 2, CPU)
    assert [len(part) for part in parts] == [1, 3]
    assert told.costs[0] > 2 * told.costs[1]
    by_size, _ = cut(Pipeline(microbatches=2), workload, 2, CPU)
    assert [len(part) for part in by_size] == [2, 2]
    assert all(parameter.grad is None for parameter in module.parameters())


def test_what_cannot_be_cut_is_refused_with_the_reason() -> None:
    with pytest.raises(Unsupported, match="6 stages need as many layers, and there are 5"):
        cut(Pipeline(microbatches=2), built(TINY), 6, CPU)
    nameless = Workload(nn.Linear(2, 2), [], lambda module, batch: module(batch))
    with pytest.raises(Unsupported, match=r"names its layers: Workload\(layers"):
        cut(Pipeline(), nameless, 2, CPU)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"schedule": "gpipe", "chunks": 2}, "gpipe has 1 per rank: give chunks=1"),
        ({"schedule": "zbv"}, "zbv has 2 per rank: give chunks=2"),
        ({"schedule": "2f2b"}, "schedule"),
        ({"microbatches": 0}, "microbatches"),
    ],
)
def test_a_pipeline_that_contradicts_itself_is_refused(fields, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Pipeline(**fields)


def cells_of(strategy: Pipeline, scaling: str = "strong"):
    case = Case(name="case", strategy=strategy, workload="paced", batch_size=16)
    suite = Suite(name="suite", question="?", cases=(case,), scaling=scaling)
    plan = make_plan(Request(world_sizes=(1, 2, 3, 4)), [suite], Machine(0, 4))
    return {c.world_size: c for c in plan.cells if c.case == "case" and c.purpose == "inspect"}


def test_the_ranks_of_a_pipeline_are_fed_the_whole_batch() -> None:
    strong, weak = cells_of(Pipeline()), cells_of(Pipeline(), "weak")
    assert {(c.global_batch, c.rank_batch, c.num_shards) for c in strong.values()} == {(16, 16, 1)}
    assert [(c.global_batch, c.rank_batch) for c in weak.values()] == [
        (16 * n, 16 * n) for n in weak
    ]
    both = cells_of(Pipeline(data_parallel=2))
    assert (both[4].rank_batch, both[4].num_shards, both[4].skip_reason) == (8, 2, None)


def test_ranks_that_share_a_gpu_are_no_pipeline() -> None:
    case = Case(name="case", strategy=Pipeline(), workload="mlp-tiny", batch_size=16)
    suite = Suite(name="suite", question="?", cases=(case,))
    request = Request(world_sizes=(1, 2), oversubscribe=True)
    cells = make_plan(request, [suite], Machine(num_gpus=1, num_cores=4)).cells
    reasons = {c.world_size: c.skip_reason for c in cells if c.case == "case"}
    assert reasons[1] is None and "gloo" in reasons[2]


def test_sizes_that_make_no_pipeline_are_skipped_with_the_reason() -> None:
    reasons = {n: c.skip_reason for n, c in cells_of(Pipeline(data_parallel=2)).items()}
    assert reasons[1] == "1 ranks cannot be split into 2 pipelines"
    assert reasons[2] is None
    assert "3 ranks cannot be split into 2 pipelines" in reasons[3]
    compiled = cells_of(Pipeline(schedule="zero-bubble", compile=True))
    assert "cannot do with a compiled module" in compiled[1].skip_reason
    few = cells_of(Pipeline(microbatches=2))
    assert few[2].skip_reason is None
    assert few[4].skip_reason == "1f1b needs as many microbatches as stages: 2 for 4 stages"
    odd = cells_of(Pipeline(schedule="gpipe", microbatches=5))
    assert odd[1].skip_reason == "16 samples per pipeline cannot be split into 5 microbatches"
