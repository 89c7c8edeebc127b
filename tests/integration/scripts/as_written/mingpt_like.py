"""The trainer of minGPT under DDP: epochs, a test set without eval(), a snapshot to go on from."""

import os
import sys

import torch
import torch.distributed as dist
from own_clock import own_clock
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

SNAPSHOT = f"{sys.argv[1]}/snapshot.pt"
VOCAB = 65


class Trainer:
    """Runs batches of both sets."""

    def __init__(self, model, sets):
        self.model, self.epoch = model, 0
        if os.path.exists(SNAPSHOT):
            snapshot = torch.load(SNAPSHOT)
            model.load_state_dict(snapshot["model_state"])
            self.epoch = snapshot["finished_epoch"]
        self.model = DDP(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
        self.loaders = [
            DataLoader(part, 16, sampler=DistributedSampler(part), num_workers=2) for part in sets
        ]

    def run_batch(self, source, targets, train):
        with torch.set_grad_enabled(train):
            logits = self.model(source)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            mark()
            self.optimizer.step()
        return loss.item()

    def run_epoch(self, loader, train):
        loader.sampler.set_epoch(self.epoch)
        for source, targets in loader:
            self.run_batch(source, targets, train)

    def train(self):
        while True:
            self.epoch += 1
            self.run_epoch(self.loaders[0], train=True)
            if dist.get_rank() == 0:
                state = {"model_state": self.model.module.state_dict()}
                torch.save({**state, "finished_epoch": self.epoch}, SNAPSHOT)
            self.run_epoch(self.loaders[1], train=False)


dist.init_process_group("gloo")
torch.manual_seed(0)
blocks = torch.randint(VOCAB, (3232,)).unfold(0, 33, 1)  # 3,200: no shorter batch at the end
layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
layers = nn.Embedding(VOCAB, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, VOCAB)
sets = random_split(TensorDataset(blocks[:, :-1], blocks[:, 1:]), [0.9, 0.1])
with own_clock() as mark:
    Trainer(nn.Sequential(*layers), sets).train()
