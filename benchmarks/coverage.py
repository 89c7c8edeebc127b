"""How often the 95 % intervals of efficiencies hold the true one, on simulated runs.

A run has seven rows, as the suite ``ddp`` has on one and two ranks; the steps on two ranks scatter
three times as much. Launches of a row differ by an effect of launching afresh (0 to 10 %), rounds
by a drift of 2 %. Beside the intervals that scalebench gives (`scalebench.analysis.round_noise`)
stand those of the rounds' own ratios by Student's t, which version 0.1 gave. Nothing here is
measured.

``python -m benchmarks.coverage`` prints; ``--write FILE`` puts the table into the documentation.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate_power import BEGIN, END
from scalebench.analysis.round_noise import launch_variances, ratio_over_rounds
from scalebench.gate.bootstrap import median_variance

STEPS = 40
SCATTER = np.array([0.02] * 4 + [0.06] * 3)
"""Of steps, by row; the first row is the baseline."""
DRIFT = 0.02
EFFECTS = (0.0, 0.01, 0.03, 0.1)
LAUNCHES = (2, 3, 5)
HOLDS = (0.94, 0.97)
SEED = 20261122

Steps = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]


def _white(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return generator.standard_normal(shape)


def _drifting(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Neighbouring steps are alike: autoregressive, 0.6."""
    noise = generator.standard_normal(shape)
    for step in range(1, shape[-1]):
        noise[..., step] = 0.6 * noise[..., step - 1] + 0.8 * noise[..., step]
    return noise


def _bursty(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """One step in twenty is disturbed, by up to many times the scatter."""
    disturbed = generator.random(shape) < 0.05
    return generator.standard_normal(shape) + disturbed * generator.exponential(10, shape)


def _heavy(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Student's t with 3 degrees of freedom."""
    return generator.standard_t(3, shape)


NOISES: dict[str, Steps] = {
    "white": _white,
    "drifting": _drifting,
    "bursty": _bursty,
    "heavy-tailed": _heavy,
}


@dataclass(frozen=True)
class Coverage:
    """What became of the intervals of one kind of run.

    Attributes:
        holds: Share of intervals that hold the truth, of all rows but the baseline.
        worst: The same of the row in which it is lowest.
        before: Of the rounds' own ratios.
        width: Mean width over that of the rounds' own ratios.
    """

    holds: float
    worst: float
    before: float
    width: float


def simulate(
    noise: str,
    num_launches: int,
    effects: Sequence[float],
    runs: int,
    seed: int = SEED,
    at_two_ranks: float = 0.0,
) -> Coverage:
    """Simulate runs of one kind.

    Args:
        noise: One of `NOISES`.
        num_launches: Of every row.
        effects: By how much launches of each row differ (standard deviation, as a ratio).
        runs: How many.
        seed: Of the draws.
        at_two_ranks: What a round does to all rows on two ranks and to no other (standard
            deviation, as a ratio), as load from elsewhere that takes one core of two.
    """
    generator = np.random.default_rng((seed, num_launches, list(NOISES).index(noise)))
    shape = (len(SCATTER), num_launches, STEPS)
    held, before, widths, widths_before = np.zeros((4, len(SCATTER)))
    for _ in range(runs):
        logs = SCATTER[:, None, None] * NOISES[noise](generator, shape)
        logs -= np.median(NOISES[noise](generator, (20_000,))) * SCATTER[:, None, None]
        logs += (np.array(effects)[:, None] * generator.standard_normal(shape[:2]))[..., None]
        logs += np.cumsum(DRIFT * generator.standard_normal(num_launches))[:, None]
        if at_two_ranks:
            logs[SCATTER[0] < SCATTER] += at_two_ranks * generator.standard_normal(
                (num_launches, 1)
            )
        rows = [dict(enumerate(np.median(row, axis=1).tolist())) for row in logs]
        within = [float(np.mean([median_variance(np.exp(x)) for x in row])) for row in logs]
        keys = [("suite", str(row), 1) for row in range(len(rows))]
        known = launch_variances(
            dict(zip(keys, rows, strict=True)), dict(zip(keys, within, strict=True))
        )
        for row in range(1, len(rows)):
            pair = (known[keys[row]], known[keys[0]])
            new = ratio_over_rounds(rows[row], rows[0], pair)
            old = ratio_over_rounds(rows[row], rows[0], None)
            assert new is not None and new.low is not None and new.high is not None
            assert old is not None and old.low is not None and old.high is not None
            held[row] += new.low <= 1 <= new.high
            before[row] += old.low <= 1 <= old.high
            widths[row] += math.log(new.high / new.low)
            widths_before[row] += math.log(old.high / old.low)
    share = held[1:] / runs
    return Coverage(
        holds=float(share.mean()),
        worst=float(share.min()),
        before=float(before[1:].mean()) / runs,
        width=float((widths[1:] / widths_before[1:]).mean()),
    )


def table(runs: int) -> str:
    """Simulate all kinds and return the table, as Markdown."""
    lines = [
        f"Of {runs:,} runs of each kind; over white, drifting, bursty and heavy-tailed steps the "
        "lowest and the highest.",
        "",
        "| launches | they differ by | intervals that hold | in the worst row | of the rounds "
        "alone | width, of the rounds' |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    kinds: list[tuple[str, Sequence[float]]] = [
        (f"{100 * effect:g} %", [effect] * len(SCATTER)) for effect in EFFECTS
    ]
    kinds.append(("1 %, one row 4 %", [0.01] * (len(SCATTER) - 1) + [0.04]))
    for num_launches in LAUNCHES:
        for name, effects in kinds:
            found = [simulate(noise, num_launches, effects, runs) for noise in NOISES]
            lines.append(
                f"| {num_launches} | {name} | {_span([f.holds for f in found])} |"
                f" {_span([f.worst for f in found])} | {_span([f.before for f in found])} |"
                f" {min(f.width for f in found):.2f} to {max(f.width for f in found):.2f} |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines)


def _span(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"


def main() -> None:
    """Simulate, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--at-two-ranks", type=float, help="only this effect, e.g. 0.03")
    parser.add_argument("--write", type=Path, help="document with the marks")
    asked = parser.parse_args()
    if asked.at_two_ranks is not None:
        for num_launches in LAUNCHES:
            same = [0.01] * len(SCATTER)
            found = simulate("white", num_launches, same, asked.runs, SEED, asked.at_two_ranks)
            print(num_launches, found)
        return
    text = table(asked.runs)
    if asked.write:
        whole = asked.write.read_text(encoding="utf-8")
        before, _, rest = whole.partition(BEGIN)
        after = rest.partition(END)[2]
        asked.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
