"""A paced workload and its gradients."""

import torch

from scalebench.spec.presets import PacedShape
from scalebench.spec.workload import Shard
from scalebench.worker.workloads import build_workload

CPU = torch.device("cpu")


SHAPE = PacedShape(name="p", stages=3, stage_parameters=50, sample_s=0.006, batch_size=8)


def build(rank=0, world_size=1, shape=SHAPE):
    torch.manual_seed(0)
    return build_workload(shape, Shard(rank, world_size, 8 // world_size, 0, CPU))


def gradients_of(workload, batch):
    workload.module.zero_grad()
    workload.loss(workload.module, batch).backward()
    return [p.grad.clone() for p in workload.module.parameters()]
