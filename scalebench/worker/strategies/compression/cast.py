"""Half precision on the wire: fp16 or bf16 instead of float32.

Source: Micikevicius et al. 2018 (fp16 gradients); Kalamkar et al. 2019 (bf16). The code is linear
as far as rounding goes, so it is all-reduced: each rank's is divided by the number of ranks first,
which keeps the sum within fp16's range, as torch's own hooks do.

Wire: 2 bytes per element, nothing else. Error of an element of normal size: half a unit in the
last place, ``|x|·2⁻¹¹`` (fp16) or ``|x|·2⁻⁸`` (bf16); fp16 turns what exceeds 65504 into infinity
and rounds below 6·10⁻⁵ to multiples of 6·10⁻⁸. The ranks' sum rounds once more per rank.
"""

import torch

from scalebench.worker.strategies.compression.codec import OneRound
from scalebench.worker.strategies.compression.draw import Draw


class Cast(OneRound):
    """Another floating-point type on the wire."""

    collective = "all_reduce"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, gradient: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return the gradient in the wire's type."""
        return gradient.reshape(-1).to(self.dtype, copy=True)

    def add_decoded(
        self, wire: torch.Tensor, into: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add it in float32."""
        into.add_(wire.to(torch.float32), alpha=weight)

    def wire_bytes(self, numel: int) -> int:
        """Return the bytes handed over for a bucket."""
        return self.dtype.itemsize * numel
