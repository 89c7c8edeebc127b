"""Counted FLOPs against counts by hand and the rule of six per parameter and token."""

import pytest
import torch
from torch.nn import functional as F

from scalebench.spec.presets import PRESETS
from scalebench.worker.workloads.batches import mean_cross_entropy
from scalebench.worker.workloads.flops import count_flops
from scalebench.worker.workloads.gpt import Gpt


def gpt_by_hand(shape):
    """PaLM, appendix B: 6·(matrix parameters) + 12·L·H·Q·T a token."""
    matrices = shape.layers * 12 * shape.width**2 + shape.vocabulary * shape.width
    attention = 12 * shape.layers * shape.width * shape.context
    return shape.context * (6 * matrices + attention)


def gpt_counted(shape, **inside):
    module = Gpt(shape)
    tokens = torch.randint(shape.vocabulary, (2, shape.context + 1))
    with count_flops() as flops, torch.autocast("cpu", torch.bfloat16, **inside):
        mean_cross_entropy(module, (tokens[:, :-1], tokens[:, 1:])).backward()
    assert flops.total % 2 == 0
    return flops.total // 2


@pytest.mark.parametrize("autocast", [False, True])
def test_gpt_is_the_formula_of_palm_to_the_last_operation(autocast):
    shape = PRESETS["gpt-tiny"]
    assert gpt_counted(shape, enabled=autocast) == gpt_by_hand(shape)


def test_attention_costs_the_same_by_whatever_kernel():
    """Two products forward, four backward: what a kernel recomputes is its own business."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def cost(backend):
        q, k, v = (torch.randn(2, 4, 32, 16, requires_grad=True) for _ in range(3))
        with sdpa_kernel(backend), count_flops() as flops:
            F.scaled_dot_product_attention(q, k, v).sum().backward()
        return flops.total

    by_hand = 3 * 2 * (2 * 2 * 4 * 32 * 32 * 16)
    assert cost(SDPBackend.FLASH_ATTENTION) == cost(SDPBackend.MATH) == by_hand
