"""All-reduces over real ranks: sums, bytes on the wire, and the same bits everywhere.

Run as a program, this file is the ranks.
"""

import hashlib
import os
import random
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from scalebench.errors import UsageError
from scalebench.worker.collectives import execute
from scalebench.worker.collectives.execute import Send
from tests.examples import cases
from tests.integration.programs import main, reports_of
from tests.tools.collective_variants import VARIANTS

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)


@dataclass(frozen=True)
class Case:
    """One sum, in a layout of `LAYOUTS`; with `one_work` a step has one handle, as with NCCL."""

    seed: int
    variant: str
    length: int
    dtype: torch.dtype = torch.float32
    layout: str = "whole"
    segment_bytes: int | None = None
    accumulate: torch.dtype | None = None
    one_work: bool = False

    def values(self, rank):
        """What a rank contributes, as every rank can work out."""
        generator = torch.Generator().manual_seed(1000 * self.seed + rank)
        if self.dtype.is_floating_point:
            drawn = torch.randn(self.length, generator=generator, dtype=torch.float64)
            return drawn.to(self.dtype)
        return torch.randint(-9, 10, (self.length,), generator=generator).to(self.dtype)

    def options(self, world_size):
        options = VARIANTS[self.variant].options(world_size)
        if self.segment_bytes:
            options["segment_bytes"] = self.segment_bytes
        return {**options, "accumulate": self.accumulate}

    def laid_out(self):
        """Zeros, and the view of them that is to be summed."""
        rows = max((r for r in range(1, 8) if self.length % r == 0), default=1)
        shape, view = LAYOUTS[self.layout](self.length, rows)
        memory = torch.zeros(shape, dtype=self.dtype)
        return memory, view(memory)


