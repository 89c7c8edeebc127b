"""Lightning's Trainer on CPU ranks: under DDP, or with FSDP2 (its ModelParallelStrategy)."""

import os
import sys

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from own_clock import own_clock
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

size, sharded = int(os.environ["LOCAL_WORLD_SIZE"]), sys.argv[1] == "fsdp"


class Model(lightning.LightningModule):
    """A small perceptron."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))

    def configure_model(self):
        if sharded:
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        return self.layers(batch[0]).square().mean()

    def on_before_optimizer_step(self, optimizer):
        mark()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
fsdp = ModelParallelStrategy(data_parallel_size=size, tensor_parallel_size=1) if sharded else None
trainer = lightning.Trainer(
    accelerator="cpu", devices=size, strategy=fsdp or "ddp", max_steps=100_000, **options
)
with own_clock() as mark:
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(1024, 32)), 8))
