"""Timed collectives in words: what a message costs, and how much links carry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalebench import units
from scalebench.records.summary import TimedCollectives
from scalebench.report.words import wording
from scalebench.spec.collectives import BACKEND, EITHER_PLACE


@dataclass(frozen=True)
class OperationFigures:
    """An operation of the backend at the largest N that was timed.

    Attributes:
        alpha_s: Latency of a message, of the smallest sizes.
        bandwidth_byte_per_s: Of a link, of the largest sizes; None: they do not show it.
    """

    op: str
    world_size: int
    law: str
    alpha_s: float
    bandwidth_byte_per_s: float | None


def operations(found: TimedCollectives) -> list[OperationFigures]:
    """Return the figures of each operation at its largest N, in the order of the fits."""
    named = dict.fromkeys(str(fit["op"]) for fit in found.fits if _usual(fit))
    return [
        _figures([fit for fit in found.fits if _usual(fit) and fit["op"] == op]) for op in named
    ]


def _usual(fit: dict[str, Any]) -> bool:
    return fit["algorithm"] == BACKEND and not (fit["in_place"] and fit["op"] in EITHER_PLACE)


def _figures(fits: Sequence[dict[str, Any]]) -> OperationFigures:
    largest = max(fit["world_size"] for fit in fits)
    regimes = [fit for fit in fits if fit["world_size"] == largest]
    regimes = [fit for fit in regimes if fit["dtype"] == regimes[0]["dtype"]]
    regimes.sort(key=lambda fit: int(fit["min_bytes"]))
    first, last = regimes[0], regimes[-1]
    return OperationFigures(
        op=first["op"],
        world_size=largest,
        law=first["law"],
        alpha_s=first["alpha_s"],
        bandwidth_byte_per_s=last["bandwidth_byte_per_s"],
    )


def headline(found: TimedCollectives) -> str:
    """Say what an all-reduce's messages cost, and whether all results were right."""
    if found.failure is not None:
        return f"Failed: {wording.plain(found.failure, 300)}."
    right = f"{found.num_points} points, every result verified: {found.num_wrong} wrong elements."
    known = operations(found)
    if not known:
        return right
    one = next((figures for figures in known if figures.op == "all_reduce"), known[0])
    carried = (
        f", and a link carries {units.bytes_(one.bandwidth_byte_per_s)}/s"
        if one.bandwidth_byte_per_s
        else ""
    )
    name = wording.plain(one.op, 40)
    return (
        f"On {one.world_size} ranks a message of {name} costs {units.seconds(one.alpha_s)}"
        f"{carried}. {right}"
    )
