"""The loop of nanoGPT: no DataLoader, and gradient accumulation that is divided by the ranks.

Matrices have an optimizer of their own, as in nanochat.
"""

import sys

import torch
import torch.distributed as dist
from own_clock import own_clock
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH, BLOCK, VOCAB = 4, 32, 65
dist.init_process_group("gloo")
accumulation = 8
assert accumulation % dist.get_world_size() == 0
accumulation //= dist.get_world_size()
torch.manual_seed(1337 + dist.get_rank())
data = torch.randint(VOCAB, (100_000,))


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return blocks from anywhere in the text, and what follows each token."""
    places = torch.randint(len(data) - BLOCK, (BATCH,))
    return tuple(torch.stack([data[i + s : i + s + BLOCK] for i in places]) for s in (0, 1))


layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True)
blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
model = DDP(nn.Sequential(nn.Embedding(VOCAB, 64), blocks, nn.Linear(64, VOCAB)))
optimizers = (
    torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], lr=1e-3, momentum=0.9),
    torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], lr=1e-3, betas=(0.9, 0.95)),
)
scaler = torch.amp.GradScaler("cpu", enabled=False)


def loss_of(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the next tokens."""
    return nn.functional.cross_entropy(network(x).flatten(0, 1), y.flatten())


x, y = get_batch()
print("PARAMETERS", sum(p.numel() for p in model.parameters()), flush=True)
with own_clock() as mark:
    for number in range(100_000):
        if number % 100 == 0 and dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                losses = [loss_of(model.module, *get_batch()).item() for _ in range(20)]
            model.train()
            torch.save(model.module.state_dict(), f"{sys.argv[1]}/nanogpt.pt")
        for micro in range(accumulation):
            model.require_backward_grad_sync = micro == accumulation - 1
            loss = loss_of(model, x, y) / accumulation
            x, y = get_batch()  # the next one, while the forward pass runs on a device
            scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        mark()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=True)
