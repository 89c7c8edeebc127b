"""How often intervals of efficiencies hold where the rows of a suite take turns in short blocks.

Simulated rounds: every row has a block in every cycle, in a random order, and what the machine does
goes on through all of them. Kinds of noise of blocks: white; drifting (what all rows share wanders
by 3 % within seconds); bursty (one block in twenty is disturbed, by up to many times the scatter);
heavy-tailed (Student's t, 3); episodes (for a second or two all rows are 30 % slower). Rows also
differ from round to round by an effect of launching afresh. Intervals are looked at after a fixed
number of rounds, and after every round until all are narrow enough
(`scalebench.analysis.rows.launches`). Beside them stand launches one after the other of the same
total time, as `scalebench.analysis.rows.round_noise` judges them.

``python -m benchmarks.block_coverage --runs 400``: some minutes for each kind of noise.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage import EFFECTS, SEED, SIZES
from benchmarks.coverage import NOISES as NOISES_OF_STEPS
from scalebench.analysis.rows.launches import CONFIDENCE_OF_LOOKS
from scalebench.analysis.rows.round_noise import Block, RoundNoise, levels_of_round
from scalebench.analysis.steps import mean_of_means
from scalebench.records.summary import RowKey
from scalebench.stats import CONFIDENCE, Estimate, trimmed_mean

BLOCK_S = 0.25
SCATTER = {False: 0.01, True: 0.03}
"""Of the blocks of a row, by whether it has several ranks."""
MANY = 4000
FEWEST_ROUNDS = 3
MOST_ROUNDS = 8

Floats = NDArray[np.float64]
Generator = np.random.Generator


def _scattered(draw: Callable[[Generator, tuple[int, ...]], Floats]) -> Callable[..., Floats]:
    def blocks(generator: Generator, sizes: Sequence[int], num_blocks: int) -> Floats:
        scatter = np.array([SCATTER[size > 1] for size in sizes])[:, None]
        return scatter * draw(generator, (len(sizes), num_blocks))

    return blocks


def _quiet(generator: Generator, num_blocks: int) -> Floats:
    return np.zeros(num_blocks)


def _wandering(generator: Generator, num_blocks: int) -> Floats:
    """What all rows share: returns to its mean within 3 s."""
    keep = math.exp(-BLOCK_S / 3)
    course = generator.standard_normal(num_blocks)
    for at in range(1, num_blocks):
        course[at] = keep * course[at - 1] + math.sqrt(1 - keep**2) * course[at]
    return 0.03 * course


def _episodes(generator: Generator, num_blocks: int) -> Floats:
    course = np.zeros(num_blocks)
    at = int(generator.exponential(15 / BLOCK_S))
    while at < num_blocks:
        lasts = 1 + int(generator.exponential(1.5 / BLOCK_S))
        course[at : at + lasts] = generator.exponential(0.3)
        at += lasts + int(generator.exponential(15 / BLOCK_S))
    return course


White = _scattered(NOISES_OF_STEPS["white"])
NOISES: dict[str, tuple[Callable[..., Floats], Callable[[Generator, int], Floats]]] = {
    "white": (White, _quiet),
    "drifting": (White, _wandering),
    "bursty": (_scattered(NOISES_OF_STEPS["bursty"]), _quiet),
    "heavy-tailed": (_scattered(NOISES_OF_STEPS["heavy-tailed"]), _quiet),
    "episodes": (White, _episodes),
}


@dataclass(frozen=True)
class Kind:
    """What the runs are like. Effects are standard deviations, as ratios.

    Attributes:
        noise: One of `NOISES`.
        num_blocks: Of each row in a round.
        effect: By how much a row differs from round to round.
        sizes: Ranks of each row; the first is the baseline.
    """

    noise: str
    num_blocks: int
    effect: float
    sizes: Sequence[int] = SIZES

    @property
    def keys(self) -> list[RowKey]:
        """Of the rows."""
        return [("suite", str(row), size) for row, size in enumerate(self.sizes)]


@dataclass(frozen=True)
class Look:
    """The intervals of a run after some rounds: errors and half-widths, as logarithms.

    Attributes:
        estimates: Of every row but the baseline.
        error: Of each, from the truth.
        half_width: Of each, with 95 %.
        wide: The same with the confidence of looks.
    """

    estimates: list[Estimate]
    error: Floats
    half_width: Floats
    wide: Floats


Levels = Mapping[RowKey, tuple[float, float]]


def draw_round(kind: Kind, generator: Generator) -> tuple[Levels, Levels]:
    """Return the levels of one round in turns, and in launches one after the other."""
    noise, course = NOISES[kind.noise]
    num_rows, num_blocks = len(kind.sizes), kind.num_blocks
    launched = kind.effect * generator.standard_normal((num_rows, 1))
    turns = _turns(generator, num_rows, num_blocks)
    in_turns = launched + noise(generator, kind.sizes, num_blocks)
    in_turns += course(generator, turns.size)[turns]
    apart = launched + noise(generator, kind.sizes, num_blocks)
    apart += course(generator, turns.size).reshape(num_rows, num_blocks)
    return levels_in_turns(kind, in_turns, turns), levels_apart(kind, apart)


def _turns(generator: Generator, num_rows: int, num_blocks: int) -> NDArray[np.int64]:
    """Return when each block of each row has its turn: all rows once, then all again."""
    order = np.argsort(generator.random((num_blocks, num_rows)), axis=1).T
    return np.asarray(order + num_rows * np.arange(num_blocks))


def levels_in_turns(kind: Kind, logs: Floats, turns: NDArray[np.int64]) -> Levels:
    """Return the levels of a round in turns: means, and what blocks say of their variance."""
    length = round(1e9 * BLOCK_S)
    blocks = {
        key: [
            Block(turn * length, (turn + 1) * length, math.exp(log))
            for turn, log in zip(of_row.tolist(), row, strict=True)
        ]
        for key, of_row, row in zip(kind.keys, turns, logs, strict=True)
    }
    told = levels_of_round(blocks)
    return {key: (_level(row), told[key][1]) for key, row in zip(kind.keys, logs, strict=True)}


def _level(logs: Floats) -> float:
    """Return the logarithm of the mean of a launch's blocks."""
    return math.log(trimmed_mean(np.exp(logs))[0])


