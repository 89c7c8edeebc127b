"""How precisely efficiency is known after a minute: ``python -m benchmarks.precision``.

The same question, DDP on two ranks against plain training on one, is answered in the same wall
clock by scalebench, by an earlier version of it from git, and by a loop of ``torchrun`` calls with
the textbook estimate: Student's t of the ratios of neighbouring calls. The three take turns. The
loop's ranks are pinned and scheduled as scalebench's are: otherwise it would answer another
question (`benchmarks.scheduling`). The second part takes the time until the half-width is 3 points.
The last launches rows by turns and by themselves, alternately, and compares their steps: sharing a
launch must not change them.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.torchrun import SETTLED, call_torchrun
from scalebench.analysis.run import load_run
from scalebench.analysis.steps import launch_step_s
from scalebench.spec import Cell
from scalebench.stats import Estimate, estimate_over_launches

SUITE = Path(__file__).with_name("precision_suite.py")
HERE = Path(__file__).resolve().parents[1]
BEFORE = "503b28c"
"""The last commit in which every row had launches of its own."""
TORCHRUN_STEPS = 30
TORCHRUN_WARMUP = 10
WIDTH = 0.03
"""Half-width of an efficiency that is precise enough for most questions."""
WANTED = {"before": 1 / 3, "torchrun": 1 / 10}


def run_scalebench(source: Path, out: Path, *options: str) -> float:
    """Run the suite with the version in ``source``; return its wall clock, seconds."""
    command = [sys.executable, "-m", "scalebench", "run", str(SUITE), "--gpus", "1,2"]
    command += ["--device", "cpu", "--no-report", "--out", str(out), *options]
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        command, cwd=out.parent, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"the run left with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.monotonic() - began


def efficiency_in(out: Path) -> tuple[float, float]:
    """Return DDP's efficiency on two ranks and the half-width of its interval."""
    rows = json.loads((out / "summary.json").read_text())["rows"]
    (found,) = [row["efficiency"] for row in rows if (row["case"], row["world_size"]) == ("ddp", 2)]
    return found["value"], (found["high"] - found["low"]) / 2


def torchrun_loop(cells: dict[str, Cell], seconds: float, wanted: float = 0.0) -> Estimate:
    """Call torchrun for the two sizes alternately; return efficiency by the textbook.

    Args:
        cells: The baseline's and DDP's.
        seconds: For how long, two calls of each at least.
        wanted: Half-width that ends the loop before that.
    """
    ratios: list[float] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds or len(ratios) < 2:
        if len(ratios) > 1 and (estimate_over_launches(ratios).half_width or 1.0) <= wanted:
            break
        step_s = {
            name: call_torchrun(cell, TORCHRUN_WARMUP, TORCHRUN_STEPS, SETTLED).window_s
            / TORCHRUN_STEPS
            for name, cell in cells.items()
        }
        ratios.append(step_s["plain"] / (2 * step_s["ddp"]))
    return estimate_over_launches(ratios)


def cells_of(out: Path) -> dict[str, Cell]:
    """Return the plain cell and DDP's at two ranks of a run."""
    plan = load_run(out).info.plan
    wanted = (("plain", 1), ("ddp", 2))
    found = {(c.case, c.world_size): c for c in plan if c.purpose == "measure"}
    return {case: found[case, size] for case, size in wanted}


def clean_share(out: Path, wall_s: float) -> float:
    """Return the part of a run's wall clock that lay inside clean blocks."""
    clean_ns = sum(
        block.end_ns - block.start_ns
        for result in load_run(out).results.values()
        if result.ranks
        for block in result.ranks[0].blocks
        if block.phase == "clean" and block.start_ns and block.end_ns
    )
    return clean_ns / 1e9 / wall_s


