"""What a user may set of the gate: ``[tool.scalebench.gate]``, one table for each metric."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scalebench.errors import UsageError, unknown_name
from scalebench.gate.metrics import COLLECTIVES, METRICS, RECOVERY, Metric

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

        Args:
            own: As `gate_settings` takes them.
            source: What to call them in an error.

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

    Args:
        table: As it stands in the file.
        source: What to call it in an error.

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