def levels_apart(kind: Kind, logs: Floats) -> Levels:
    """Return the levels of launches one after the other."""
    return {
        key: (_level(row), mean_of_means(np.exp(row)).variance)
        for key, row in zip(kind.keys, logs, strict=True)
    }


def truth(kind: Kind, generator: Generator) -> Floats:
    """Return what blocks without number say: the noise is not symmetric, and rows differ in it."""
    noise, _ = NOISES[kind.noise]
    logs = noise(generator, kind.sizes, MANY)
    levels = np.array([_level(row) for row in logs])
    return (levels[0] - levels)[1:]


def look(kind: Kind, rounds: Sequence[Levels], true: Floats) -> Look:
    """Return the intervals that some rounds give."""
    rows = {key: {r: levels[key][0] for r, levels in enumerate(rounds)} for key in kind.keys}
    within = {key: float(np.mean([levels[key][1] for levels in rounds])) for key in kind.keys}
    noise = RoundNoise.of(rows, within)
    found: dict[float, list[Estimate]] = {
        confidence: [
            one
            for key in kind.keys[1:]
            if (one := noise.ratio(key, kind.keys[0], confidence=confidence)) is not None
        ]
        for confidence in (CONFIDENCE, CONFIDENCE_OF_LOOKS)
    }
    half = {
        confidence: np.array([math.log((e.high or 0) / (e.low or 1)) / 2 for e in estimates])
        for confidence, estimates in found.items()
    }
    return Look(
        estimates=found[CONFIDENCE_OF_LOOKS],
        error=np.array([math.log(e.value) for e in found[CONFIDENCE]]) - true,
        half_width=half[CONFIDENCE],
        wide=half[CONFIDENCE_OF_LOOKS],
    )