LAYOUTS = {
    "whole": lambda length, _: ((length,), lambda memory: memory),
    "middle": lambda length, _: ((length + 5,), lambda memory: memory[2 : length + 2]),
    "every other": lambda length, _: ((2 * length + 1,), lambda memory: memory[1::2]),
    "transposed": lambda length, rows: ((rows, length // rows), lambda memory: memory.t()),
}


def sums(world_size):
    dice, n = random.Random(world_size), world_size
    for variant in VARIANTS:
        cut = variant != "gather-broadcast"  # which has no segments

        def case(*given, variant=variant, cut=cut, segment_bytes=None, **more):
            more["segment_bytes"] = segment_bytes if cut else None
            return Case(dice.randrange(10**6), variant, *given, **more)

        for length in sorted({0, 1, n - 1, n, n + 1, 31, 1009, dice.randrange(2000)}):
            segment_bytes = dice.choice((32, 100, 4096)) if length < 100 else 512
            layout = dice.choice(list(LAYOUTS))
            yield case(length, layout=layout, segment_bytes=segment_bytes)
        for dtype in DTYPES:
            yield case(dice.randrange(1, 500), dtype)
        yield case(401, torch.bfloat16, "every other", accumulate=torch.float32)
        yield case(97, segment_bytes=128, one_work=True)
        yield case(300_001, segment_bytes=1 << 17)


class OneWork:
    """One handle for all messages of a step, as torch's function has it with NCCL."""

    def __init__(self, works):
        self.works = works

    def wait(self):
        while self.works:
            self.works.pop(0).wait()


class Watch:
    """Stands between the all-reduces and torch; counts the bytes handed over to be sent."""

    def __init__(self):
        self.num_bytes, self.one_work = 0, False
        self.one_by_one, execute.start_one_by_one = execute.start_one_by_one, self
        batch = dist.batch_isend_irecv
        dist.batch_isend_irecv = lambda operations: [OneWork(batch(operations))]

    def __call__(self, operations, group):
        sent = (buffer for message, buffer in operations if isinstance(message, Send))
        self.num_bytes += sum(buffer.nbytes for buffer in sent)
        start = execute.start_as_group if self.one_work else self.one_by_one
        return start(operations, group)


def run_case(case, rank, world_size, watch):
    """Sum; return what is wrong, and what other ranks must have as well."""
    memory, view = case.laid_out()
    view.copy_(case.values(rank).view(view.shape))
    watch.one_work, watch.num_bytes = case.one_work, 0
    VARIANTS[case.variant].all_reduce(view, **case.options(world_size))
    itemsize = (case.accumulate or case.dtype).itemsize
    law = VARIANTS[case.variant].sent(world_size, case.length)[rank] * itemsize
    result = torch.empty(case.length, dtype=case.dtype).copy_(view.flatten())
    wrong = wrong_values(case, result, world_size)
    if watch.num_bytes != law:
        wrong.append(f"sent {watch.num_bytes} bytes, the law says {law}")
    view.zero_()
    if memory.any():
        wrong.append("something beside the view was written")
    digest = hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).hexdigest()
    return {"case": repr(case), "wrong": wrong, "digest": digest}


def wrong_values(case, result, world_size):
    """Hold a result against the sum in more digits, or in int64.

    Each of N−1 additions is off by half a unit in the last place of a partial sum, which is no
    larger than the sum of the absolute values.
    """
    is_float = case.dtype.is_floating_point
    wide = torch.float64 if is_float else torch.int64
    inputs = torch.stack([case.values(rank) for rank in range(world_size)]).to(wide).numpy()
    inputs = inputs.astype(np.longdouble if is_float else np.int64)
    exact, magnitude = inputs.sum(0), abs(inputs).sum(0)
    bound = 0 * magnitude
    if is_float:
        half_unit = torch.finfo(case.accumulate or case.dtype).eps / 2
        bound = 1.1 * (world_size - 1) * half_unit * magnitude
        if case.accumulate:
            bound += 1.1 * torch.finfo(case.dtype).eps / 2 * abs(exact)
    too_far = int((abs(result.to(wide).numpy() - exact) > bound).sum())
    return [f"{too_far} of {case.length} elements are wrong"] if too_far else []


def refused(variant, *given, **options):
    try:
        VARIANTS[variant].all_reduce(*given, **options)
    except UsageError as error:
        return str(error)
    return "not refused"


FLOAT = torch.float32
REFUSED_OF_TWO = {
    "bool": ("ring", torch.bool, {}),
    "segment_bytes is 0": ("ring", FLOAT, {"segment_bytes": 0}),
    "torch.int64": ("ring", FLOAT, {"accumulate": torch.int64}),
    "Did you mean 'binary'?": ("tree", FLOAT, {"shape": "binry"}),
    "server is 2; give": ("parameter-server", FLOAT, {"server": 2}),
    "3 hosts for 2 ranks": ("hierarchical, pairs", FLOAT, {"hosts": [0] * 3}),
}
"""What is said → variant, dtype and options that are refused before anything is sent."""


def in_a_group(rank, world_size):
    """Sum over the first and the last rank only, whose ranks in the group are 0 and 1."""
    group = dist.new_group(members := [0, world_size - 1])
    mine = torch.full((10,), float(rank + 1), requires_grad=True)
    if rank not in members:
        return refused("ring", mine, group)
    for variant in VARIANTS.values():
        mine.data.fill_(rank + 1)
        variant.all_reduce(mine, group, **variant.options(2))
        if not (mine == world_size + 1).all():
            return f"{variant.algorithm}: {mine.tolist()}"
    return "summed"


def run_rank(folder, rank, world_size):
    store = FileStore(os.fspath(folder / f"store-{world_size}"), world_size)
    named = {"store": store, "rank": rank, "world_size": world_size}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **named)
    watch, found = Watch(), {}
    for case in sums(world_size):
        found.setdefault(case.variant, []).append(run_case(case, rank, world_size, watch))
    watch.one_work = False
    report = {"sums": found}
    if world_size == 2:
        report["refused"] = {
            told: refused(variant, torch.zeros(3, dtype=dtype), **options)
            for told, (variant, dtype, options) in REFUSED_OF_TWO.items()
        }
    if world_size > 2:
        report["group"] = in_a_group(rank, world_size)
    dist.destroy_process_group()
    return report


WORLD_SIZES = (1, 2, 5)
"""Of every other number the unit tests have the schedules."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of("compression.test_collectives", tmp_path_factory.mktemp("sums"), WORLD_SIZES)


@cases("world_size", *WORLD_SIZES)
@cases("variant", *VARIANTS)
def test_sums_bytes_and_bits(reports, world_size, variant):
    """Sums within the rounding of their dtype, bytes as the law says, every rank the same bits."""
    by_rank = [report["sums"][variant] for report in reports[world_size]]
    assert len(by_rank[0]) >= 12
    for results in zip(*by_rank, strict=True):
        for rank, result in enumerate(results):
            assert not result["wrong"], f"rank {rank}: {result}"
        assert len({result["digest"] for result in results}) == 1, results[0]["case"]


def test_what_cannot_be_summed_is_refused_in_one_line(reports):
    for report in reports[2]:
        for told, said in report["refused"].items():
            assert told in said and "\n" not in said


def test_a_group_of_some_ranks_sums_among_these(reports):
    first, *between, last = (report["group"] for report in reports[5])
    assert first == last == "summed"
    assert all("not a rank of the given group" in text for text in between)


if __name__ == "__main__":
    main(run_rank)
