"""The blocks of a round on fake time: what is timed, and what is kept when it goes wrong."""

from contextlib import contextmanager, nullcontext
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec import Fsdp, StepPlan
from scalebench.worker.measure.loop import Loop, Measurement
from scalebench.worker.measure.rounds import Rounds, logged_exposed_s
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from tests.builders.runs import make_cell


class Fake(Training):
    """Training and clock in one: the first step of a block takes 5 s, the others 1, 2, 3, … s."""

    def __init__(self):
        self.now, self.marks, self.within, self.module = 0.0, [], 0, None

    def step(self, batch):
        self.now += self.within or 5
        self.within += 1
        return torch.tensor(0.5)

    def mark(self):
        self.marks.append(self.now)

    def resolve(self):
        marks, self.marks, self.within = self.marks, [], 0
        return [b - a for a, b in pairwise(marks)]


def make_loop(strategy=None, limit_s=600.0, **plan):
    fake = Fake()
    cell = make_cell("plain", 1, strategy=strategy, limit_s=limit_s, steps=StepPlan(**plan))
    context = RankContext(cell, 0, 0, torch.device("cpu"))
    return Loop(fake, iter(range(10_000)), context, fake)


def test_a_bare_block_knows_its_first_step_and_the_mean_of_the_others():
    loop = make_loop()
    loop.run_block("bare", 5, Rounds(loop).bare_steps)
    assert loop.seen.step_s == [5, 2.5, 2.5, 2.5, 2.5]
    assert len(loop.seen.loss) == 5


def test_every_kind_of_block_is_in_every_round_and_all_ranks_wait_before_each():
    loop = make_loop(rounds_s=1000.0)
    loop.run_block("clean", 5)
    waits = []
    object.__setattr__(loop.context, "barrier", lambda: waits.append(len(loop.seen.blocks)))

    @contextmanager
    def no_sync():
        yield

    loop.training.module = SimpleNamespace(no_sync=no_sync)
    found = Rounds(loop).run()
    kinds = [block.phase for block in loop.seen.blocks[1:]]
    assert kinds == ["paired", "traced", "local", "bare"] * (len(kinds) // 4)
    assert waits[: len(kinds)] == list(range(1, len(kinds) + 1))
    assert found.trace_unavailable is None
    counted = sum(b.count - 1 for b in loop.seen.blocks if b.phase == "traced")
    assert len(found.trace.steps) == counted


def test_a_strategy_that_gathers_in_every_step_has_none_without_synchronisation():
    loop = make_loop(Fsdp(), rounds_s=1000.0)
    loop.run_block("clean", 5)
    loop.training.module = SimpleNamespace(no_sync=nullcontext)
    Rounds(loop).run()
    assert {block.phase for block in loop.seen.blocks} == {"clean", "paired", "traced", "bare"}


def test_what_goes_wrong_in_a_round_is_forgotten_and_the_clean_window_kept():
    loop = make_loop(rounds_s=1000.0)
    loop.run_block("clean", 5)
    before = Measurement(**vars(loop.seen))
    kept = (list(before.step_s), list(before.pace_s), list(before.loss), list(before.blocks))

    def fails(batch):
        if any(block.phase == "paired" for block in loop.seen.blocks):
            raise ValueError("planted")
        return Fake.step(loop.training, batch)

    loop.training.step = fails
    found = Rounds(loop).run()
    assert found.trace_unavailable == "tracing the steps failed: planted"
    seen = loop.seen
    assert (seen.step_s, seen.pace_s, seen.loss, seen.blocks) == kept


def test_steps_that_would_not_end_within_the_limit_are_not_looked_into():
    loop = make_loop(limit_s=100.0)
    loop.run_block("clean", 5)  # steps of 2.5 s: 12 of them would be 30 s
    assert "too long" in Rounds(loop).run().trace_unavailable
    assert [block.phase for block in loop.seen.blocks] == ["clean"]


def test_ddps_own_logger_counts_nanoseconds():
    module = DistributedDataParallel.__new__(DistributedDataParallel)
    logged = {
        "avg_backward_comm_time": 30_000_000,
        "avg_backward_compute_comm_overlap_time": 10_000_000,
    }
    object.__setattr__(module, "_get_ddp_logging_data", lambda: logged)
    assert logged_exposed_s(SimpleNamespace(module=module)) == pytest.approx(0.020)
    logged["avg_backward_comm_time"] = 0
    assert logged_exposed_s(SimpleNamespace(module=module)) is None
    assert logged_exposed_s(SimpleNamespace(module=torch.nn.Linear(1, 1))) is None
