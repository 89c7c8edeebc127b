"""What operators that only move memory take of a GPT step, and the efficiency that is left.

Norms, dropout, softmax and the like do few FLOPs for each byte, so the device's memory sets their
pace. Their part falls as a model gets wider: matrix products grow with the square of the width,
what lies between them with the width. For models that store attention's scores and compute every
block again, as Megatron-LM did for SC21.
"""

from scalebench.costmodel.search.model import SearchModel

PASSES_OVER_MEMORY = 7
"""Each stored activation is written and read once in the forward pass and when it is computed
again; in the backward pass it is read, and its gradient is written and read."""

PASSES_OF_FLOPS = 4
"""Forward, forward again, and a backward pass of twice that."""


def moved_bytes(model: SearchModel, tensor: int) -> float:
    """Return the bytes that a rank moves for one sample and block, forward to backward.

    Stored are ``s·h·(10 + 24/t + 5·a·s/(h·t))`` bytes, with dropout and scores, in 16 bits
    (Korthikanti et al. 2022, §4.1 and §4.2.1).
    """
    tokens, width = model.context, model.width
    scores = 5 * model.heads * tokens / (width * tensor)
    return PASSES_OVER_MEMORY * tokens * width * (10 + 24 / tensor + scores)


def block_flops(model: SearchModel, tensor: int) -> float:
    """Return the FLOPs of a rank for one sample and block: ``24·s·h² + 4·s²·h`` in each pass."""
    tokens, width = model.context, model.width
    forward = 24 * tokens * width**2 + 4 * tokens**2 * width
    return PASSES_OF_FLOPS * forward / tensor


def matrix_efficiency(
    model: SearchModel, tensor: int, efficiency: float, peak_flops: float, byte_per_s: float
) -> float:
    """Return the part of its peak that a device reaches in matrix products alone.

    Args:
        model: Whose efficiency is known.
        tensor: Ranks of a tensor group.
        efficiency: Of its whole blocks.
        peak_flops: Of the device, FLOP/s.
        byte_per_s: Of its memory.
    """
    flops, moved_s = block_flops(model, tensor), moved_bytes(model, tensor) / byte_per_s
    return flops / peak_flops / (flops / (efficiency * peak_flops) - moved_s)


def whole_efficiency(
    model: SearchModel, tensor: int, of_matrices: float, peak_flops: float, byte_per_s: float
) -> float:
    """Return the part of its peak that a device reaches on whole blocks; arguments as above."""
    flops, moved_s = block_flops(model, tensor), moved_bytes(model, tensor) / byte_per_s
    return flops / peak_flops / (flops / (of_matrices * peak_flops) + moved_s)
