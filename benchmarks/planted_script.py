"""A training script as people write them, with one cause of lost time planted on demand.

A small language model under DDP on CPU: a loader, a log line, evaluation and a checkpoint. It runs
under torchrun and under ``scalebench run`` alike; see `benchmarks.planted_causes`.
"""

import argparse
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CAUSES = ("none", "loader", "item", "accumulation", "buckets", "unused", "sleep", "workers")

VOCABULARY, LENGTH, WIDTH, LAYERS, BATCH = 512, 16, 192, 8, 4

LOAD_S = 0.009
"""What a sample takes longer to load on rank 1: 36 ms a step; on all ranks: ``workers``."""

SLEEP_S = 0.03
"""What rank 1 does nothing before each backward pass."""


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Random tokens."""

    def __init__(self, seed: int, size: int, slow_s: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCABULARY, (size, LENGTH + 1), generator=generator)
        self.slow_s = slow_s

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.slow_s)
        return self.tokens[index, :-1], self.tokens[index, 1:]


class Model(nn.Module):
    """A transformer encoder over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every next token."""
        return self.head(self.blocks(self.embedding(tokens)))


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean loss of a batch."""
    tokens, targets = batch
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cause", choices=CAUSES, default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of a rank")
    parser.add_argument("--workers", type=int, default=0, help="of the loader")
    parser.add_argument("--evaluate-every", type=int, default=50, help="steps")
    parser.add_argument("--no-sync", action="store_true", help="accumulate under no_sync()")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slow = given.cause == "workers" or (given.cause == "loader" and rank == 1)
    slow_s = LOAD_S if slow else 0.0
    training, held_out = Text(given.seed, 4096, slow_s), Text(given.seed + 1, 64)
    sampler = DistributedSampler(training, seed=given.seed)
    loader = DataLoader(training, given.batch, sampler=sampler, num_workers=given.workers)
    options = {
        "buckets": {"bucket_cap_mb": 1},
        "unused": {"find_unused_parameters": True},
    }
    model = DistributedDataParallel(Model(), **options.get(given.cause, {}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    accumulate = 4 if given.cause == "accumulation" else 1
    step = epoch = 0
    while step < given.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for index, batch in enumerate(loader):
            last = (index + 1) % accumulate == 0
            with model.no_sync() if given.no_sync and not last else nullcontext():
                loss = loss_of(model, batch)
                if given.cause == "sleep" and rank == 1:
                    time.sleep(SLEEP_S)
                (loss / accumulate).backward()
            if given.cause == "item":
                running = loss.item()
            if not last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % given.evaluate_every == 0:
                evaluate(model, DataLoader(held_out, given.batch))
                if rank == 0:
                    torch.save(model.module.state_dict(), given.folder / "checkpoint.pt")
                    running = running if given.cause == "item" else loss.item()
                    print(f"step {step}: loss {running:.3f}", flush=True)
            if step == given.steps:
                break
    dist.destroy_process_group()


def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> None:
    """Go through the held-out batches."""
    model.eval()
    with torch.no_grad():
        for batch in loader:
            loss_of(model, batch)
    model.train()


if __name__ == "__main__":
    main()
