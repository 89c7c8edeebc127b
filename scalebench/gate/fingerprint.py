"""Whether two runs can be compared at all: machine, software, and what each row was made of."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from scalebench.errors import unknown_name
from scalebench.gate.result import SUITES, Mismatch
from scalebench.records.summary import Row, Summary

ENVIRONMENT = (
    *("devices", "driver", "machine", "cpu", "cores", "cgroup_cpus"),
    *("threads", "torch", "cuda", "hip", "nccl", "cudnn"),
)
"""Fields of the fingerprint without whose agreement times cannot be compared."""

PINNED = "pinned"
"""Where the ranks ran: it changes times, and no count of bytes and collectives."""

ROW = (
    *("device", "backend", "strategy", "workload", "num_parameters", "scaling"),
    *("global_batch", "rank_batch", "oversubscribed", "virtual_hosts", "link", "cpus_per_rank"),
    *("cpu_shares", PINNED),
)
"""Fields that make the specification of a row, in addition to the settings of its strategy."""

ALL_OF_ROW = "case"
"""``--allow-mismatch case`` allows everything of `ROW` and every setting of the strategy."""

LINK_PROFILE = "link_profile"
"""Predictions rest on the links of another machine, so their error says nothing of a change."""

RESTS_ON_LINKS = ("prediction_error",)
"""Metrics that it matters to; no other one."""

MATTERS_TO_EXACT = ("torch",)
"""Of the environment: what changes counts of bytes and collectives. No device does."""

_LONGEST = 60


def environment_mismatches(
    base: Mapping[str, Any], new: Mapping[str, Any], allowed: Collection[str]
) -> list[Mismatch]:
    """Return what differs in two fingerprints and matters."""
    return [
        Mismatch(name, _text(ours), _text(theirs), allowed=name in allowed)
        for name in ENVIRONMENT
        if (ours := _read(base, name)) != (theirs := _read(new, name))
    ]


def profile_mismatches(base: Summary, new: Summary, allowed: Collection[str]) -> list[Mismatch]:
    """Return whether a run's predictions rest on a link profile that is not of its machine."""
    ours, theirs = _origin(base), _origin(new)
    if ours == theirs == _OWN_LINKS:
        return []
    return [Mismatch(LINK_PROFILE, ours, theirs, allowed=LINK_PROFILE in allowed)]


_OWN_LINKS = "of the run's machine"


def _origin(summary: Summary) -> str:
    differs = (summary.model or {}).get("profile_differs")
    names = [str(name) for name in differs] if isinstance(differs, list) else []
    return _text(f"of another machine: {', '.join(names)}") if names else _OWN_LINKS


def row_mismatches(base: Row, new: Row, allowed: Collection[str]) -> list[Mismatch]:
    """Return what differs in the specification of two rows of the same name.

    ``num_parameters`` that one side does not know (no launch of it succeeded) is no difference.
    """
    where = f"{new.case}, N={new.world_size}"
    found = [
        Mismatch(name, _text(getattr(base, name)), _text(getattr(new, name)), where)
        for name in ROW
        if getattr(base, name) != getattr(new, name)
        and not (name == "num_parameters" and None in (base.num_parameters, new.num_parameters))
    ]
    if base.strategy == new.strategy:
        settings = sorted({*base.strategy_settings, *new.strategy_settings})
        found += [
            Mismatch(name, _text(ours), _text(theirs), where)
            for name in settings
            if (ours := base.strategy_settings.get(name))
            != (theirs := new.strategy_settings.get(name))
        ]
    return [replace(m, allowed=m.name in allowed or ALL_OF_ROW in allowed) for m in found]


def check_names(names: Collection[str], rows: Collection[Row]) -> None:
    """Refuse a name that ``--allow-mismatch`` cannot mean.

    Raises:
        UsageError: There is no such property, nor a setting of a strategy in the runs.
    """
    settings = {name for row in rows for name in row.strategy_settings}
    valid = {*ENVIRONMENT, *ROW, ALL_OF_ROW, LINK_PROFILE, SUITES, *settings}
    for name in names:
        if name not in valid:
            raise unknown_name("property for --allow-mismatch", name, valid)


def notable(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what differs, may explain a change, and does not forbid the comparison."""
    notes = []
    ours, theirs = base.get("variables"), new.get("variables")
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted({*ours, *theirs}, key=str):
            if ours.get(name) != theirs.get(name):
                was, is_ = _text(ours.get(name)), _text(theirs.get(name))
                notes.append(f"{name} was {was or 'not set'} and is {is_ or 'not set'}")
    for name in ("host", "os", "python"):
        if _text(base.get(name)) != _text(new.get(name)):
            notes.append(f"{name} was {_text(base.get(name))} and is {_text(new.get(name))}")
    return notes


def _read(environment: Mapping[str, Any], name: str) -> Any:
    if name != "devices":
        return environment.get(name)
    devices = environment.get("devices")
    listed = devices if isinstance(devices, list) else []
    return [d.get("name") if isinstance(d, Mapping) else d for d in listed]


def _text(value: Any) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, list):
        counted = {str(item): value.count(item) for item in value}
        value = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counted.items())
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
