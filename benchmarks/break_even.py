"""Where does compression stop paying: the predicted bandwidth against the measured crossover.

``make bench-break-even``. Two virtual hosts at several rates; at each, every method's step over
that of the exact all-reduce is measured. The rate at which this ratio passes 1, read off a line
through its logarithms on either side, is the measured crossover; the median of what the runs
predicted is held against it. The method is the one whose coding is so dear that the crossover lies
among rates that two virtual links hold; cheaper ones still win at the fastest of them. (Less
processor for each rank moves it there, too, but then moving bytes is what the processor limits.)
About 7 minutes on two quiet cores.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
METHODS = ("count-sketch",)
RATES_MBIT = (25, 50, 100, 200)
TARGET = 0.20
PAYLOAD = 1448 / 1514
"""The part of a link's rate that TCP leaves for data."""


def main() -> None:
    """Measure at every rate; exit with 1 where a prediction is off by more than a fifth."""
    ratios: dict[str, dict[float, float]] = {name: {} for name in METHODS}
    predicted: dict[str, list[float]] = {name: [] for name in METHODS}
    with tempfile.TemporaryDirectory() as folder:
        for rate in RATES_MBIT:
            for row in _rows(rate, Path(folder) / str(rate)):
                told = row["compression"]
                if row["case"] not in METHODS or row["world_size"] != 2:
                    continue
                ratios[row["case"]][rate * PAYLOAD] = told["step_ratio_to_none"]["value"]
                replayed = told["break_even_replayed_byte_per_s"]
                if replayed is not None:
                    predicted[row["case"]].append(8 * replayed["value"] / 1e6)
    print(f"{'method':<16}{'measured':>14}{'predicted':>14}{'error':>10}   ratio by rate")
    missed = [name for name in METHODS if not _told(name, ratios[name], predicted[name])]
    sys.exit(1 if missed else 0)


def _rows(rate_mbit: int, out: Path) -> list[dict]:
    subprocess.run(
        [
            *(sys.executable, "-m", "scalebench", "run", "compression", "--gpus", "1,2"),
            *("-k", " or ".join(["none", *METHODS]), "--workload", "paced", "--batch-size", "8"),
            *("--launcher", "lab", "--link", f"{rate_mbit}mbit", "--cpus-per-rank", "0.5"),
            *("--repeats", "3", "--out", str(out), "--no-report"),
        ],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    rows: list[dict] = json.loads((out / "summary.json").read_text())["rows"]
    return [row for row in rows if row["compression"]]


def _told(name: str, ratios: dict[float, float], predicted: list[float]) -> bool:
    """Print a method's line; tell whether its crossover was predicted."""
    by_rate = "  ".join(f"{rate:.0f}: {ratio:.2f}" for rate, ratio in ratios.items())
    crossing = crossover(ratios)
    middle = statistics.median(predicted) if predicted else math.nan
    if crossing is None or not predicted:
        print(f"{name:<16}{'not reached':>14}{middle:>7.0f} Mbit/s{'':>10}   {by_rate}")
        return False
    error = middle / crossing - 1
    print(
        f"{name:<16}{crossing:>7.0f} Mbit/s{middle:>7.0f} Mbit/s{100 * error:>+8.0f} %   {by_rate}"
    )
    return abs(error) <= TARGET


def crossover(ratios: dict[float, float]) -> float | None:
    """Return the rate at which the ratio passes 1, between the rates on either side of it."""
    rates = sorted(ratios)
    for slow, fast in pairwise(rates):
        below, above = math.log(ratios[slow]), math.log(ratios[fast])
        if below <= 0 < above:
            part = -below / (above - below)
            return math.exp(math.log(slow) + part * math.log(fast / slow))
    return None


if __name__ == "__main__":
    main()
