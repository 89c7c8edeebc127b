"""The same script under torchrun and under scalebench: the same steps?

``python -m benchmarks.script_vs_torchrun``. The steps are short, which is where it matters how the
ranks are scheduled. Under torchrun the script writes down when its steps end, and of the same part
of the training the job's steps are taken: from when every rank has done one to when every rank has
done the next. All take turns. ``--pinned`` pins scalebench's ranks, for comparison.

Target: on one rank and on two, scalebench's step is not significantly longer than torchrun's and
the marks that scalebench takes, and not significantly shorter than torchrun's: pinned ranks are.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.paired import Difference, paired_difference
from benchmarks.verdict import print_section
from scalebench.analysis.run import load_run
from scalebench.analysis.steps import launch_step_s

SCRIPT = ["-m", "benchmarks.same_model"]
FIRST, NUM_STEPS = 20, 250
"""Steps that count under torchrun; scalebench takes as many after a warm-up of about as many."""
SIZES = (1, 2)
MARKS_S = 35e-6
"""What the marks of a step take, whatever the model: ``test_script_marks.py``."""


def torchrun_step_s(world_size: int) -> float:
    """Run the script under torchrun and return the job's median step, seconds.

    What counts are the ranks' notes: now and then gloo aborts a rank at its end.
    """
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(world_size), *SCRIPT]
        command += ["--steps", str(2 * NUM_STEPS), "--ends", folder]
        told = _call(command)
        ranks = [json.loads(path.read_text()) for path in Path(folder).glob("rank*.json")]
    assert len(ranks) == world_size, told.stderr
    ends = np.max(ranks, axis=0)
    return float(np.median(np.diff(ends[FIRST : FIRST + NUM_STEPS + 1])))


def scalebench_step_s(options: list[str]) -> list[float]:
    """Run the script once at each size and return the job's median steps, seconds."""
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "scalebench", "run", "--gpus", "1,2", "--repeats", "1"]
        command += ["--steps", str(NUM_STEPS), "--no-trace", "--no-report", "--out", str(out)]
        done = _call([*command, *options, "--", *SCRIPT])
        assert not done.returncode, done.stdout + done.stderr
        found = {
            result.cell.world_size: launch_step_s(result)
            for result in load_run(out).results.values()
            if result.cell.purpose == "measure"
        }
    return [found[size] for size in SIZES]


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def is_as_long(apart: Difference, marks: float) -> bool:
    """Tell whether a difference may be none, or that of the marks; both are plain ratios."""
    return apart.low <= marks and apart.high >= 0


def main() -> None:
    """Measure by turns, and print the medians and how they differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="at least 6")
    parser.add_argument("--pinned", action="store_true")
    given = parser.parse_args()
    options = ["--pinned"] if given.pinned else []
    torchrun, ours = [], []
    for _ in range(given.rounds):
        torchrun.append([torchrun_step_s(size) for size in SIZES])
        ours.append(scalebench_step_s(options))
    ways = {"torchrun": np.array(torchrun), "scalebench": np.array(ours)}
    lines = []
    for way, steps in ways.items():
        one, two = 1e3 * np.median(steps, axis=0)
        efficiency = np.median(steps[:, 0] / steps[:, 1])
        lines.append(
            f"{way:12} N=1 {one:.2f} ms, N=2 {two:.2f} ms, efficiency {100 * efficiency:.1f} %"
        )
    for place, size in enumerate(SIZES):
        apart = paired_difference(ways["scalebench"][:, place], ways["torchrun"][:, place])
        marks = MARKS_S / np.median(ways["torchrun"][:, place])
        verdict = "PASS" if is_as_long(apart, marks) else "FAIL"
        lines.append(f"N={size}: {apart} longer, of which marks {100 * marks:.1f} %: {verdict}")
    print_section(f"One script under torchrun and under scalebench, {given.rounds} rounds", *lines)


if __name__ == "__main__":
    main()
