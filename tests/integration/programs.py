"""Programs whose forked ranks each report what they found, and the tests' side of them."""

import gc
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from scalebench.launch.processes import loopback_environment
from tests.builders.runs import make_cell
from tests.conftest import PATIENCE_S
from tests.forks import forks

ROOT = Path(__file__).parents[2]


def reports_of(program, folder, sizes, shards=False):
    words = (str(folder), *map(str, sizes))
    ended = forks().run(f"tests.integration.{program}", words, ROOT, PATIENCE_S)
    assert ended.returncode == 0, ended.stderr[-4000:]
    alone = ("shards",) if shards else ()
    return {
        size: [
            json.loads((folder / f"{size}-{who}.json").read_text())
            for who in (*range(size), *alone)
        ]
        for size in sizes
    }


def verified(reports, case, allowed):
    """Assert that the ranks had the gradients and losses of one process, but for a small part."""
    found = [report[case]["verification"] for report in reports]
    assert {one["status"] for one in found} == {"verified"}, found[0]["reason"]
    assert 0 <= found[0]["gradient_deviation"] < allowed
    assert found[0]["loss_deviation"] < allowed


def inspecting(strategy, workload, world_size, batch, **changes):
    own = {"strategy": strategy, "workload": workload, "purpose": "inspect"}
    own |= {"global_batch": batch, "rank_batch": batch // strategy.num_shards(world_size)}
    return make_cell(**{"case": "case", "world_size": world_size, **own, **changes})


def looked_at(folder, rank, cells, look):
    """Join the ranks of some cells; return what `look` finds of each, or why it is refused."""
    from scalebench.worker.process.context import RankContext, joined
    from scalebench.worker.process.failure import Unsupported

    found = {}
    first = next(iter(cells.values()))
    with joined(first, rank, folder / f"store-{first.world_size}") as job:
        for name, cell in cells.items():
            try:
                found[name] = look(RankContext(cell, rank, rank, job.device, job.control))
            except Unsupported as refused:
                found[name] = str(refused)
    return found


def of_shards(cells, look):
    """Be rank 0 of every cell, the other ranks not there; return what `look` finds of each."""
    from scalebench.worker.process.context import RankContext, alone

    found = {}
    for name, cell in cells.items():
        with alone(cell) as job:
            found[name] = look(RankContext(cell, 0, 0, job.device))
    return found


def main(run_rank, run_shards=None):
    """Fork the ranks of each world size, one size after the other.

    The program's arguments are a folder for stores and reports, and world sizes. ``run_shards``
    runs next to the ranks, in a process of its own.
    """
    folder = Path(sys.argv[1])
    gc.freeze()  # ranks collect garbage often: what was imported is none
    for size in map(int, sys.argv[2:]):
        whos = [(run_rank, rank) for rank in range(size)]
        whos += [(run_shards, "shards")] if run_shards else []
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=_report, args=(run, folder, who, size, os.getpid()))
            for run, who in whos
        ]
        for process in ranks:
            process.start()
        while any(p.is_alive() for p in ranks) and not any(p.exitcode for p in ranks):
            time.sleep(0.02)
        for process in ranks:
            process.kill()
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"the ranks of world size {size} did not come to their end")


def _report(run, folder, who, world_size, parent):
    import torch

    from scalebench.worker.process.setup import die_with_parent, schedule_as_batch

    die_with_parent(parent)
    schedule_as_batch()
    torch.set_num_threads(1)
    os.environ |= loopback_environment()
    rank = who if isinstance(who, int) else 0
    (folder / f"{world_size}-{who}.json").write_text(json.dumps(run(folder, rank, world_size)))
