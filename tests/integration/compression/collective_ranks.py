"""Ranks that sum in every way there is, over gloo: run as a program by `test_collectives`.

Arguments: folder for stores and reports, world sizes. Imports torch once; the ranks are forked,
and those of one world size run all cases one after the other. Each rank checks its own results and
writes what it found to ``<world size>-<rank>.json``.
"""

import hashlib
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from scalebench.errors import UsageError
from scalebench.worker.collectives import execute, ring
from scalebench.worker.collectives.schedule import Send
from tests.integration.compression.collective_cases import LAYOUTS, cases
from tests.integration.programs import main
from tests.tools.collective_variants import VARIANTS

TIMEOUT_S = 60


class OneWork:
    def __init__(self, works):
        self.works = works

    def wait(self):
        """Wait for all; again, for nothing."""
        for work in self.works:
            work.wait()
        self.works = []


def one_handle(operations):
    """Stand in for torch's function as it is with NCCL."""
    return [OneWork(torch_batch(operations))]


torch_batch = dist.batch_isend_irecv
dist.batch_isend_irecv = one_handle


class Watch:
    def __init__(self):
        self.num_bytes = 0
        self.one_work = False
        self.one_by_one = execute.start_one_by_one
        execute.start_one_by_one = self

    def __call__(self, operations, group):
        sent = (buffer for message, buffer in operations if isinstance(message, Send))
        self.num_bytes += sum(buffer.nbytes for buffer in sent)
        if not self.one_work:
            return self.one_by_one(operations, group)
        return execute.start_as_group(operations, group)

    def since_last(self):
        counted, self.num_bytes = self.num_bytes, 0
        return counted


def run_case(case, rank, world_size, watch):
    """Sum; return what is wrong and what is to be held against the other ranks."""
    memory, view = LAYOUTS[case.layout](case.length, case.dtype)
    view.copy_(case.values(rank).view(view.shape))
    watch.one_work = case.one_work
    VARIANTS[case.variant].module.all_reduce(view, **case.options(world_size))
    itemsize = (case.accumulate or case.dtype).itemsize
    law = VARIANTS[case.variant].sent(world_size, case.length)[rank] * itemsize
    result = torch.empty(case.length, dtype=case.dtype).copy_(view.flatten())
    wrong = []
    if (sent := watch.since_last()) != law:
        wrong.append(f"sent {sent} bytes, the law says {law}")
    wrong += wrong_values(case, result, world_size)
    view.zero_()
    if memory.any():
        wrong.append("something beside the view was written")
    digest = hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).hexdigest()
    return {"variant": case.variant, "case": repr(case), "wrong": wrong, "digest": digest}


def wrong_values(case, result, world_size):
    """Hold a result against the sum in float64 or int64.

    Each of N−1 additions is off by half a unit in the last place of a partial sum, which is no
    larger than the sum of the absolute values.
    """
    wide = torch.float64 if case.dtype.is_floating_point else torch.int64
    inputs = torch.stack([case.values(rank) for rank in range(world_size)]).to(wide)
    exact, magnitude = inputs.sum(0), inputs.abs().sum(0)
    error = (result.to(wide) - exact).abs()
    if not case.dtype.is_floating_point:
        bound = torch.zeros_like(error)
    else:
        half_unit = torch.finfo(case.accumulate or case.dtype).eps / 2
        bound = 1.1 * (world_size - 1) * half_unit * magnitude
        if case.accumulate:
            bound += 1.1 * torch.finfo(case.dtype).eps / 2 * exact.abs()
    too_far = int((error > bound).sum())
    return [f"{too_far} of {case.length} elements are wrong"] if too_far else []


def refused(call):
    try:
        call()
    except UsageError as error:
        return str(error)
    return "not refused"


def refusals(world_size):
    data = torch.zeros(3)
    ring_sum, tree_sum, server_sum, hosts_sum = (
        VARIANTS[name].module.all_reduce for name in ("ring", "tree", "parameter-server", HOSTS)
    )
    return {
        "bool": refused(lambda: ring_sum(torch.zeros(3, dtype=torch.bool))),
        "segment": refused(lambda: ring_sum(data, segment_bytes=0)),
        "accumulate": refused(lambda: ring_sum(data, accumulate=torch.int64)),
        "shape": refused(lambda: tree_sum(data, shape="binry")),
        "server": refused(lambda: server_sum(data, server=world_size)),
        "hosts": refused(lambda: hosts_sum(data, hosts=[0] * (world_size + 1))),
    }


HOSTS = "hierarchical, pairs"


def in_a_group(rank, world_size):
    """Sum over the first and the last rank only, whose ranks in the group are 0 and 1."""
    group = dist.new_group(members := [0, world_size - 1])
    mine = torch.full((10,), float(rank + 1), requires_grad=True)
    if rank not in members:
        return {"text": refused(lambda: ring.all_reduce(mine, group))}
    for variant in VARIANTS.values():
        mine.data.fill_(rank + 1)
        variant.module.all_reduce(mine, group, **variant.options(2))
        if not (mine == world_size + 1).all():
            return {"text": f"{variant.module.__name__}: {mine.tolist()}"}
    return {"text": "summed"}


def run_rank(folder, rank, world_size):
    dist.init_process_group(
        "gloo",
        store=FileStore(os.fspath(folder / f"store-{world_size}"), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    watch = Watch()
    report: dict[str, Any] = {"sums": []}
    for case in cases(world_size):
        try:
            report["sums"].append(run_case(case, rank, world_size, watch))
        except Exception:
            print(f"rank {rank} of {world_size} failed in {case}", file=sys.stderr)
            raise
    watch.one_work = False
    report["refusals"] = refusals(world_size)
    report["group"] = in_a_group(rank, world_size) if world_size > 2 else None
    dist.destroy_process_group()
    return report


if __name__ == "__main__":
    main(run_rank)
