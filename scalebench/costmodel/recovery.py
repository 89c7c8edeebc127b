"""The best time between two checkpoints, and where the time goes.

A job trains for τ seconds, saves for δ, and so on. Failures come at random with a mean time M
between them, and do not remember when the last one was. After a failure the job needs R to train
again, and starts from its last checkpoint. A failure during a restart begins the restart again.

Sources: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006, "A
higher order estimate of the optimum checkpoint interval for restart dumps".
"""

import math
from dataclasses import dataclass

from scipy.special import lambertw

LARGEST_EXPONENT = 700.0
"""e to more than 709 is no float; a job whose stretch needs that keeps nothing of its work."""


@dataclass(frozen=True)
class Shares:
    """Where the time of a job goes; the four sum to 1.

    Attributes:
        training: New steps: the goodput.
        save: Checkpoints that were completed.
        lost: Work that failures took away, and saves that they cut off.
        restart: From a failure until the job trains again.
    """

    training: float
    save: float
    lost: float
    restart: float


def mtbf_of_job(device_mtbf_s: float, num_devices: int) -> float:
    """Return the mean time between failures of a job, seconds: every device can end it.

    Args:
        device_mtbf_s: Of one device, seconds.
        num_devices: That the job needs, all of them.
    """
    return device_mtbf_s / num_devices


def young_interval(cost_s: float, mtbf_s: float) -> float:
    """Return Young's interval, seconds of training between saves: √(2 δ M).

    Good where a save is short against the time between failures.
    """
    return math.sqrt(2 * cost_s * mtbf_s)


def daly_interval(cost_s: float, mtbf_s: float) -> float:
    """Return Daly's interval (2006, equation 37), seconds of training between saves.

    √(2 δ M) · [1 + ⅓ √(δ/2M) + ⅑ (δ/2M)] − δ for δ < 2 M, else M.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    series = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return math.sqrt(2 * cost_s * mtbf_s) * series - cost_s


def optimal_interval(cost_s: float, mtbf_s: float) -> float:
    """Return the interval with the least total time by `shares`, seconds; exact.

    Where the derivative of ``(e^((τ+δ)/M) − 1)/τ`` is zero: τ = M · (1 + W(−e^(−δ/M − 1))), W being
    Lambert's function. `daly_interval` is its series.
    """
    return mtbf_s * (1 + float(lambertw(-math.exp(-cost_s / mtbf_s - 1)).real))


def shares(interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> Shares:
    """Return where the time goes (Daly 2006, equation 20), on average over a long job.

    A stretch of τ + δ without a failure takes M e^(R/M) (e^((τ+δ)/M) − 1) seconds on average. So
    the job runs for e^(−R/M) of the time, and keeps x / (eˣ − 1) of what it does then, x = (τ+δ)/M.

    Args:
        interval_s: τ, training between saves, seconds.
        cost_s: δ, what a save costs training, seconds.
        restart_s: R, from a failure until the job trains again, seconds.
        mtbf_s: M, mean time between failures, seconds.
    """
    stretch_s = interval_s + cost_s
    ratio = stretch_s / mtbf_s
    kept = ratio / math.expm1(ratio) if ratio <= LARGEST_EXPONENT else 0.0
    running = math.exp(-restart_s / mtbf_s)
    return Shares(
        training=running * kept * interval_s / stretch_s,
        save=running * kept * cost_s / stretch_s,
        lost=running * (1 - kept),
        restart=-math.expm1(-restart_s / mtbf_s),
    )


@dataclass(frozen=True)
class PublishedJob:
    """A job whose failures were counted.

    Attributes:
        mtbf_s: Mean time between failures of the whole job, seconds.
        goodput: Share of the time that trained, at least.
    """

    name: str
    num_devices: int
    mtbf_s: float
    goodput: float
    source: str


LLAMA_3 = PublishedJob(
    name="Llama 3 405B",
    num_devices=16384,
    mtbf_s=54 * 86400.0 / 419,
    goodput=0.9,
    source="Dubey et al. 2024, The Llama 3 Herd of Models, section 3.3.4",
)
