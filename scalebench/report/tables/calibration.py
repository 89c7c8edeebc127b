"""A calibration as tables for a terminal: nccl-tests' columns, the fits, who wins where."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from scalebench import units
from scalebench.costmodel.links.fitted import LinkFit, Regime
from scalebench.costmodel.links.nccl_tests.operations import DTYPES, OPERATIONS
from scalebench.costmodel.links.points import Winner, crossovers
from scalebench.costmodel.links.profile import CalibratedPoint, LinkProfile
from scalebench.report.tables.layout import Column, Screen, value
from scalebench.report.words import wording
from scalebench.spec.collectives import BACKEND, ONLY_IN_PLACE

S = TypeVar("S")


def render_calibration(profile: LinkProfile, said: Sequence[str], screen: Screen) -> str:
    """Return a calibration as text for a terminal; ``said``: sentences that stand at its end."""
    screen.lines(map(_text, profile.notices), "yellow")
    for title, points in _sweeps(profile.points):
        _titled_table(title, POINT_COLUMNS, points, screen)
    show_fits(profile, screen)
    screen.lines(map(_text, said))
    return screen.text()


def show_fits(profile: LinkProfile, screen: Screen) -> None:
    """Show what a calibration's points come to: fits, and which algorithm wins where."""
    fits = profile.fits
    if fits:
        rows = [Fitted(_operation(profile, fit), fit, one) for fit in fits for one in fit.regimes]
        types = {fit.dtype for fit in fits}
        columns = [column for column in FIT_COLUMNS if len(types) > 1 or column.name != "type"]
        of = "" if len(types) > 1 else f" of {types.pop()}"
        _titled_table(f"fits{of}, 95 % intervals", columns, rows, screen)
    screen.lines((_poor(profile, fit) for fit in fits if fit.poor), "yellow")
    screen.lines(_text(f"not fitted: {why}") for why in profile.refused)
    winners = crossovers(profile.points, fits)
    if winners:
        title = "all-reduce: which algorithm is fastest"
        _titled_table(title, WINNER_COLUMNS, winners, screen)


def _titled_table(
    title: str, columns: Sequence[Column[S]], rows: Sequence[S], screen: Screen
) -> None:
    screen.line()
    screen.line(_text(title), "bold")
    screen.table([replace(c, wraps=not (c.numeric and c.once)) for c in columns], rows)


def _sweeps(points: Sequence[CalibratedPoint]) -> list[tuple[str, list[CalibratedPoint]]]:
    """Return the points by operation, dtype, N, algorithm, and whether in place; with a title."""
    groups: dict[str, list[CalibratedPoint]] = {}
    for point in points:
        place = {None: "", True: ", in place", False: ", out of place"}[point.in_place]
        by = "" if point.algorithm == BACKEND else f" ({point.algorithm}, by scalebench)"
        title = f"{point.op}{by}, N={point.world_size}, {point.dtype}{place}{_table_of(point)}"
        groups.setdefault(title, []).append(point)
    return list(groups.items())


def _table_of(of: CalibratedPoint | LinkFit) -> str:
    return f", {of.link}" if ", " in of.link else ""


def _count(point: CalibratedPoint) -> str:
    """Return the elements of a call as nccl-tests counts them: one rank's where ranks share."""
    item = dict(DTYPES.values()).get(point.dtype)
    if item is None or point.op == "all_to_all_uneven":
        return wording.DASH
    shares = point.op in OPERATIONS and OPERATIONS[point.op].shares
    return str(point.size_bytes // item // (point.world_size if shares else 1))


def _num_wrong(point: CalibratedPoint) -> str:
    if point.failed_check:
        return "> 0"
    return wording.DASH if point.num_wrong is None else str(point.num_wrong)


def _giga(rate: float) -> str:
    return units.significant(rate / 1e9)


POINT_COLUMNS: tuple[Column[CalibratedPoint], ...] = (
    Column("size (B)", lambda p: str(p.size_bytes)),
    Column("count", _count),
    Column("type", lambda p: p.dtype, numeric=False),
    Column("redop", lambda p: p.redop or "none", numeric=False),
    value("time (us)", lambda p: 1e6 * p.time_s, units.significant),
    value("p99 (us)", lambda p: p.p99_s, lambda s: units.significant(1e6 * s)),
    value("algbw (GB/s)", lambda p: p.algbw_byte_per_s, _giga),
    value("busbw (GB/s)", lambda p: p.busbw_byte_per_s, _giga),
    Column("#wrong", _num_wrong),
)


def _operation(profile: LinkProfile, fit: LinkFit) -> str:
    """Name what was fitted; in place where that is a choice, as it is for all of nccl-tests."""
    if fit.algorithm != BACKEND:
        return f"{fit.op} ({fit.algorithm})"
    is_choice = fit.op not in ONLY_IN_PLACE or not profile.machine
    place = ", in place" if fit.in_place and is_choice else ""
    return f"{fit.op}{place}{_table_of(fit)}"


def _relative(reach: float, value: float) -> str:
    """Write half an interval as percent of the value; a dash where that says nothing."""
    if value <= 0 or reach >= value:
        return "± 100 %"
    return f"± {units.significant(100 * reach / value, digits=2)} %"


def _poor(profile: LinkProfile, fit: LinkFit) -> str:
    return _text(
        f"poor fit: {_operation(profile, fit)}, N={fit.world_size}, {fit.dtype}: {fit.poor}"
    )


class Fitted(NamedTuple):
    """A range of sizes, under the name of its operation."""

    operation: str
    fit: LinkFit
    regime: Regime


def _alpha_half_width(of: Fitted) -> float:
    return (of.regime.alpha_high_s - of.regime.alpha_low_s) / 2


def _bandwidth_interval(of: Fitted) -> str:
    bandwidth = of.regime.bandwidth_byte_per_s
    low, high = of.regime.bandwidth_low_byte_per_s, of.regime.bandwidth_high_byte_per_s
    return _relative((high - low) / 2, bandwidth) if bandwidth and low and high else wording.DASH


FIT_COLUMNS: tuple[Column[Fitted], ...] = (
    Column("operation", lambda of: of.operation, numeric=False, once=True),
    Column("N", lambda of: str(of.fit.world_size), once=True),
    Column("type", lambda of: of.fit.dtype, numeric=False),
    Column("from", lambda of: units.bytes_(of.regime.min_bytes)),
    Column("to", lambda of: units.bytes_(of.regime.max_bytes)),
    Column("α", lambda of: units.seconds(of.regime.alpha_s, _alpha_half_width(of))),
    Column("", lambda of: _relative(_alpha_half_width(of), of.regime.alpha_s)),
    value("B", lambda of: of.regime.bandwidth_byte_per_s, lambda b: f"{units.bytes_(b)}/s"),
    Column("", _bandwidth_interval),
    Column("off by", lambda of: f"{units.significant(100 * of.regime.error_ratio, digits=2)} %"),
    Column("law", lambda of: of.fit.law, numeric=False),
)

WINNER_COLUMNS: tuple[Column[Winner], ...] = (
    Column("N", lambda w: str(w.world_size)),
    Column("from", lambda w: units.bytes_(w.min_bytes)),
    Column("to", lambda w: units.bytes_(w.max_bytes)),
    Column("fastest", lambda w: w.measured, numeric=False),
    Column("by the model", lambda w: w.predicted or wording.DASH, numeric=False),
)


def _text(content: str) -> str:
    return wording.plain(content, 300)