def compare_widths(rounds: int, seconds: float, before: Path) -> None:
    """Print the half-widths of the three, taken by turns."""
    widths: dict[str, list[float]] = {"now": [], "before": [], "torchrun": []}
    print(f"half-width of DDP's efficiency on 2 ranks after {seconds:g} s, points")
    budget = f"{seconds:g}s"
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
            now, old = Path(folder) / "now", Path(folder) / "before"
            wall_s = run_scalebench(HERE, now, "--precision", "0.1%", "--budget", budget)
            old_s = run_scalebench(before, old, "--budget", budget, "--repeats", "99")
            theirs = torchrun_loop(cells_of(now), seconds)
            found = {"now": efficiency_in(now), "before": efficiency_in(old)}
            found["torchrun"] = (theirs.value, theirs.half_width or math.nan)
            share = clean_share(now, wall_s)
        for name, (_, width) in found.items():
            widths[name].append(width)
        told = "   ".join(f"{n} {100 * v:.1f} ± {100 * w:.2f}" for n, (v, w) in found.items())
        print(f"  round {number + 1}: {told}   {theirs.n} pairs of torchrun calls", flush=True)
        times = f"now {wall_s:.0f} s, {share:.0%} of them in clean blocks; before {old_s:.0f} s"
        print(f"           {times}", flush=True)
    for name, wanted in WANTED.items():
        ratio = float(np.median(widths["now"]) / np.median(widths[name]))
        word = "met" if ratio <= wanted else "MISSED"
        print(f"  now / {name}: {ratio:.2f}, target at most {wanted:.2f}: {word}")


def compare_times(rounds: int) -> None:
    """Print how long it takes until the half-width is `WIDTH`, by scalebench and by torchrun."""
    print(f"\nseconds until the half-width is {100 * WIDTH:g} points, at most 600")
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
            out = Path(folder) / "now"
            now_s = run_scalebench(
                HERE, out, "--precision", f"{100 * WIDTH:g}%", "--budget", "600s"
            )
            width = efficiency_in(out)[1]
            began = time.monotonic()
            theirs = torchrun_loop(cells_of(out), 600.0, WIDTH)
            loop_s = time.monotonic() - began
        told = f"now {now_s:.0f} s (± {100 * width:.2f})   torchrun {loop_s:.0f} s"
        print(f"  round {number + 1}: {told}, {theirs.n} pairs of calls", flush=True)


def compare_steps(rounds: int) -> None:
    """Print the steps of rows that take turns over those of rows launched by themselves."""
    logs: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
            steps = {}
            for name in ("--shared", "--isolated")[:: 1 if number % 2 else -1]:
                out = Path(folder) / name.strip("-")
                run_scalebench(HERE, out, name, "--repeats", "1", "--no-trace")
                steps[name] = {
                    r.cell.row_key[1:]: launch_step_s(r)
                    for r in load_run(out).results.values()
                    if r.cell.purpose == "measure"
                }
        for key, step_s in steps["--shared"].items():
            logs.setdefault(key, []).append(math.log(step_s / steps["--isolated"][key]))
    print("\nsteps of a row that takes turns over those of one with a launch of its own, 99 %")
    for (case, size), of_row in logs.items():
        print(f"  {case} on {size}: {_interval(of_row)}")


def _interval(logs: Sequence[float]) -> str:
    """Return the mean of differences of logarithms in percent with its 99 % interval."""
    from scipy.special import stdtrit

    values = np.array(logs)
    width = float(values.std(ddof=1) / len(values) ** 0.5 * stdtrit(len(values) - 1, 0.995))
    center = float(values.mean())
    word = "no significant difference" if abs(center) <= width else "they DIFFER"
    return f"{100 * center:+.2f} ± {100 * width:.2f} %: {word}"


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison of widths")
    parser.add_argument("--seconds", type=float, default=60.0, help="wall clock of each answer")
    parser.add_argument("--times", type=int, default=3, help="times to a half-width of 3 points")
    parser.add_argument("--pairs", type=int, default=8, help="runs by turns and by themselves")
    parser.add_argument("--before", default=BEFORE, help="commit to compare with")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        before = Path(folder) / "source"
        subprocess.run(
            ["git", "-C", HERE, "worktree", "add", "-f", "--detach", before, given.before],
            check=True,
            capture_output=True,
        )
        try:
            if given.rounds:
                compare_widths(given.rounds, given.seconds, before)
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", before], check=True)
    if given.times:
        compare_times(given.times)
    if given.pairs:
        compare_steps(given.pairs)


if __name__ == "__main__":
    main()
