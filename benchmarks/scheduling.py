"""What scheduling and placement of CPU ranks do to a step: ``python -m benchmarks.scheduling``.

scalebench pins its CPU ranks and puts them into SCHED_BATCH; ``torchrun`` does neither. The same
DDP training is timed under ``torchrun`` (one thread per rank), in SCHED_BATCH, and also pinned,
and by scalebench. All take turns. The last two ought to agree.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.precision import cells_of, run_scalebench
from benchmarks.torchrun import SETTLED, call_torchrun
from scalebench.analysis.run import load_run
from scalebench.analysis.steps import launch_step_s

HERE = Path(__file__).resolve().parents[1]
WAYS: dict[str, tuple[str, ...]] = {
    "torchrun, one thread": (),
    "torchrun, SCHED_BATCH": SETTLED[:1],
    "torchrun, SCHED_BATCH and pinned": SETTLED,
}
OURS = "scalebench"
NUM_WARMUP, NUM_STEPS = 10, 60
ROWS = (("plain", 1), ("ddp", 2))


def measure_by_turns(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the steps of plain on one rank and of DDP on two, seconds, by way and round."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in (*WAYS, OURS)}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
            out = Path(folder) / "run"
            run_scalebench(HERE, out, "--repeats", "1", "--no-trace")
            of_row = {
                (result.cell.case, result.cell.world_size): launch_step_s(result)
                for result in load_run(out).results.values()
                if result.cell.purpose == "measure"
            }
            cells = cells_of(out)
        found[OURS].append((of_row[ROWS[0]], of_row[ROWS[1]]))
        for way, settled in WAYS.items():
            plain, ddp = (
                call_torchrun(cells[case], NUM_WARMUP, NUM_STEPS, settled).window_s / NUM_STEPS
                for case, _ in ROWS
            )
            found[way].append((plain, ddp))
    return found


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    print(f"{'median of ' + str(given.rounds) + ' rounds':34} plain, 1   ddp, 2  efficiency")
    for way, steps in measure_by_turns(given.rounds).items():
        plain, ddp = np.array(steps).T
        efficiency = np.median(plain / (2 * ddp))
        print(
            f"{way:34} {1e3 * np.median(plain):5.1f} ms  {1e3 * np.median(ddp):5.1f} ms"
            f"  {100 * efficiency:8.1f} %"
        )


if __name__ == "__main__":
    main()
