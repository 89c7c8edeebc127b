"""What a sweep costs beyond its measured windows: ``python -m benchmarks.sweep``.

The whole command is timed as a user sees it, from an empty process to the report; the time inside
the clean windows is taken away.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.verdict import against_limit
from scalebench.analysis.run import load_run
from scalebench.records.measured.rank import RankRecord
from scalebench.records.paths import RunPaths
from scalebench.records.run import CellResult

TARGET_S = 15.0
SIZES = "1,2,4,8"
ROUNDS = ("paired", "traced", "local", "bare")
SUITE = Path(__file__).with_name("sweep_suite.py")


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: its wall clock in seconds, and what each launch left."""

    wall_s: float
    results: list[CellResult]

    @property
    def timed(self) -> list[CellResult]:
        """The launches that timed steps, and those of independent ranks that explain them."""
        return [r for r in self.results if r.cell.purpose in ("measure", "independent")]

    @property
    def window_s(self) -> float:
        """Seconds inside the clean windows."""
        return sum(phase_s(result, "clean") for result in self.timed)

    @property
    def rounds_s(self) -> float:
        """Seconds inside the rounds that follow them, in which steps are looked into."""
        return sum(phase_s(result, phase) for result in self.timed for phase in ROUNDS)


def phase_s(result: CellResult, phase: str) -> float:
    """Return the seconds of steps of one phase, of the rank that was longest in it."""
    return max(sum(_steps(rank, phase)) for rank in result.ranks)


def _steps(rank: RankRecord, phase: str) -> list[float]:
    return [
        second
        for block in rank.blocks
        if block.phase == phase
        for second in rank.step_s[block.first : block.first + block.count]
    ]


def run_sweep(repeats: int, with_report: bool) -> Sweep:
    """Run the suite with the command line, at every size."""
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        out = Path(folder) / "run"
        command = [
            *(sys.executable, "-m", "scalebench", "run", str(SUITE), "--gpus", SIZES),
            *("--device", "cpu", "--repeats", str(repeats), "--out", str(out)),
            *([] if with_report else ["--no-report"]),
        ]
        began = time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - began
        if ended.returncode:
            sys.exit(f"the sweep left with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        run = load_run(RunPaths(out).root)
        results = [run.results[cell.id] for cell in run.info.plan]
    return Sweep(wall_s, results)


def print_sweep(sweep: Sweep) -> None:
    """Print where the wall clock of scalebench's sweep went."""
    inspected = [r for r in sweep.results if r.cell.purpose == "inspect"]
    inspect_s = sum(r.wall_s or 0.0 for r in inspected)
    launch_s = sum(r.launch_s or 0.0 for r in sweep.timed)
    warmup_s = sum(phase_s(r, "warmup") for r in sweep.timed)
    cells_s = sum((r.wall_s or 0.0) / max(1, len(r.shared_with)) for r in sweep.timed)
    between_s = cells_s - launch_s - warmup_s - sweep.window_s - sweep.rounds_s
    rows = [
        ("clean windows", sweep.window_s, f"{len(sweep.timed)} launches"),
        ("rounds: traced and other blocks", sweep.rounds_s, ""),
        ("launching them, to the first step", launch_s, ""),
        ("warm-up steps", warmup_s, ""),
        ("between blocks, and leaving", between_s, ""),
        ("correctness and memory checks", inspect_s, f"{len(inspected)} launches"),
        ("all else: start, torch once, table, report", sweep.wall_s - cells_s - inspect_s, ""),
        ("wall clock", sweep.wall_s, ""),
    ]
    for name, seconds, note in rows:
        print(f"  {name:<44}{seconds:8.1f} s   {note}".rstrip())


def main() -> None:
    """Measure the sweep and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="launches of each cell")
    parser.add_argument("--no-report", action="store_true", help="write no report.html")
    given = parser.parse_args()

    sweep = run_sweep(given.repeats, not given.no_report)
    print(f"Sweep over N = {SIZES} on CPU, oversubscribed: mechanics only, no scaling numbers\n")
    print_sweep(sweep)
    overhead_s = sweep.wall_s - sweep.window_s - sweep.rounds_s
    print(f"\n  outside the windows, scalebench  {against_limit(overhead_s, TARGET_S)}")


if __name__ == "__main__":
    main()
