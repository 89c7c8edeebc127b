"""How long ``scalebench --help`` takes, beside the bare interpreter and the import of torch."""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.verdict import against_limit, print_section

TARGET_S = 0.2
ROUNDS = 21
TORCH_EVERY = 4
SCALEBENCH = Path(sys.executable).with_name("scalebench")


def _timed(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="start")
def test_help(benchmark: BenchmarkFixture) -> None:
    """Start fresh processes, the three kinds interleaved."""
    help_command = [str(SCALEBENCH), "--help"]
    pass_s: list[float] = []
    torch_s: list[float] = []

    def others() -> None:
        if len(pass_s) % TORCH_EVERY == 0:
            torch_s.append(_timed([sys.executable, "-c", "import torch"]))
        pass_s.append(_timed([sys.executable, "-c", "pass"]))

    _timed(help_command)  # byte code is compiled once, after installation
    help_s: list[float] = []
    benchmark.pedantic(lambda: help_s.append(_timed(help_command)), setup=others, rounds=ROUNDS)

    benchmark.extra_info.update(python_s=median(pass_s), import_torch_s=median(torch_s))
    print_section(
        "Start of a fresh process, medians, interleaved",
        f"scalebench --help         {against_limit(median(help_s), TARGET_S)}  (n={len(help_s)})",
        f"python -c pass            {median(pass_s):.2f} s  (n={len(pass_s)})",
        f'python -c "import torch"  {median(torch_s):.2f} s  (n={len(torch_s)})',
    )
