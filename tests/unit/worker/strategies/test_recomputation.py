"""How often a checkpointed block is computed again: what the search counts for a schedule."""

from functools import partial

import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.checkpoint import checkpoint

from scalebench.search.prediction.passes import WEIGHT_GROUPS
from scalebench.worker.workloads.gpt import Block


def test_gradients_of_weights_by_themselves_compute_a_block_again_for_each_group():
    block, calls = Block(width=16, heads=2), []
    bare = block.forward

    def counted(x):
        calls.append(1)
        return bare(x)

    block.forward = partial(checkpoint, counted, use_reentrant=False)
    given = torch.randn(1, 8, 16, requires_grad=True)
    made = block(given * 1)
    calls.clear()
    _, groups = stage_backward_input([made], [torch.ones_like(made)], [given], block.parameters())
    assert len(calls) == 1
    stage_backward_weight(block.parameters(), groups)
    assert len(calls) == 1 + WEIGHT_GROUPS