def simulate(kind: Kind, runs: int, seed: int = SEED) -> dict[str, str]:
    """Simulate runs of one kind; return the cells of its line."""
    generator = np.random.default_rng((seed, list(NOISES).index(kind.noise), kind.num_blocks))
    true = truth(kind, generator)
    turns: list[dict[int, Look]] = []
    apart: list[Look] = []
    for _ in range(runs):
        both = [draw_round(kind, generator) for _ in range(MOST_ROUNDS)]
        rounds, launches = [one for one, _ in both], [one for _, one in both]
        turns.append({n: look(kind, rounds[:n], true) for n in range(2, MOST_ROUNDS + 1)})
        apart.append(look(kind, launches[:FEWEST_ROUNDS], true))
    cells = {
        f"{n} rounds": _held([run[n].error for run in turns], [run[n].half_width for run in turns])
        for n in (2, 3, 5)
    }
    cells["3 launches"] = _held([one.error for one in apart], [one.half_width for one in apart])
    width = [run[FEWEST_ROUNDS].half_width.mean() for run in turns]
    cells["width"] = f"{np.mean(width) / np.mean([one.half_width.mean() for one in apart]):.2f}"
    for about in (3, 4, 6):
        target = float(np.median([_widest(run[about]) for run in turns]))
        cells[f"until ±{100 * target:.1f} %"] = _stopped(turns, target)
    return cells


def is_enough(num_rounds: int, estimates: Sequence[Estimate], half_width: float) -> bool:
    """Return whether to add no further round.

    Args:
        num_rounds: That there are.
        estimates: Of every row, with the confidence `CONFIDENCE_OF_LOOKS`.
        half_width: Wanted of all of them.
    """
    if num_rounds < FEWEST_ROUNDS or num_rounds >= MOST_ROUNDS:
        return num_rounds >= MOST_ROUNDS
    return all(one.half_width is not None and one.half_width <= half_width for one in estimates)


def _widest(one: Look) -> float:
    return max(estimate.half_width or math.inf for estimate in one.estimates)


def _stopped(turns: Sequence[Mapping[int, Look]], target: float) -> str:
    ends = [
        next(n for n in range(2, MOST_ROUNDS + 1) if is_enough(n, run[n].estimates, target))
        for run in turns
    ]
    at_the_end = [run[n] for run, n in zip(turns, ends, strict=True)]
    held = _held([one.error for one in at_the_end], [one.wide for one in at_the_end])
    return f"{held} after {np.mean(ends):.1f}"


def _held(errors: Sequence[Floats], widths: Sequence[Floats]) -> str:
    return f"{100 * np.mean(np.abs(errors) <= np.array(widths)):.1f} %"


def kinds() -> list[Kind]:
    """Return all kinds of runs."""
    each = [Kind(noise, 12, effect) for noise in NOISES for effect in EFFECTS]
    few = [Kind(noise, num, 0.01) for noise in NOISES for num in (4, 40)]
    small = [Kind("white", 12, 0.01, sizes) for sizes in ((1, 2), (1, 1, 2), (1, 1, 2, 4))]
    return [*each, *few, *small]


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    asked = parser.parse_args()
    for kind in kinds():
        found = simulate(kind, asked.runs)
        name = f"{kind.noise}, {kind.num_blocks} blocks, rounds {100 * kind.effect:g} %"
        print(f"{name}, rows at {' '.join(map(str, kind.sizes))}:", flush=True)
        print("   ", "; ".join(f"{what} {held}" for what, held in found.items()), flush=True)


if __name__ == "__main__":
    main()
