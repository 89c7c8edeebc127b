"""The bare model in one process: the baseline that efficiency is measured against."""

from typing import Any

import torch

from scalebench.spec import Plain
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_module


class PlainTraining(Training):
    """No wrapper and no process group."""

    def __init__(self, strategy: Plain, workload: Workload, context: RankContext) -> None:
        self.strategy = strategy
        self.device = context.device
        self.loss = workload.loss
        self.module = prepare_module(workload, strategy, context.device)
        self.optimizer = make_optimizer(workload, self.module.parameters())

    def step(self, batch: Any) -> torch.Tensor:
        """Train on one batch."""
        self.optimizer.zero_grad()
        loss = self.forward_backward(batch)
        self.optimizer.step()
        return loss

    def forward_backward(self, batch: Any) -> torch.Tensor:
        """Add one batch's gradient; return its mean loss."""
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, batch)
        loss.backward()
        return loss.detach()
