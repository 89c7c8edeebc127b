import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec import Plain
from scalebench.worker.inspection import deviation
from scalebench.worker.inspection.compressed import HALF_ROUNDING, floor_of_sums
from scalebench.worker.inspection.deviation import (
    BF16_TOLERANCE,
    FLOOR,
    FP32_TOLERANCE,
    MOST_ALLOWED,
    deviations,
    furthest,
    loss_deviation,
    parameter_deviation,
    tolerance,
)
from scalebench.worker.workloads.flops import CountedFlops

NAN, INF = math.nan, math.inf


def gradients(**values):
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}


REFERENCE = gradients(a=[3.0, 4.0], b=[0.0, 12.0])  # norms 5 and 12, together 13


def gradient_deviation(given, reference):
    return furthest(deviations(given, reference), FP32_TOLERANCE)


@pytest.mark.parametrize(
    ("found", "rounding", "where", "allowed"),
    [
        ({"a": 0.04, "b": 0.3}, {}, "b", 0.05),
        ({"a": 0.04, "b": 0.3}, {"b": 0.2}, "a", 0.05),  # 0.3 of 0.4 is less than 0.04 of 0.05
        ({"a": 0.04, "b": 0.5}, {"b": 0.2}, "b", 0.4),
        ({"a": 1.0, "b": 1.0}, {"a": 5.0, "b": 0.2}, "b", 0.4),
        ({"a": 1.0, "b": 0.01}, {"a": 5.0}, "a", MOST_ALLOWED),  # a gradient of zero never passes
        ({"a": NAN, "b": 9.0}, {"a": 0.2}, "a", 0.4),
        ({"a": 0.1}, {"a": NAN}, "a", 0.05),
    ],
)
def test_bfloat16_allows_a_parameter_what_it_moves_its_gradient_by(found, rounding, where, allowed):
    worst = furthest(found, BF16_TOLERANCE, rounding)
    assert (worst.where, worst.allowed) == (where, pytest.approx(allowed))


def test_a_parameter_of_almost_no_gradient_is_held_against_a_thousandth_of_the_whole():
    reference = gradients(a=[1000.0], b=[1e-6])
    found = gradient_deviation(gradients(a=[1000.0], b=[2e-6]), reference)
    assert found.value == pytest.approx(1e-6)  # 1e-6 / (1e-3 · 1000), and not 1
    assert found.where == "b"


@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_gradient_that_is_not_finite_is_the_worst_wherever_it_stands(where, bad):
    given = {**REFERENCE, where: torch.tensor([bad, 1.0])}
    found = gradient_deviation(given, REFERENCE)
    assert not found.value <= 1e300
    assert found.where == where
    assert not gradient_deviation(REFERENCE, given).value <= FP32_TOLERANCE
    assert not gradient_deviation(given, given).value <= FP32_TOLERANCE


FLOATS = st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4)


@given(FLOATS, FLOATS, st.floats(0.01, 100))
def test_the_unit_of_the_loss_does_not_matter(given_values, reference_values, factor):
    reference = {"a": torch.tensor(reference_values, dtype=torch.float64)}
    given_gradient = {"a": torch.tensor(given_values, dtype=torch.float64)}
    if float(reference["a"].norm()) < 1e-6:
        return
    scaled = gradient_deviation({"a": given_gradient["a"] * factor}, {"a": reference["a"] * factor})
    expected = gradient_deviation(given_gradient, reference).value
    assert scaled.value == pytest.approx(expected, rel=1e-6, abs=1e-12)


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


RANKS = 4
LARGEST_ROUNDING = HALF_ROUNDING["fp16"] * (RANKS - 2)


def summed(parts: list[torch.Tensor], order: tuple[int, ...]) -> torch.Tensor:
    total = torch.zeros_like(parts[0])
    for rank in order:
        total = total + parts[rank]
    return total


def test_gradients_that_cancel_keep_the_rounding_of_what_they_were():
    generator = torch.Generator().manual_seed(7)
    given = [torch.randn(4096, generator=generator) for _ in range(RANKS - 1)]
    nothing_left = [*given, 0.02 * torch.randn(4096, generator=generator) - sum(given)]
    parts = [part.half() for part in nothing_left]
    one, other = summed(parts, (0, 1, 2, 3)), summed(parts, (3, 1, 0, 2))
    of_all = 10 * float(given[0].norm())
    assert parameter_deviation(one, other, of_all, FLOOR) > LARGEST_ROUNDING
    assert parameter_deviation(one, other, of_all, floor_of_sums("fp16", RANKS)) < LARGEST_ROUNDING
    wrong = one + 0.01 * parts[0]
    assert (
        parameter_deviation(wrong, other, of_all, floor_of_sums("fp16", RANKS)) > LARGEST_ROUNDING
    )
