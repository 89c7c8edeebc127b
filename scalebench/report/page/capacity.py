"""What there is to hold: the memory of a device, or of the machine that CPU ranks share."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.page.palette import NEUTRAL
from scalebench.report.tables.memory import Peak, peaks
from scalebench.report.words import wording

NEAR = 0.1
"""Of the capacity: a peak above this is drawn beside it; below, the bars would be too short."""


def device_bytes(environment: Mapping[str, Any]) -> int | None:
    """Return the memory of the smallest device; None: there is none, or it is not known."""
    devices = environment.get("devices")
    known = [
        device["memory_bytes"]
        for device in (devices if isinstance(devices, list) else ())
        if isinstance(device, Mapping) and _is_size(device.get("memory_bytes"))
    ]
    return min(known, default=None)


def machine_bytes(environment: Mapping[str, Any]) -> int | None:
    """Return what all CPU ranks together may hold; None: it is not known."""
    told = (environment.get("memory_bytes"), environment.get("cgroup_memory_bytes"))
    limits: list[int] = [limit for limit in told if _is_size(limit)]
    return min(limits, default=None)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def sentence(rows: Sequence[Row], environment: Mapping[str, Any]) -> list[str]:
    """Hold the fullest row against the capacity; nothing where one of them is not known."""
    found = peaks(rows)
    on_gpu = [peak for peak in found if peak.row.device == "cuda"]
    capacity = device_bytes(environment) if on_gpu else machine_bytes(environment)
    if not found or capacity is None:
        return []
    if on_gpu:
        fullest = max(on_gpu, key=lambda peak: peak.total)
        return [
            f"A device has {units.bytes_(capacity)}; the fullest rank holds"
            f" {units.percent(fullest.total / capacity)} of it, in {wording.place(fullest.row)}."
        ]
    fullest = max(found, key=_together)
    held = _together(fullest)
    return [
        f"All ranks share the machine's {units.bytes_(capacity)}; those of"
        f" {wording.place(fullest.row)} together hold {units.bytes_(held)} of live tensors,"
        f" {units.percent(held / capacity)} of it."
    ]


def _together(peak: Peak) -> int:
    return peak.total * peak.row.world_size


def draw_limit(figure: go.Figure, rows: Sequence[Row], environment: Mapping[str, Any]) -> None:
    """Draw the device's capacity as a line where the peaks come near it."""
    found = [peak for peak in peaks(rows) if peak.row.device == "cuda"]
    capacity = device_bytes(environment)
    if not found or capacity is None or max(peak.total for peak in found) < NEAR * capacity:
        return
    scale = _scale(figure)
    figure.add_vline(
        x=capacity / scale,
        line={"color": NEUTRAL, "width": 1.6, "dash": "dot"},
        annotation={"text": "device", "font": {"size": 13}},
    )
    figure.update_xaxes(range=[0, 1.08 * capacity / scale])


def _scale(figure: go.Figure) -> float:
    """Return bytes per unit of the figure's axis, which its title names."""
    unit = str(figure.layout.xaxis.title.text).rpartition(" ")[2]
    return {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}[unit]
