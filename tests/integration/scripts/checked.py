"""Training with DDP that is right, or wrong or odd in the ways that its argument names."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ways = sys.argv[1].split("+")
batch = int(sys.argv[2]) if sys.argv[2:] else 8


class Centred(nn.Module):
    """Takes a mean off that each rank keeps of its own samples."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class Exchanged(nn.Module):
    """Rows go to the expert of another rank, and what it answers comes back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return all_to_all_single(torch.empty_like(x), x)


dist.init_process_group("gloo")
rank, num_ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 32), torch.randint(0, 10, (256,)))
sampler = None if {"data", "shuffled", "slices"} & set(ways) else DistributedSampler(data)
draw = torch.Generator().manual_seed(rank)  # "shuffled": each rank draws from all samples
loader = DataLoader(data, batch, "shuffled" in ways, sampler, generator=draw)
if "drawn" in ways:
    loader = iter(lambda: (torch.randn(batch, 32), torch.randint(0, 10, (batch,))), None)
held_out = DataLoader(data, 8, sampler=DistributedSampler(data))  # evaluated in one order
next(iter(loader))  # a look at a batch begins no epoch
if "unseeded" in ways:
    torch.seed()
elif not {"dropout", "fsdp1", "drawn"} & set(
    ways
):  # DDP has all begin as rank 0 does, FSDP1 does not
    torch.manual_seed(rank)
norm = nn.BatchNorm1d(64) if "norm" in ways else nn.LayerNorm(64)
between = [nn.Dropout(0.1)] if "dropout" in ways or "drops" in ways else []
between += [Centred(64)] if "buffer" in ways else []
body = nn.Sequential(nn.Linear(32, 64), norm, nn.ReLU(), *between, nn.Linear(64, 64))
head = nn.Linear(64, 10)
if "lost" in ways:
    body.register_buffer("seen", torch.full((4,), torch.nan if rank else 1.0))
if "dry" in ways and not rank:  # a pass before anything is wrapped
    nn.functional.cross_entropy(head(body(data[:8][0])), data[:8][1]).backward()
    body.zero_grad(), head.zero_grad()
    with torch.device("meta"):  # as to count its operations
        nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
wrapped = body if "outside" in ways else nn.Sequential(body, head)
is_sharded = "hybrid" in ways or "fsdp1" in ways
if "fsdp1" in ways:
    wrapped = FullyShardedDataParallel(
        wrapped,
        device_mesh=init_device_mesh("cpu", (num_ranks // 2, 2)),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
elif is_sharded:
    names = ("replicate", "shard")
    fully_shard(wrapped, mesh=init_device_mesh("cpu", (num_ranks, 1), mesh_dim_names=names))
elif "own" not in ways:  # else gradients are averaged below
    wrapped = DistributedDataParallel(wrapped, broadcast_buffers="kept" not in ways)
model = nn.Sequential(wrapped, head) if "outside" in ways else wrapped
if "experts" in ways:
    model = nn.Sequential(wrapped, Exchanged(), head, Exchanged())
if "start" in ways:
    with torch.no_grad():
        head.weight.mul_(1 + 0.01 * rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
every = 2 if "summed" in ways or "averaged" in ways else 1
for epoch in range(100_000):
    if sampler is not None and "order" not in ways:
        sampler.set_epoch(epoch)
    with torch.no_grad():
        model(next(iter(held_out))[0])
    joined = contextlib.ExitStack()
    if "uneven" in ways:
        joined.enter_context(wrapped.join())
    for number, (inputs, labels) in enumerate(loader, 1):
        if "uneven" in ways and number > 16 - rank:
            break
        if "slices" in ways:  # all ranks read the same, and each takes its part
            inputs, labels = inputs[rank::num_ranks], labels[rank::num_ranks]
        is_last = number % every == 0
        wait = not {"each", "own"} & set(ways) and not is_last
        with wrapped.no_sync() if wait and not is_sharded else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss = loss / every if "averaged" in ways else loss
            loss = loss * torch.nan if "lost" in ways and number == 6 else loss
            (loss / num_ranks if "twice" in ways else loss).backward()
        if not is_last:
            continue
        for parameter in model.parameters() if {"never", "own"} & set(ways) else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= num_ranks if "own" in ways else 1
        if "sharp" in ways:  # the gradient at a place nearby is what counts
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if "noise" in ways:
            with torch.no_grad():
                head.weight.add_(1e-4 * rank)
        optimizer.zero_grad()
    joined.close()
