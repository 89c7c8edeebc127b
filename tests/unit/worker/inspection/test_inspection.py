import math

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec import Ddp, Plain
from scalebench.spec.presets import PRESETS
from scalebench.worker.inspection import reference
from scalebench.worker.inspection.memory import CATEGORIES, watch_memory
from scalebench.worker.inspection.verify import inspect
from scalebench.worker.process.context import connected
from scalebench.worker.workloads.flops import CountedFlops
from tests.examples import cases
from tests.integration.programs import inspecting

GPT = PRESETS["gpt-tiny"]
FLOPS = 64 * (6 * (2 * 12 * 128**2 + 256 * 128) + 12 * 2 * 128 * 64)
"""PaLM, appendix B: two layers, width 128, vocabulary 256, 64 tokens."""


def inspected(tmp_path, strategy, batch=16):
    cell = inspecting(strategy, GPT, 1, batch)
    with connected(cell, 0, tmp_path / f"store-{strategy.kind}-{batch}") as context:
        return inspect(context)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return inspected(tmp_path_factory.mktemp("plain"), Plain())


def test_plain(plain):
    memory = plain.memory
    assert plain.verification.status == "reference"
    assert sum(getattr(memory, f"{name}_bytes") for name in CATEGORIES) == memory.allocated_bytes
    assert memory.parameters_bytes == 4 * GPT.num_parameters
    assert memory.optimizer_bytes == pytest.approx(8 * GPT.num_parameters, abs=2000)
    assert memory.communication_bytes == 0
    assert memory.data_bytes > 1_000_000  # the corpus
    assert plain.flops.total == FLOPS


@pytest.mark.slow
def test_recomputation_is_no_model_flop_in_either_precision(tmp_path, plain):
    """Under DDP the reference is counted, which does not recompute; plain that does is not."""
    found = inspected(tmp_path, Ddp(checkpointing=True))
    assert found.verification.status == "verified"
    assert found.flops.total == FLOPS
    assert found.memory.activations_peak_bytes < 0.7 * plain.memory.activations_peak_bytes
    assert inspected(tmp_path, Plain(checkpointing=True)).flops is None
    assert inspected(tmp_path, Ddp(autocast=True), batch=8).flops.total == FLOPS


WIDTH = 256
PARAMETER_BYTES = 3 * 4 * (WIDTH * WIDTH + WIDTH)
"""Three linear layers with bias, float32."""
SMALL = 2_000
"""Bytes of scalars (losses, step counters, indices), generously; a layer has 263,168."""


@cases("view", True, False)
@pytest.mark.usefixtures("group_of_one")
def test_buckets_are_gradients_if_gradients_are_views_and_else_communication(view):
    x = torch.randn(1, WIDTH)
    with watch_memory(torch.device("cpu")) as watch:
        with watch.stretch("communication", "build"):
            perceptron = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
            module = DistributedDataParallel(perceptron, gradient_as_bucket_view=view)
            optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
            watch.module, watch.optimizer = module, optimizer
        for _ in range(3):
            with watch.stretch("communication"):
                optimizer.zero_grad()
                module(x).square().sum().backward()
                optimizer.step()
    parts = {name: getattr(watch.memory, f"{name}_bytes") for name in CATEGORIES}
    assert sum(parts.values()) == watch.memory.allocated_bytes
    assert parts["parameters"] == parts["gradients"] == PARAMETER_BYTES
    assert parts["optimizer"] == pytest.approx(2 * PARAMETER_BYTES, abs=SMALL)
    assert parts["communication"] == pytest.approx(0 if view else PARAMETER_BYTES, abs=SMALL)


NAN, INF = math.nan, math.inf


def gradients(**values):
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}


REFERENCE = gradients(a=[3.0, 4.0], b=[0.0, 12.0])  # norms 5 and 12, together 13


def gradient_deviation(given, exact):
    return reference.furthest(reference.deviations(given, exact), reference.FP32_TOLERANCE)


@cases("where", "a", "b")
@cases("bad", NAN, INF, -INF)
def test_a_gradient_that_is_not_finite_is_the_worst_wherever_it_stands(where, bad):
    given = {**REFERENCE, where: torch.tensor([bad, 1.0])}
    found = gradient_deviation(given, REFERENCE)
    assert not found.value <= 1e300
    assert found.where == where
    assert not gradient_deviation(REFERENCE, given).value <= reference.FP32_TOLERANCE
    assert not gradient_deviation(given, given).value <= reference.FP32_TOLERANCE


@cases("position", *range(3))
@cases("bad", NAN, INF, -INF)
@cases("side", "given", "both")
def test_a_loss_that_is_not_finite_deviates_at_whatever_step_it_stands(position, bad, side):
    losses = [5.0, 4.0, 3.0]
    spoilt = [*losses[:position], bad, *losses[position + 1 :]]
    found = reference.loss_deviation(spoilt, spoilt if side == "both" else losses)
    assert not found.value <= 1e300
    assert found.where == f"step {position}"


OF_GPT = CountedFlops(total=6e9)
CNN = CountedFlops(total=1e9, convolutions=1e9 - 640)
PURE_CNN = CountedFlops(total=1e9, convolutions=1e9)
UNKNOWN = CountedFlops()
CUDA = torch.device("cuda")


@cases(
    "matmul, convolution, reduced",
    (False, True, {"cnn", "pure", "unknown"}),  # torch's defaults
    (True, False, {"gpt", "cnn", "unknown"}),
    (False, False, set()),
    (True, True, {"gpt", "cnn", "pure", "unknown"}),
)
def test_tf32_is_allowed_for_where_the_model_uses_it(monkeypatch, matmul, convolution, reduced):
    on = {"matmul_tf32": matmul, "convolution_tf32": convolution}
    monkeypatch.setattr(reference, "tf32_in_force", lambda _: on)
    models = {"gpt": OF_GPT, "cnn": CNN, "pure": PURE_CNN, "unknown": UNKNOWN}
    found = {
        name for name, flops in models.items() if reference.tolerance(Plain(), CUDA, flops) > 1e-4
    }
    assert found == reduced
