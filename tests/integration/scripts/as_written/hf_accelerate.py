"""Accelerate's loop with gradient accumulation."""

import torch
from accelerate import Accelerator
from own_clock import own_clock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=4)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(1024, 32)), 8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
with own_clock() as mark:
    for _ in range(10_000):
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(inputs).square().mean())
                if accelerator.sync_gradients:
                    mark()
                optimizer.step()
                optimizer.zero_grad()
