"""One launch of a CUDA cell in a world of two processes that each see one GPU; run by torchrun.

Arguments: a file of NVML's answers for each process, and ``apart`` where each is on a machine of
its own. There is no CUDA: ranks fail, and what was watched meanwhile is printed.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from scalebench.launch.environment import find_member
from scalebench.launch.external import ExternalLauncher, rank_devices, run_agent
from tests.builders.runs import make_cell
from tests.standins.nvml import A, B


def main():
    member = find_member(os.environ)
    os.environ["NVML_ANSWERS"] = sys.argv[1 + member.rank]
    if sys.argv[3:] == ["apart"]:
        os.environ["SLURMD_NODENAME"] = f"n{member.rank}"
    if member.rank:
        run_agent(member)
    launcher = ExternalLauncher(member)
    launcher.survey()
    seen = {process: {"devices": [{"uuid": uuid}]} for process, uuid in enumerate((A, B))}
    launcher.rank_devices = rank_devices(launcher.world, seen)
    other = launcher.registrations[1].pid
    with Path(sys.argv[1]).open("a") as answers:
        answers.write(f"* processes {other} 5 {os.getppid()} 7\n")
    begun_ns = time.monotonic_ns()
    with tempfile.TemporaryDirectory() as logs:
        cell = make_cell("ddp", 2, device="cuda", backend="nccl")
        launched = launcher.launch(cell, Path(logs))
    launcher.close()
    times = {"begun_ns": begun_ns, "ended_ns": time.monotonic_ns()}
    print(json.dumps({**launched.node.model_dump(), **times}))


if __name__ == "__main__":
    main()
