"""How far two definitions of a step's time are from the true pace of a job whose ranks jitter.

Every rank's step is its own work (90 % of it before a synchronisation, 10 % after), jittering
independently of the other ranks. *Each step*: all wait for the last one in every step, as in data
parallel training. *None*: the ranks meet only at the end of a block of 20 steps. The true pace is
the time from the first step of all to the last step of all, over the steps between.

Beside it: the median of the slowest rank's steps, which scalebench 0.1 printed, and the median of
the job's steps (`scalebench.analysis.steps`).

    python -m benchmarks.job_pace
"""

import numpy as np
from numpy.typing import NDArray

JITTERS = ("normal", "gamma")
"""Symmetrical, and with a longer end above."""
DEVIATION = 0.05
AFTER = 0.1
SIZES = (1, 2, 4, 16, 64, 256, 1024)
BLOCKS, STEPS = 40, 20


def simulated_launch(
    generator: np.random.Generator,
    num_ranks: int,
    num_steps: int,
    jitter: str,
    synchronised: bool,
) -> NDArray[np.float64]:
    """Return when each rank had done each step, seconds, shape ``[num_steps, num_ranks]``.

    Args:
        generator: Draws the jitter.
        num_ranks: N.
        num_steps: Of one second of work each.
        jitter: One of `JITTERS`.
        synchronised: Whether the ranks wait for one another in each step.
    """
    before = _work(generator, (num_steps, num_ranks), 1 - AFTER, jitter)
    after = _work(generator, (num_steps, num_ranks), AFTER, jitter)
    now, ends = np.zeros(num_ranks), []
    for first, second in zip(before, after, strict=True):
        reached = now + first
        now = (reached.max() if synchronised else reached) + second
        ends.append(now)
    return np.array(ends)


def _work(
    generator: np.random.Generator, shape: tuple[int, int], mean_s: float, jitter: str
) -> NDArray[np.float64]:
    if jitter == "normal":
        return mean_s * (1 + DEVIATION * generator.standard_normal(shape))
    shape_parameter = DEVIATION**-2
    return generator.gamma(shape_parameter, mean_s / shape_parameter, shape)


def biases(
    generator: np.random.Generator, num_ranks: int, jitter: str, synchronised: bool
) -> tuple[float, float]:
    """Return how far the slowest rank's and the job's median step are off the true pace."""
    slowest, pace, true_s = [], [], []
    for _ in range(BLOCKS):
        ends = simulated_launch(generator, num_ranks, STEPS + 1, jitter, synchronised)
        slowest.extend(np.diff(ends, axis=0).max(axis=1))
        pace.extend(np.diff(ends.max(axis=1)))
        true_s.append((ends[-1].max() - ends[0].max()) / STEPS)
    true = float(np.mean(true_s))
    return float(np.median(slowest)) / true - 1, float(np.median(pace)) / true - 1


def main() -> None:
    """Print the table."""
    generator = np.random.default_rng(20261122)
    print("bias of the step time, ranks that jitter by 5 %")
    print(f"{'jitter':8}{'synchronised':14}{'N':>6}{'slowest rank':>14}{'the job':>10}")
    for jitter in JITTERS:
        for synchronised in (True, False):
            for num_ranks in SIZES:
                old, new = biases(generator, num_ranks, jitter, synchronised)
                when = "each step" if synchronised else "none"
                print(f"{jitter:8}{when:14}{num_ranks:6}{100 * old:+13.2f}%{100 * new:+9.2f}%")


if __name__ == "__main__":
    main()
