"""A rank that srun starts, and starts again when Slurm requeues its job: run as a program.

Its argument is the fault's folder.
"""

import os
import sys
from pathlib import Path

from torch._C._distributed_c10d import Store, TCPStore

from scalebench.records.fault_events import FaultFolder
from scalebench.worker.checkpoints.elastic_rank import run_rank
from scalebench.worker.process.store_queue import CONNECT_LIMIT, listen, serve_on


def main(root: Path) -> None:
    """Train as a launch of scalebench's own does it; Slurm says which attempt it is."""
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    attempt = int(os.environ.get("SLURM_RESTART_COUNT", "0"))

    def meet() -> Store:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if rank:
            return TCPStore(address, port, size)
        return serve_on(listen(address, port), address, CONNECT_LIMIT, size)

    run_rank(FaultFolder(root), rank, attempt, meet)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
