"""What ring attention and Ulysses cost next to attention in one piece, on the same total work.

``python -m benchmarks.ring_attention``. One thread, forward and backward, 8 heads of 16. A rank's
part is computed alone: torch's fake process group ends every message at once, so what is left is
the blocks, their merging and the copies. In zigzag order all ranks have the same work, so N times
one rank's part is compared with one call of ``scaled_dot_product_attention`` on the whole sequence;
the two take turns. What the messages themselves take is measured by the suite ``context``.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.paired import paired_difference
from benchmarks.verdict import against_limit
from scalebench.spec import Context
from scalebench.worker.strategies.context import DividedAttention
from scalebench.worker.strategies.long_context.ring import Ring

TOKENS = (4096,)
RANKS = (2, 4, 8)
HEADS, WIDTH = 8, 16
TARGET = 1.2
PAIRS = 20


def queries_keys_values(tokens: int) -> list[torch.Tensor]:
    """Return three tensors ``[1, H, tokens, D]`` that ask for gradients."""
    return [torch.randn(1, HEADS, tokens, WIDTH, requires_grad=True) for _ in range(3)]


def in_one_piece(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return causal attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def took_s(attention: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> float:
    """Return what forward and backward take, seconds."""
    began = time.perf_counter()
    mixed = attention(*inputs)
    torch.autograd.grad(mixed, inputs, torch.ones_like(mixed))
    return time.perf_counter() - began


def compare(tokens: int, ranks: int, method: str) -> None:
    """Print N times a rank's part beside the whole."""
    group = dist.new_group(list(range(ranks)))
    assert isinstance(group, dist.ProcessGroup)
    strategy = Context.model_validate({"method": method})
    divided = DividedAttention(strategy, Ring(group), lambda _: None)
    whole, part = queries_keys_values(tokens), queries_keys_values(tokens // ranks)
    pairs = [
        (ranks * took_s(divided, part), took_s(in_one_piece, whole)) for _ in range(PAIRS + 1)
    ][1:]
    ours, theirs = zip(*pairs, strict=True)
    difference = paired_difference(ours, theirs)
    print(
        f"{method:<8} {tokens:>6,} tokens  {ranks} x {1e3 * median(ours) / ranks:>7.1f} ms, whole "
        f"{1e3 * median(theirs):>7.1f} ms  "
        f"{against_limit(1 + difference.value, TARGET, 'times')}; {difference}",
        flush=True,
    )


def main() -> None:
    """Compare both methods at every length and number of ranks; arguments: lengths."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=max(RANKS))
    for tokens in map(int, sys.argv[1:]) if sys.argv[1:] else TOKENS:
        for method in ("ulysses", "ring"):
            for ranks in RANKS:
                compare(tokens, ranks, method)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
