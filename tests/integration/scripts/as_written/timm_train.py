"""As timm's train.py with --no-prefetcher: its model, loader, optimizer, schedule and averages."""

# ruff: noqa: E402

import torch
import torch.distributed as dist

for kind in ("nms", "qnms"):  # a torchvision for CUDA beside a torch for the CPU lacks them
    torch.library.define(f"torchvision::{kind}", "(Tensor a, Tensor b, float c) -> Tensor")

import timm
from own_clock import own_clock
from timm.data import create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter
from torch.nn.parallel import DistributedDataParallel
from torchvision.datasets import FakeData

dist.init_process_group("gloo")
model = DistributedDataParallel(timm.create_model("test_resnet", num_classes=10))
optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-3, momentum=0.9)
scheduler, _ = create_scheduler_v2(optimizer, num_epochs=100)
loader = create_loader(
    FakeData(256, (3, 40, 40), 10),
    input_size=(3, 32, 32),
    batch_size=8,
    is_training=True,
    use_prefetcher=False,
    num_workers=0,
    distributed=True,
    device=torch.device("cpu"),
)
loss_of = LabelSmoothingCrossEntropy()
losses = AverageMeter()
with own_clock() as mark:
    for epoch in range(10_000):
        loader.sampler.set_epoch(epoch)
        for images, targets in loader:
            loss = loss_of(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            mark()
            optimizer.step()
            losses.update(loss.item(), images.size(0))
        scheduler.step(epoch + 1, losses.avg)
