"""The gate on recorded step times with known slowdowns; writes the table of docs/gate.md.

``python -m benchmarks.gate_recorded`` prints; ``--write FILE`` puts the table into the
documentation. The recordings are `tests/recorded/step_times_*.npz`, by `benchmarks.record_steps`:
real steps of one process. In a window, short blocks of steps alternate between four arms, two of
which do not differ. A pair is the mean of the medians of an arm's two blocks of a window, and that
of arm A: what `scalebench gate --interleave` has as a round. The verdicts are those of the gate's
own functions.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate_power import write_into
from scalebench.gate.family import Finding, Pair, judge, paired
from scalebench.gate.measured import measured
from scalebench.gate.metrics import METRICS
from scalebench.gate.result import WORSE

RECORDED = sorted((Path(__file__).parents[1] / "tests" / "recorded").glob("step_times_*.npz"))
MARKS = "<!-- generated: recorded begin -->", "<!-- generated: recorded end -->"
PAIRS = 80
EVERY = 2
THRESHOLD = 0.02
"""Of the rule that the gate is compared with: later against earlier, no pairs, no test."""

FLOOR = next(metric.relative_floor for metric in METRICS if metric.name == "step_s")
Arms = Mapping[str, NDArray[np.float64]]
"""Arm → the mean of the medians of its two blocks in every window, seconds, ``[windows]``."""


def read_arms(path: Path, which: str) -> Arms:
    """Return a recording's arms.

    Args:
        path: Of the recording.
        which: ``quiet_s``, or ``loaded_s``: other processes keep the cores busy from half way on.
    """
    with np.load(path) as stored:
        names = stored["arms"].tolist()
        blocks = np.median(stored[which].astype(float), axis=2)
    return {
        arm: np.mean([blocks[:, i] for i, name in enumerate(names) if name == arm], axis=0)
        for arm in dict.fromkeys(names)
    }


def gate_finding(base: NDArray[np.float64], new: NDArray[np.float64]) -> Finding:
    """Return the gate's verdict on rounds of two versions, as ``--interleave`` judges them."""
    sides = paired(measured(np.log(base)), measured(np.log(new)))
    up, down = math.log1p(FLOOR), -math.log1p(-FLOOR)
    return judge([Pair("step_s", *sides, up, down, shared=True)])[0].finding


def later_is_slower(base: NDArray[np.float64], new: NDArray[np.float64]) -> bool:
    """Apply the sequential rule: the second half of the time against the first, by a threshold."""
    half = len(base) // 2
    return bool(np.median(new[half:]) > (1 + THRESHOLD) * np.median(base[:half]))


@dataclass(frozen=True)
class Rates:
    """How often a recording's stretches of 80 pairs get a verdict.

    Attributes:
        num_stretches: One begins with every second pair.
        slower_2: That the arm slowed by 2 % regressed.
        slower_5: The same of 5 %.
        false_alarm: That one of the two arms that do not differ regressed against the other.
        threshold: That the sequential rule reports the same.
    """

    num_stretches: int
    slower_2: float
    slower_5: float
    false_alarm: float
    threshold: float


def rates(arms: Arms) -> Rates:
    """Ask both rules of every stretch."""
    starts = range(0, len(arms["a"]) - PAIRS + 1, EVERY)
    stretches = [{arm: x[i : i + PAIRS] for arm, x in arms.items()} for i in starts]

    def regressed(base: str, new: str) -> float:
        found = [gate_finding(one[base], one[new]) in WORSE for one in stretches]
        return float(np.mean(found))

    return Rates(
        num_stretches=len(stretches),
        slower_2=regressed("a", "slower-2"),
        slower_5=regressed("a", "slower-5"),
        false_alarm=max(regressed("a", "b"), regressed("b", "a")),
        threshold=float(np.mean([later_is_slower(one["a"], one["b"]) for one in stretches])),
    )


def scatter(arms: Arms) -> float:
    """Return the standard deviation of the pairs' ratios where nothing differs."""
    return float(np.std(np.log(arms["b"] / arms["a"]), ddof=1))


def text_of() -> str:
    """Return the generated part of the documentation."""
    lines = [
        "| recording | other processes | pairs scatter by, % | stretches | 2 % slower found, % | "
        "5 % slower found, % | false alarms, % | false alarms of the threshold, % |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for number, path in enumerate(RECORDED, 1):
        for which, told in (("quiet_s", "none"), ("loaded_s", "start half way")):
            arms = read_arms(path, which)
            found = rates(arms)
            shares = (found.slower_2, found.slower_5, found.false_alarm, found.threshold)
            cells = [str(number), told, f"{100 * scatter(arms):.1f}", str(found.num_stretches)]
            lines.append("| " + " | ".join([*cells, *(f"{100 * s:.0f}" for s in shares)]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="document with the marks")
    options = parser.parse_args()
    text = text_of()
    print(text)
    if options.write:
        write_into(options.write, text, MARKS)


if __name__ == "__main__":
    main()
