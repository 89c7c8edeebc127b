"""Loops on a time of their own."""

from itertools import pairwise

import torch

from scalebench.worker.measure.loop import Loop
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training


class Fake(Training):
    """Training and clock in one: step number i takes ``duration(i)`` seconds of a time of its own.

    Whatever is asked for between the steps is written down: nothing may wait inside a block.
    """

    def __init__(self, duration):
        self.duration = duration
        self.now = 0.0
        self.num_steps = 0
        self.marks = []
        self.events = []

    def step(self, batch):
        assert batch == self.num_steps, "every batch is trained on once, in order"
        self.now += self.duration(self.num_steps)
        self.num_steps += 1
        self.events.append("step")
        return torch.tensor(float(self.num_steps))

    def mark(self):
        self.marks.append(self.now)

    def resolve(self):
        self.events.append("resolve")
        marks, self.marks = self.marks, []
        return [b - a for a, b in pairwise(marks)]


def run_loop(fake, cell):
    """Warm up and measure as the cell's plan says; return what was seen."""
    context = RankContext(cell, 0, 0, torch.device("cpu"))
    loop = Loop(fake, iter(range(1_000_000)), context, fake)
    loop.warm_up(cell.steps)
    loop.measure_clean(cell.steps)
    return loop.seen


def jitter(i):
    """A thousandth up and down: steady from the first step, and not by a tie."""
    return 1e-3 * (-1) ** i


def level(step_s):
    return lambda i: step_s * (1 + jitter(i))
