"""One call of ``torchrun`` that trains what a cell of scalebench trains."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.spec import Cell, Ddp

SCRIPT = Path(__file__).with_name("torchrun_train.py")
SETTLED = ("--batch-class", "--pinned")
"""Options of the script: what scalebench's CPU ranks do to themselves before they train."""


@dataclass(frozen=True)
class TorchrunCall:
    """What a call took, seconds.

    Attributes:
        launch_s: From the decision to the last rank's first training step.
        window_s: The window after the warm-up, of the rank that was longest in it.
        wall_s: From the decision to the end of ``torchrun``.
    """

    launch_s: float
    window_s: float
    wall_s: float


def call_torchrun(
    cell: Cell, num_warmup: int, num_steps: int, settled: Sequence[str] = ()
) -> TorchrunCall:
    """Train as ``cell`` says for the given numbers of steps, under ``torchrun``.

    Args:
        cell: What to train.
        num_warmup: Steps before the window.
        num_steps: Steps of the window.
        settled: `SETTLED`, or a part of it: what ranks do to themselves as scalebench's do.

    Raises:
        RuntimeError: It failed; the text holds the end of what it printed.
    """
    strategy = cell.strategy
    bucket = [f"--bucket-mb={strategy.bucket_mb}"] if isinstance(strategy, Ddp) else []
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(cell.world_size), str(SCRIPT)),
            *(f"--workload={cell.workload.name}", f"--batch-size={cell.global_batch}"),
            *(f"--warmup={num_warmup}", f"--steps={num_steps}", f"--records={folder}"),
            *bucket,
            *settled,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": str(cell.threads)}
        decided_ns = time.monotonic_ns()
        ended = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        wall_s = (time.monotonic_ns() - decided_ns) / 1e9
        if ended.returncode:
            raise RuntimeError(f"torchrun left with {ended.returncode}:\n{ended.stdout[-2000:]}")
        records = [json.loads(path.read_text()) for path in Path(folder).glob("rank*.json")]
    first_step_ns = max(record["first_step_ns"] for record in records)
    window_s = max(record["window_s"] for record in records)
    return TorchrunCall((first_step_ns - decided_ns) / 1e9, window_s, wall_s)
