"""How often the 95 % intervals of efficiencies hold the true one, on simulated runs.

A run has seven rows, as the suite ``ddp`` has on one and two ranks, or other numbers of them; the
steps on several ranks scatter three times as much. Launches of a row differ by an effect of
launching afresh (0 to 10 %), rounds by a drift of 2 %. A round may also slow one number of ranks
alone. Beside the intervals that scalebench gives (`scalebench.analysis.rows.round_noise`) stand
those of the rounds' own ratios by Student's t, which version 0.1 gave. Nothing here is measured.

``python -m benchmarks.coverage`` prints; ``--write FILE`` puts the tables into the documentation.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate_power import write_into
from scalebench.analysis.rows.round_noise import RoundNoise
from scalebench.gate.observation import median_variance

STEPS = 40
SIZES = (1, 1, 1, 1, 2, 2, 2)
"""Ranks of each row of a run; the first row is the baseline."""
OTHER_SIZES = ((1, 1, 2), (1, 1, 1, 2, 2), (1, 1, 2, 4), (1, 1, 2, 2, 4, 4, 8, 8))
SCATTER = {False: 0.02, True: 0.06}
"""Of the steps of a row, by whether it has several ranks."""
DRIFT = 0.02
EFFECTS = (0.0, 0.01, 0.03, 0.1)
MARKS = "<!-- generated: intervals begin -->", "<!-- generated: intervals end -->"
LAUNCHES = (2, 3, 5)
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
class Kind:
    """What the runs are like. Effects are standard deviations, as ratios.

    Attributes:
        noise: Of steps; one of `NOISES`.
        num_launches: Of every row.
        effects: By how much launches of each row differ.
        sizes: Ranks of each row; the first is the baseline.
        of_sizes: What a round does to all rows at one number of ranks, for each number.
    """

    noise: str
    num_launches: int
    effects: Sequence[float]
    sizes: Sequence[int] = SIZES
    of_sizes: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Coverage:
    """What became of the intervals of one kind of run.

    Attributes:
        holds: Share of intervals that hold the truth, of all rows but the baseline.
        worst: The same of the row in which it is lowest.
        before: Of the rounds' own ratios.
        width: Mean width over that of the rounds' own ratios.
        apart: As ``holds``, of the rows at more ranks than the baseline.
        apart_width: As ``width``, of those rows.
    """

    holds: float
    worst: float
    before: float
    width: float
    apart: float
    apart_width: float


def simulate(kind: Kind, runs: int, seed: int = SEED) -> Coverage:
    """Simulate runs of one kind.

    Args:
        kind: What they are like.
        runs: How many.
        seed: Of the draws.
    """
    generator = np.random.default_rng((seed, kind.num_launches, list(NOISES).index(kind.noise)))
    keys = [("suite", str(row), size) for row, size in enumerate(kind.sizes)]
    held, before, widths, widths_before = np.zeros((4, len(keys)))
    for _ in range(runs):
        logs = _steps(kind, generator)
        rows = {
            key: dict(enumerate(np.median(row, axis=1).tolist()))
            for key, row in zip(keys, logs, strict=True)
        }
        within = {
            key: float(np.mean([median_variance(np.exp(x)) for x in row]))
            for key, row in zip(keys, logs, strict=True)
        }
        known, unknown = RoundNoise.of(rows, within), RoundNoise(rows, {})
        for row in range(1, len(keys)):
            new, old = (noise.ratio(keys[row], keys[0]) for noise in (known, unknown))
            assert new is not None and new.low is not None and new.high is not None
            assert old is not None and old.low is not None and old.high is not None
            held[row] += new.low <= 1 <= new.high
            before[row] += old.low <= 1 <= old.high
            widths[row] += math.log(new.high / new.low)
            widths_before[row] += math.log(old.high / old.low)
    share, width = held[1:] / runs, widths[1:] / widths_before[1:]
    apart = np.array(kind.sizes[1:]) != kind.sizes[0]
    return Coverage(
        holds=float(share.mean()),
        worst=float(share.min()),
        before=float(before[1:].mean()) / runs,
        width=float(width.mean()),
        apart=float(share[apart].mean()),
        apart_width=float(width[apart].mean()),
    )


def _steps(kind: Kind, generator: np.random.Generator) -> NDArray[np.float64]:
    """Draw the logarithms of the steps of one run, shape ``[rows, launches, steps]``."""
    scatter = np.array([SCATTER[size > 1] for size in kind.sizes])[:, None, None]
    shape = (len(kind.sizes), kind.num_launches, STEPS)
    logs = scatter * NOISES[kind.noise](generator, shape)
    logs -= np.median(NOISES[kind.noise](generator, (20_000,))) * scatter
    logs += (np.array(kind.effects)[:, None] * generator.standard_normal(shape[:2]))[..., None]
    logs += np.cumsum(DRIFT * generator.standard_normal(kind.num_launches))[:, None]
    for size, effect in kind.of_sizes.items():
        here = np.array(kind.sizes) == size
        logs[here] += effect * generator.standard_normal((kind.num_launches, 1))
    return logs


def _of_launches(runs: int) -> list[str]:
    """Return the table of runs whose launches differ by this and that."""
    lines = [
        f"Of {runs:,} runs of each kind; over white, drifting, bursty and heavy-tailed steps the "
        "lowest and the highest.",
        "",
        "| launches | they differ by | intervals that hold | in the worst row | of the rounds "
        "alone | width, of the rounds' |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    kinds: list[tuple[str, Sequence[float]]] = [
        (f"{100 * effect:g} %", [effect] * len(SIZES)) for effect in EFFECTS
    ]
    kinds.append(("1 %, one row 4 %", [0.01] * (len(SIZES) - 1) + [0.04]))
    for num_launches in LAUNCHES:
        for name, effects in kinds:
            found = [simulate(Kind(noise, num_launches, effects), runs) for noise in NOISES]
            lines.append(
                f"| {num_launches} | {name} | {_span([f.holds for f in found])} |"
                f" {_span([f.worst for f in found])} | {_span([f.before for f in found])} |"
                f" {min(f.width for f in found):.2f} to {max(f.width for f in found):.2f} |"
            )
            print(lines[-1], flush=True)
    return lines


def _of_sizes(runs: int) -> list[str]:
    """Return the table of runs whose rounds slow one number of ranks."""
    lines = [
        f"Of {runs:,} runs of each kind, launches differ by 1 %. Rows at more ranks than the "
        "baseline; a round slows each number of ranks, or two ranks alone.",
        "",
        "| ranks of the rows | launches | not slowed: hold (width, of the rounds') | each by 1 % |"
        " each by 3 % | two ranks by 3 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for sizes in (SIZES, *OTHER_SIZES):
        for num_launches in LAUNCHES:
            same = [0.01] * len(sizes)
            found = [
                simulate(Kind("white", num_launches, same, sizes, of_sizes), runs)
                for of_sizes in (
                    {},
                    dict.fromkeys(sizes, 0.01),
                    dict.fromkeys(sizes, 0.03),
                    {2: 0.03},
                )
            ]
            cells = [f"{100 * f.apart:.1f} % ({f.apart_width:.2f})" for f in found]
            ranks = " ".join(str(size) for size in sizes)
            lines.append(f"| {ranks} | {num_launches} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def _span(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"


def main() -> None:
    """Simulate, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--write", type=Path, help="document with the marks")
    asked = parser.parse_args()
    text = "\n".join([*_of_launches(asked.runs), "", *_of_sizes(asked.runs)])
    if asked.write:
        write_into(asked.write, text, MARKS)


if __name__ == "__main__":
    main()
