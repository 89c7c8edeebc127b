"""DeepSpeed's ZeRO-2 on CPU ranks."""

import deepspeed
import torch
from own_clock import own_clock
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SETTINGS = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": True},
}

# Training does not use the extension that DeepSpeed would compile now, for a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
groups = [
    {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
]
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config=SETTINGS
)
data = TensorDataset(torch.randn(512, 32), torch.randn(512, 1))
loader = DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False))
with own_clock() as mark:
    for _ in range(200):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(engine(inputs.bfloat16()), targets.bfloat16())
            engine.backward(loss)
            if engine.is_gradient_accumulation_boundary():
                mark()
            engine.step()
