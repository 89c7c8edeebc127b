"""The metrics that the gate knows: what is good, what counts as a change, what decides."""

from dataclasses import dataclass, replace
from typing import Literal

from scalebench.gate.result import Unit
from scalebench.records.rows.recovery_times import RESTART, STALL

Kind = Literal["positive", "signed", "single", "exact"]
"""``positive``: an estimate over launches that is never 0, changes are ratios; ``signed``: an
estimate that may be 0; ``single``: one number per run; ``exact``: a number without noise. Peak
memory is ``positive``, and one number per run where launches did not count it."""

HOST_ALLOWANCE = 0.03
"""A host that is slower than those of all accepted runs by so much is no regression. No number of
accepted runs tells such a host from slower code: only both versions in one job do. Efficiency needs
no allowance, since the plain model is slower on such a host, too."""

COUNT_SUFFIX = "_count"
"""``all_reduce_count`` and so on: how many collectives of a kind a rank takes part in per step."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Field of the summary's row, or what is derived from one.
        phrase: What people call it.
        decides: Whether its verdicts count for the exit code; of what has noise, of every case only
            that of the largest N.
        decides_over_runs: Whether they count where several runs are accepted: a slower host slows
            the plain model as well, so hosts hardly touch a ratio to it.
        relative_floor: The smallest change of interest, as a ratio.
        absolute_floor: The same in the metric's unit; a change has to be beyond both.
        falls_with_steps: Compared only where both rows trained as many steps.
        host_allowance: By how much a host may change it that differs from those of all accepted
            runs, as a ratio. Counts where there are several accepted runs.
    """

    name: str
    phrase: str
    unit: Unit
    kind: Kind
    decides: bool = True
    higher_is_better: bool = False
    relative_floor: float = 0.0
    absolute_floor: float = 0.0
    falls_with_steps: bool = False
    host_allowance: float = 0.0
    decides_over_runs: bool = False

    def floor(self, base: float) -> float:
        """Return the floor as a ratio to ``base``; infinite where that is 0."""
        if base == 0:
            return float("inf") if self.absolute_floor else 0.0
        return max(self.relative_floor, self.absolute_floor / abs(base))


METRICS = (
    Metric(
        *("step_s", "step time", "s", "positive"),
        relative_floor=0.01,
        absolute_floor=1e-5,
        host_allowance=HOST_ALLOWANCE,
    ),
    Metric(
        *("efficiency", "efficiency", "ratio", "positive"),
        decides=False,
        decides_over_runs=True,
        higher_is_better=True,
        relative_floor=0.01,
        absolute_floor=0.005,
    ),
    Metric(
        *("peak_memory_bytes", "peak memory", "bytes", "positive"),
        relative_floor=0.005,
        absolute_floor=65_536,
    ),
    Metric(
        *("time_to_target_s", "time to the target", "s", "positive"),
        relative_floor=0.05,
        host_allowance=HOST_ALLOWANCE,
    ),
    Metric("wire_bytes", "bytes on the wire", "bytes", "exact"),
    Metric("payload_bytes", "payload", "bytes", "exact"),
    Metric("predicted_memory_bytes", "predicted memory", "bytes", "exact"),
    Metric("predicted_bubble_ratio", "predicted bubble", "ratio", "exact"),
    Metric(
        *("exposed_comm_s", "exposed communication", "s", "signed"),
        decides=False,
        relative_floor=0.05,
        absolute_floor=1e-4,
    ),
    Metric(
        *("energy_j_per_sample", "energy per sample", "j", "positive"),
        decides=False,
        relative_floor=0.01,
    ),
    Metric(
        *("loss_last", "last loss", "loss", "single"),
        decides=False,
        relative_floor=0.01,
        falls_with_steps=True,
    ),
    Metric(
        *("prediction_error", "prediction error", "ratio", "single"),
        decides=False,
        absolute_floor=0.02,
    ),
)
"""In the order in which they are shown."""

COLLECTIVES = Metric("collectives", "collectives per step", "count", "exact")
"""Settings and direction of all the counts; each kind is a separate metric."""

RECOVERY = (
    Metric(
        *(STALL, "stall of a checkpoint", "s", "positive"),
        decides=False,
        relative_floor=0.1,
        absolute_floor=1e-3,
    ),
    Metric(
        *(RESTART, "time to restart", "s", "positive"),
        decides=False,
        relative_floor=0.1,
        absolute_floor=0.05,
    ),
)
"""Settings of what checkpoints and failures cost; each way to save, and each kind of failure with
who starts the ranks again, is a separate metric."""


def named_metric(name: str, settings: Metric) -> Metric:
    """Return the metric of one way to save, or of one kind of failure.

    Args:
        name: ``async_checkpoint_stall_s``: ends with the name of the settings.
        settings: One of `RECOVERY`.
    """
    which = name.removesuffix(settings.name).strip("_").replace("_", " ")
    return replace(settings, name=name, phrase=f"{settings.phrase} ({which})")


def count_metric(kind: str, settings: Metric = COLLECTIVES) -> Metric:
    """Return the metric that counts one kind of collective."""
    named = kind.replace("_", "-")
    return Metric(
        f"{kind}{COUNT_SUFFIX}", f"{named}s per step", "count", "exact", decides=settings.decides
    )
