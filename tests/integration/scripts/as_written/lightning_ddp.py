"""Lightning's Trainer under DDP."""

import json
import os
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    """A small perceptron."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))

    def training_step(self, batch, index):
        return self.layers(batch[0]).square().mean()

    def on_before_optimizer_step(self, optimizer):
        ends.append(time.monotonic_ns())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


ends = []
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=100_000,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
try:
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(1024, 32)), 8))
finally:
    print("ENDS", json.dumps(ends), flush=True)
