"""One call of ``torchrun`` that trains what a cell of scalebench trains, and the script it runs.

As the script, run with batch, steps and a folder: every rank notes on the machine's monotonic clock
when its first step began.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scalebench.spec import Cell, Ddp


def launch_s(cell: Cell, num_steps: int) -> float:
    """Train as ``cell`` says under ``torchrun``: seconds until the last rank's first step.

    Raises:
        RuntimeError: It failed; the text holds the end of what it printed.
    """
    assert isinstance(cell.strategy, Ddp)
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
            *(str(cell.world_size), __file__, cell.workload.name, str(cell.global_batch)),
            *(str(cell.strategy.bucket_mb), str(num_steps), folder),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": str(cell.threads)}
        decided_ns = time.monotonic_ns()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"torchrun left with {done.returncode}:\n{done.stderr[-2000:]}")
        first_ns = max(int(path.read_text()) for path in Path(folder).glob("rank*"))
    return (first_ns - decided_ns) / 1e9


def train(name: str, global_batch: int, bucket_mb: float, num_steps: int, folder: Path) -> None:
    """Train a plain loop.

    DDP's reducer holds the process group. If it is the last to do so, its destructor joins gloo's
    thread while it holds the interpreter's lock, which that thread may be waiting for: so this is
    a function of its caller, who ends the group afterwards.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scalebench.spec.presets import resolve_workload
    from scalebench.spec.workload import Shard
    from scalebench.worker.workloads import build_workload

    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    shard = Shard(rank, world_size, global_batch // world_size, 0, torch.device("cpu"))
    workload = build_workload(resolve_workload(name, "cpu"), shard)
    module = DistributedDataParallel(workload.module, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
    batches = iter(workload.batches)
    (folder / f"rank{rank}").write_text(str(time.monotonic_ns()))
    for _ in range(num_steps):
        optimizer.zero_grad()
        workload.loss(module, next(batches)).backward()
        optimizer.step()


if __name__ == "__main__":
    import torch.distributed as dist

    dist.init_process_group("gloo")
    batch, bucket, steps, records = sys.argv[2:]
    train(sys.argv[1], int(batch), float(bucket), int(steps), Path(records))
    dist.destroy_process_group()
