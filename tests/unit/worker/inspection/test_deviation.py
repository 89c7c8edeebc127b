import math

import pytest
import torch

from scalebench.spec import Plain
from scalebench.worker.inspection import deviation
from scalebench.worker.inspection.deviation import (
    FP32_TOLERANCE,
    deviations,
    furthest,
    loss_deviation,
    tolerance,
)
from scalebench.worker.workloads.flops import CountedFlops

NAN, INF = math.nan, math.inf


def gradients(**values):
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}


REFERENCE = gradients(a=[3.0, 4.0], b=[0.0, 12.0])  # norms 5 and 12, together 13


def gradient_deviation(given, reference):
    return furthest(deviations(given, reference), FP32_TOLERANCE)


@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_gradient_that_is_not_finite_is_the_worst_wherever_it_stands(where, bad):
    given = {**REFERENCE, where: torch.tensor([bad, 1.0])}
    found = gradient_deviation(given, REFERENCE)
    assert not found.value <= 1e300
    assert found.where == where
    assert not gradient_deviation(REFERENCE, given).value <= FP32_TOLERANCE
    assert not gradient_deviation(given, given).value <= FP32_TOLERANCE


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("side", ["given", "both"])
def test_a_loss_that_is_not_finite_deviates_at_whatever_step_it_stands(position, bad, side):
    losses = [5.0, 4.0, 3.0]
    spoilt = [*losses[:position], bad, *losses[position + 1 :]]
    found = loss_deviation(spoilt, spoilt if side == "both" else losses)
    assert not found.value <= 1e300
    assert found.where == f"step {position}"


GPT = CountedFlops(total=6e9)
CNN = CountedFlops(total=1e9, convolutions=1e9 - 640)
PURE_CNN = CountedFlops(total=1e9, convolutions=1e9)
UNKNOWN = CountedFlops()
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("matmul", "convolution", "reduced"),
    [
        (False, True, {"cnn", "pure", "unknown"}),  # torch's defaults
        (True, False, {"gpt", "cnn", "unknown"}),
        (False, False, set()),
        (True, True, {"gpt", "cnn", "pure", "unknown"}),
    ],
)
def test_tf32_is_allowed_for_only_where_the_model_uses_it(
    monkeypatch, matmul, convolution, reduced
):
    on = {"matmul_tf32": matmul, "convolution_tf32": convolution}
    monkeypatch.setattr(deviation, "tf32_in_force", lambda _: on)
    models = {"gpt": GPT, "cnn": CNN, "pure": PURE_CNN, "unknown": UNKNOWN}
    found = {name for name, flops in models.items() if tolerance(Plain(), CUDA, flops) > 1e-4}
    assert found == reduced
