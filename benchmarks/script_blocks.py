"""One rank of a user's script that trains in blocks: with scalebench's marks, and without.

The hooks are put in and taken out between blocks; module, optimizer and data are the same.
Run as ``python -m benchmarks.script_blocks PLAN_JSON RANK``.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.probe_blocks import LEAD_STEPS, MIN_ROUNDS, BlockPlan, Blocks, run_rounds
from scalebench.spec import StepPlan
from scalebench.worker.attach import hooks
from scalebench.worker.attach.checks import Checks
from scalebench.worker.attach.watch import Watch
from scalebench.worker.process import setup as process

NO_CHECKS = SimpleNamespace(backward=lambda *_: None, wants_gradients=False, is_due=False)
WIDTHS = (256, 4096)
BATCH = 32
WIDTH = 512
ENDLESS = 10**9
ROUNDS_AT_ONCE = 4
BARE_BLOCKS, BARE_STEPS = 21, 1000


class Script:
    """What a user's script would have: a model in DDP, a loader, an optimizer."""

    def __init__(self, plan: BlockPlan) -> None:
        torch.manual_seed(plan.seed)
        layers = (nn.Linear(64, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 10)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
        self.loader = DataLoader(data, BATCH)
        self.batches = self._endless()
        self.count = plan.block_steps
        steps = StepPlan(steps=ENDLESS, trace=False).model_dump()
        request = {"rank": 0, "world_size": 1, "device": "cpu", "folder": plan.folder}
        request |= {"store": None, "limit_s": 900.0, "plan": steps, "to_the_end": True}
        self.watch: Any = Watch(request, lambda _: None)

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def block(self, name: str) -> Blocks:
        """Train a block, and return seconds per step, and those of the processor."""
        cpu_began_ns = time.process_time_ns()
        for number in range(LEAD_STEPS + self.count):
            if number == LEAD_STEPS:
                began_ns = time.perf_counter_ns()
            inputs, labels = next(self.batches)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), labels).backward()
            self.optimizer.step()
        step_s = (time.perf_counter_ns() - began_ns) / 1e9 / self.count
        cpu_s = (time.process_time_ns() - cpu_began_ns) / 1e9 / (LEAD_STEPS + self.count)
        return {name: [step_s], f"{name} cpu": [cpu_s]}

    def hand(self) -> Blocks:
        """Nothing of scalebench's."""
        return self.block("hand")

    def again(self) -> Blocks:
        """The same, to see what two equal arms differ by."""
        return self.block("again")

    def marks(self) -> Blocks:
        """With the hooks and marks of clean steps."""
        installed = hooks.install(self.watch)
        try:
            return self.block("marks")
        finally:
            installed.remove()

    def unchecked(self) -> Blocks:
        """With the hooks and marks of clean steps, and without the checks."""
        checks, self.watch.checks = self.watch.checks, NO_CHECKS
        installed = hooks.install(self.watch)
        try:
            return self.block("unchecked")
        finally:
            installed.remove()
            self.watch.checks = checks

    def checks_of_a_launch(self, width: int) -> tuple[int, float, float]:
        """Return a model's parameters and what the checks take in all of a launch, seconds.

        By the clock, and of the processor, in which other programs do not count.
        """
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in "abc")))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        checks, loss = Checks("cpu", 2), model(torch.zeros(1, width)).sum()
        loss.backward()
        began_s = time.process_time()
        for step, is_due in enumerate([False, False, True, True]):  # the borders of blocks are due
            checks.is_due = is_due
            checks.backward(step, True, (loss,))
            if not step:
                checks.gradients()
                checks.stepped(optimizer)
        assert checks.end(4, [optimizer])["moments"]
        cpu_s = time.process_time() - began_s
        return sum(p.numel() for p in model.parameters()), checks.took_s, cpu_s

    def around_nothing(self) -> float:
        """Return what the marks of a step take by themselves, seconds: no model, no hooks."""
        batch = [torch.zeros(BATCH, 64)]
        iterator = SimpleNamespace()
        watch = self.watch
        blocks = []
        for _ in range(BARE_BLOCKS):
            began_ns = time.perf_counter_ns()
            for _ in range(BARE_STEPS):
                watch.begin()
                watch.batches.next_of(iterator, lambda _: batch)
                watch.backward()
                watch.optimizer_called(self.optimizer)
            blocks.append((time.perf_counter_ns() - began_ns) / 1e9 / BARE_STEPS)
        return statistics.median(blocks)


def main() -> None:
    """Train until the time is over, and leave a record."""
    plan, rank = BlockPlan(**json.loads(sys.argv[1])), int(sys.argv[2])
    torch.set_num_threads(1)
    process.lead_session()  # as a script's ranks: not pinned
    store = dist.FileStore(str(Path(plan.folder) / "store"), plan.world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=plan.world_size)
    script, order = Script(plan), random.Random(plan.seed)
    arms = [script.hand, script.again, script.marks, script.unchecked]
    while script.watch.schedule is None:  # the warm-up of the watch
        script.marks()
    collected: Blocks = {}
    end, rounds = time.monotonic() + plan.seconds, 0
    going = True
    while going or rounds < MIN_ROUNDS:
        for name, values in run_rounds(arms, ROUNDS_AT_ONCE, order).items():
            collected.setdefault(name, []).extend(values)
        rounds += ROUNDS_AT_ONCE
        more = torch.tensor([float(time.monotonic() < end)])
        dist.all_reduce(more, op=dist.ReduceOp.MIN)
        going = bool(more.item())
    checks = [script.checks_of_a_launch(width) for width in WIDTHS]
    told = {"blocks": collected, "around_nothing_s": script.around_nothing(), "checks": checks}
    plan.record(rank).write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
