"""Floating-point operations of a forward and backward pass, counted while it runs.

Counted are model FLOPs in the sense of PaLM (Chowdhery et al. 2022, appendix B): what the model
asks for, not what an implementation does besides. Matrix products, convolutions and attention
count, a multiply-add as two. What torch's counter has no formula for counts as nothing:
element-wise operators, normalisation, softmax, embedding, pooling, loss, LSTM and other fused
recurrent layers, FFTs, and kernels of the user's own without a formula registered with
``torch.utils.flop_counter.register_flop_formula``. Causal attention counts in full, as in PaLM.

Two formulas are put right here: torch's counter has none for the attention kernel of the CPU, and
in the backward pass of the fused kernels it counts the scores that they recompute, which is an
implementation's business. Both are counted as twice the forward pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

_FORWARD = ("_scaled_dot_product_flash_attention_for_cpu",)
_BACKWARD = (
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
)
Shape = Sequence[int]


@dataclass
class CountedFlops:
    """Floating-point operations of a block, known after it.

    Attributes:
        total: Of all operators with a formula.
        convolutions: Of these, in convolutions; the others are matrix products and attention.
    """

    total: float = 0
    convolutions: float = 0

    def per_sample(self, num_samples: int) -> "CountedFlops | None":
        """Return the operations of one sample; None: no operator has a formula."""
        if not self.total:
            return None
        return CountedFlops(self.total / num_samples, self.convolutions / num_samples)


@contextmanager
def count_flops() -> Iterator[CountedFlops]:
    """Count the floating-point operations of the block.

    A compiled module runs eagerly inside the block: `torch.compile` steps aside for the counter. So
    nothing that is compared or timed belongs in it.
    """
    counted = CountedFlops()
    with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
        yield counted
    counted.total = counter.get_total_flops()
    by_operator = counter.get_flop_counts().get("Global", {})
    counted.convolutions = sum(n for op, n in by_operator.items() if "conv" in str(op))


def _formulas() -> dict[Any, Any]:
    """Return operator → formula for what torch's counter does not know or counts differently."""
    aten = torch.ops.aten
    forward = {getattr(aten, name): _attention for name in _FORWARD if hasattr(aten, name)}
    backward = {
        getattr(aten, name): _attention_backward for name in _BACKWARD if hasattr(aten, name)
    }
    return forward | backward


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Return 2·B·H·T·S·(D + D_v): scores and their product with the values.

    ``query``: [B, H, T, D]; ``key``: [B, H, S, D]; ``value``: [B, H, S, D_v].
    """
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(
    _grad: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any
) -> int:
    """Return twice the forward pass: each of its two products has two gradients."""
    return 2 * _attention(query, key, value)
