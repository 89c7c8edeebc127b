"""The metrics that the gate knows: what is good, what counts as a change, what decides.

A user sets floors and what decides in ``[tool.scalebench.gate]``, one table for each metric.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scalebench.errors import UsageError, unknown_name
from scalebench.gate.result import Unit
from scalebench.records.rows.race import RESTART, STALL

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


_FLOORS = ("relative_floor", "absolute_floor")
_ALLOWANCE = "host_allowance"
_KEYS = {
    "exact": ("decides",),
    "single": ("decides", *_FLOORS),
    "signed": ("decides", *_FLOORS),
    "positive": ("decides", *_FLOORS, _ALLOWANCE),
}
"""Kind of a metric → what may be set of it."""


@dataclass(frozen=True)
class GateSettings:
    """The metrics with the user's floors.

    Attributes:
        metrics: In the order in which they are shown.
        collectives: What holds for the counts of collectives.
        recovery: What holds for the times of checkpoints and of restarts.
        table: What the user set, as it stands in the file.
        exact: Whether only what has no noise decides.
    """

    metrics: tuple[Metric, ...] = METRICS
    collectives: Metric = COLLECTIVES
    recovery: tuple[Metric, ...] = RECOVERY
    table: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False

    def only_exact(self) -> "GateSettings":
        """Return settings by which nothing that has noise decides: for shared machines."""
        metrics = (
            replace(m, decides=m.decides and m.kind == "exact", decides_over_runs=False)
            for m in self.metrics
        )
        recovery = tuple(replace(m, decides=False) for m in self.recovery)
        return replace(self, metrics=tuple(metrics), recovery=recovery, exact=True)

    def of_suite(self, own: Mapping[str, Any], source: str) -> "GateSettings":
        """Return the settings for a suite that has some of its own; the user's overrule them.

        Raises:
            UsageError: As `gate_settings`.
        """
        if not own:
            return self
        gate_settings(own, source)
        names = dict.fromkeys([*own, *self.table])
        both = {name: {**own.get(name, {}), **self.table.get(name, {})} for name in names}
        found = gate_settings(both, source)
        return found.only_exact() if self.exact else found


def gate_settings(table: Mapping[str, Any], source: str) -> GateSettings:
    """Return the settings of a table ``{metric: {setting: value}}``.

    Settings are ``decides``, ``relative_floor``, ``absolute_floor`` and ``host_allowance``.

    Raises:
        UsageError: A metric or a key that does not exist, or a value that is none; in one line.
    """
    known = {metric.name: metric for metric in (*METRICS, COLLECTIVES, *RECOVERY)}
    changed = dict(known)
    for name, given in table.items():
        if name not in known:
            raise unknown_name(f"metric of the gate in {source}:", str(name), known)
        if not isinstance(given, Mapping):
            raise UsageError(
                f"{source}: {name} must be a table, not {given!r:.40}. Write for example "
                f"[tool.scalebench.gate.{name}] and below it relative_floor = 0.02."
            )
        changed[name] = _changed(known[name], given, source)
    metrics = tuple(changed[metric.name] for metric in METRICS)
    recovery = tuple(changed[metric.name] for metric in RECOVERY)
    return GateSettings(metrics, changed[COLLECTIVES.name], recovery, table)


def _changed(metric: Metric, given: Mapping[str, Any], source: str) -> Metric:
    keys = _KEYS[metric.kind]
    for key, value in given.items():
        if key not in keys:
            raise unknown_name(f"setting of {metric.name} in {source}:", str(key), keys)
        if key == "decides":
            if not isinstance(value, bool):
                raise _refused(source, metric, key, value, "true or false")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise _refused(source, metric, key, value, "a number, for example 0.02")
        elif not 0 <= value < (math.inf if key == "absolute_floor" else 1):
            what = "0 or more" if key == "absolute_floor" else "a ratio from 0 to below 1"
            raise _refused(source, metric, key, value, what)
    over_runs = metric.decides_over_runs and given.get("decides", True)
    return replace(metric, **given, decides_over_runs=over_runs)


def _refused(source: str, metric: Metric, key: str, value: Any, valid: str) -> UsageError:
    return UsageError(f"{source}: {metric.name}.{key} is {value!r:.40}; it must be {valid}.")
