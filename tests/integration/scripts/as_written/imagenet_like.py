"""PyTorch's example of ImageNet: no process group on one rank; evaluates and saves each epoch."""

import os
import sys

import torch
import torch.distributed as dist
from own_clock import own_clock
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

FOLDER, BATCH = sys.argv[1], 16
world_size = int(os.environ["WORLD_SIZE"])
distributed = world_size > 1
if distributed:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", "env://", world_size=world_size, rank=rank)
net = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(64 * 6 * 6, 10)),
)
model = nn.parallel.DistributedDataParallel(net) if distributed else net
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
images, targets = torch.randn(1696 * world_size, 3, 24, 24), torch.arange(1696 * world_size) % 10
data = TensorDataset(images, targets)
held_out = Subset(data, range(101))
rest = Subset(held_out, range(101 // world_size * world_size, 101))
sampler = DistributedSampler(data) if distributed else None
own = DistributedSampler(held_out, shuffle=False, drop_last=True) if distributed else None
loader = DataLoader(data, BATCH, shuffle=sampler is None, num_workers=2, sampler=sampler)
validation = DataLoader(held_out, BATCH, num_workers=2, sampler=own)


def validate():
    """Return the share of right answers among the images held out, over all ranks."""
    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for inputs, target in (*validation, *(DataLoader(rest, BATCH) if distributed else ())):
            right += torch.tensor([(model(inputs).argmax(1) == target).sum(), len(target)])
    if distributed:
        dist.all_reduce(right)
    return (right[0] / right[1]).item()


with own_clock() as mark:
    for epoch in range(10_000):
        if sampler is not None:
            sampler.set_epoch(epoch)
        model.train()
        for inputs, target in loader:
            loss = nn.functional.cross_entropy(model(inputs), target)
            loss.item()
            optimizer.zero_grad()
            loss.backward()
            mark()
            optimizer.step()
        accuracy = validate()
        scheduler.step()
        if not distributed or rank == 0:
            state = {"state_dict": model.state_dict(), "accuracy": accuracy}
            torch.save(state, f"{FOLDER}/checkpoint.pth.tar")
