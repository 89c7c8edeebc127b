"""A search over 1,024 GPUs: how long it takes, and how much memory.

``python -m benchmarks.search_scale``. The command as a user gives it, each in a process of its own:
a memory limit that refuses little, one that refuses more, and a mixture of experts.
"""

import json
import os
import subprocess
import sys
import time
from typing import NamedTuple

TARGET_S, TARGET_BYTES = 10.0, 500e6

JOBS = {
    "gpt-7b, 80 GB": ("--workload", "gpt-7b", "--batch-size", "1024", "--gpu-type", "h100"),
    "gpt-7b, 40 GB": (
        *("--workload", "gpt-7b", "--batch-size", "1024", "--gpu-type", "a100"),
        *("--memory-limit", "40GB"),
    ),
    "gpt-moe-8x124m": (
        *("--workload", "gpt-moe-8x124m", "--batch-size", "4096", "--gpu-type", "h100"),
    ),
}


class Cost(NamedTuple):
    """What a search cost.

    Attributes:
        search_s: The search alone.
        process_s: The command, from its start to its end.
        cpu_s: Processor time of it; on a busy machine the rest is waiting.
        peak_bytes: Largest resident size of its process.
    """

    num_candidates: int
    num_evaluated: int
    search_s: float
    process_s: float
    cpu_s: float
    peak_bytes: int


def cost_of(arguments: tuple[str, ...], num_gpus: int = 1024) -> Cost:
    """Run one search and return its cost."""
    asked = ["search", "--gpus", str(num_gpus), *arguments, "--mfu", "0.45", "--margin", "10%"]
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "scalebench", *asked, "--json"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        found = json.load(process.stdout)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"scalebench {' '.join(asked)} ended with {process.returncode}")
    return Cost(
        num_candidates=found["num_candidates"],
        num_evaluated=found["num_evaluated"],
        search_s=found["took_s"],
        process_s=time.perf_counter() - began,
        cpu_s=used.ru_utime + used.ru_stime,
        peak_bytes=used.ru_maxrss * 1024,
    )


def main() -> int:
    """Print the costs beside their targets."""
    print(f"targets: {TARGET_S:g} s and {TARGET_BYTES / 1e6:g} MB for the whole command")
    print(
        f"{'job':<16}{'configurations':>16}{'evaluated':>12}{'search':>9}{'command':>9}{'cpu':>9}{'peak':>9}"
    )
    met = True
    for name, arguments in JOBS.items():
        cost = cost_of(arguments)
        met &= cost.process_s <= TARGET_S and cost.peak_bytes <= TARGET_BYTES
        print(
            f"{name:<16}{cost.num_candidates:>16,}{cost.num_evaluated:>12,}{cost.search_s:>7.1f} s"
            f"{cost.process_s:>7.1f} s{cost.cpu_s:>7.1f} s{cost.peak_bytes / 1e6:>6.0f} MB"
        )
    print("targets met" if met else "a target is missed")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
