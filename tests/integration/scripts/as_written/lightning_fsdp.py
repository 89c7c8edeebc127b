"""Lightning with FSDP2 (its ModelParallelStrategy) on CPU ranks."""

import json
import os
import time

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    """A small perceptron, sharded."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))

    def configure_model(self):
        fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        return self.layers(batch[0]).square().mean()

    def on_before_optimizer_step(self, optimizer):
        ends.append(time.monotonic_ns())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


size = int(os.environ["LOCAL_WORLD_SIZE"])
ends = []
model = Model()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=size,
    strategy=ModelParallelStrategy(data_parallel_size=size, tensor_parallel_size=1),
    max_steps=100_000,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
try:
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(1024, 32)), 8))
finally:
    print("ENDS", json.dumps(ends), flush=True)
