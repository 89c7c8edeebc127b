"""A job with failures, event by event: what the formulas of `intervals` are tested with.

It also knows what they leave out: failures that cluster (a Weibull shape below 1), and checkpoints
that are on the disk only some time after the job trains again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalebench.costmodel.recovery.intervals import Shares

Gap = Callable[[], float]
"""Draws the time from the end of one failure's restart, or the start, to the next failure."""


@dataclass(frozen=True)
class Job:
    """What is simulated; times in seconds.

    Attributes:
        interval_s: Training between saves.
        cost_s: What a save costs training.
        restart_s: From a failure until the job trains again.
        delay_s: From the end of a save's cost until the checkpoint survives a failure; 0: at once.
    """

    interval_s: float
    cost_s: float
    restart_s: float
    delay_s: float = 0.0


def exponential(mtbf_s: float, seed: int) -> Gap:
    """Return failures that do not remember when the last one was."""
    random = np.random.default_rng(seed)
    return lambda: float(random.exponential(mtbf_s))


def weibull(mtbf_s: float, shape: float, seed: int) -> Gap:
    """Return failures with this mean time between them; a shape below 1: they cluster."""
    from scipy.special import gamma

    random = np.random.default_rng(seed)
    scale_s = mtbf_s / float(gamma(1 + 1 / shape))
    return lambda: scale_s * float(random.weibull(shape))


def simulate(job: Job, failures: Gap, num_failures: int) -> Shares:
    """Return where the time of a job goes that fails so many times.

    Args:
        job: What is simulated.
        failures: Draws the times between failures; a failure in a restart begins it again.
        num_failures: The simulation ends with the last of them.
    """
    training = save = lost = restart = 0.0
    stretch_s = job.interval_s + job.cost_s
    for _ in range(num_failures):
        gap_s = failures()
        if restart > 0 or training > 0 or lost > 0:  # the first stretch begins without a restart
            if gap_s < job.restart_s:
                restart += gap_s
                continue
            restart += job.restart_s
            gap_s -= job.restart_s
        done = _durable_stretches(gap_s, stretch_s, job.delay_s)
        training += done * job.interval_s
        save += done * job.cost_s
        lost += gap_s - done * stretch_s
    total = training + save + lost + restart
    return Shares(training / total, save / total, lost / total, restart / total)


def _durable_stretches(gap_s: float, stretch_s: float, delay_s: float) -> int:
    """Return how many stretches were complete, and their checkpoints safe, at the failure."""
    return max(0, int((gap_s - delay_s) // stretch_s)) if gap_s > delay_s else 0
