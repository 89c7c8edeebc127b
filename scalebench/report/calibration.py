"""A calibration as tables for a terminal: nccl-tests' columns, the fits, who wins where."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scalebench import units
from scalebench.collectives import BACKEND, EITHER_PLACE
from scalebench.costmodel.crossover import Winner, crossovers
from scalebench.costmodel.fitted_link import LinkFit, Regime
from scalebench.costmodel.link_profile import CalibratedPoint, LinkProfile
from scalebench.report import wording
from scalebench.report.terminal import NARROWEST, line, printed, to_ascii

POINT_HEADER = (
    *("size (B)", "count", "type", "redop", "time (us)", "p99 (us)"),
    *("algbw (GB/s)", "busbw (GB/s)", "#wrong"),
)
FIT_HEADER = ("operation", "N", "type", "from", "to", "α", "", "B", "", "off by", "law")
WINNER_HEADER = ("N", "from", "to", "fastest", "by the model")
WORDS = frozenset({"operation", "type", "redop", "law", "fastest", "by the model"})
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float64": 8, "int32": 4}


def render_calibration(
    profile: LinkProfile,
    width: int = 100,
    color: bool = False,
    ascii_only: bool = False,
    said: Sequence[str] = (),
) -> str:
    """Return a calibration as text for a terminal.

    Args:
        profile: The calibration.
        width: As for `render_table`, like the next two.
        color: Whether ANSI styles are written.
        ascii_only: Write nothing but ASCII.
        said: Sentences that stand at its end.
    """
    width = max(width, NARROWEST)
    parts: list[RenderableType] = [
        line(_text(notice), ascii_only, "yellow") for notice in profile.notices
    ]
    for title, points in _sweeps(profile.points):
        parts += [_title(title, ascii_only), _table(POINT_HEADER, map(_point, points), ascii_only)]
    parts += fit_parts(profile, ascii_only)
    parts += [line(_text(sentence), ascii_only) for sentence in said]
    return printed(parts, width, color, ascii_only)


def fit_parts(profile: LinkProfile, ascii_only: bool) -> list[RenderableType]:
    """Return what a calibration's points come to: fits, laws, which algorithm wins where."""
    parts: list[RenderableType] = []
    if profile.fits:
        rows = (_fit(fit, regime) for fit in profile.fits for regime in fit.regimes)
        parts += [_title("fits, 95 % intervals", ascii_only), _table(FIT_HEADER, rows, ascii_only)]
    parts += [line(_poor(fit), ascii_only, "yellow") for fit in profile.fits if fit.poor]
    parts += [line(_text(f"not fitted: {why}"), ascii_only) for why in profile.refused]
    for naming in profile.namings:
        told = f"{naming.op}: {naming.name or 'no law named'}: {naming.reason}"
        parts.append(line(_text(told), ascii_only))
    winners = crossovers(profile.points, profile.fits)
    if winners:
        parts.append(_title("all-reduce: which algorithm is fastest", ascii_only))
        parts.append(_table(WINNER_HEADER, map(_winner, winners), ascii_only))
    return parts


def _sweeps(points: Sequence[CalibratedPoint]) -> list[tuple[str, list[CalibratedPoint]]]:
    """Return the points by operation, dtype, N, algorithm, and whether in place; with a title."""
    groups: dict[str, list[CalibratedPoint]] = {}
    for point in points:
        place = {None: "", True: ", in place", False: ", out of place"}[point.in_place]
        by = "" if point.algorithm == BACKEND else f" ({point.algorithm}, by scalebench)"
        title = f"{point.op}{by}, N={point.world_size}, {point.dtype}{place}"
        groups.setdefault(title, []).append(point)
    return list(groups.items())


def _point(point: CalibratedPoint) -> tuple[str, ...]:
    busbw = point.busbw_byte_per_s
    item = ITEM_BYTES.get(point.dtype)
    return (
        str(point.size_bytes),
        wording.DASH if item is None else str(point.size_bytes // item),
        point.dtype,
        point.redop or "none",
        _microseconds(point.time_s),
        wording.DASH if point.p99_s is None else _microseconds(point.p99_s),
        units.significant(point.algbw_byte_per_s / 1e9),
        wording.DASH if busbw is None else units.significant(busbw / 1e9),
        str(point.num_wrong),
    )


def _microseconds(seconds: float) -> str:
    return units.significant(seconds * 1e6)


def _fit(fit: LinkFit, regime: Regime) -> tuple[str, ...]:
    low, high = regime.bandwidth_low_byte_per_s, regime.bandwidth_high_byte_per_s
    bandwidth = regime.bandwidth_byte_per_s
    alpha_reach = (regime.alpha_high_s - regime.alpha_low_s) / 2
    return (
        _operation(fit),
        str(fit.world_size),
        fit.dtype,
        units.bytes_(regime.min_bytes),
        units.bytes_(regime.max_bytes),
        units.seconds(regime.alpha_s, alpha_reach),
        _relative(alpha_reach, regime.alpha_s),
        wording.DASH if bandwidth is None else f"{units.bytes_(bandwidth)}/s",
        _relative((high - low) / 2, bandwidth) if bandwidth and low and high else wording.DASH,
        units.percent(regime.error_ratio),
        fit.law,
    )


def _operation(fit: LinkFit) -> str:
    if fit.algorithm != BACKEND:
        return f"{fit.op} ({fit.algorithm})"
    return f"{fit.op}, in place" if fit.op in EITHER_PLACE and fit.in_place else fit.op


def _relative(reach: float, value: float) -> str:
    """Write half an interval as percent of the value; a dash where that says nothing."""
    if value <= 0 or reach >= value:
        return "± 100 %"
    return f"± {units.significant(100 * reach / value, digits=2)} %"


def _poor(fit: LinkFit) -> str:
    return _text(f"poor fit: {_operation(fit)}, N={fit.world_size}, {fit.dtype}: {fit.poor}")


def _winner(winner: Winner) -> tuple[str, ...]:
    return (
        str(winner.world_size),
        units.bytes_(winner.min_bytes),
        units.bytes_(winner.max_bytes),
        winner.measured,
        winner.predicted or wording.DASH,
    )


def _title(text: str, ascii_only: bool) -> RenderableType:
    return Padding(line(_text(text), ascii_only, "bold"), (1, 0, 0, 0))


def _text(content: str) -> str:
    return wording.plain(content, 300)


def _table(header: Sequence[str], rows: Iterable[tuple[str, ...]], ascii_only: bool) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    for name in header:
        shown = to_ascii(name) if ascii_only else name
        table.add_column(shown, justify="left" if name in WORDS else "right", overflow="fold")
    for cells in rows:
        table.add_row(*(Text(to_ascii(cell) if ascii_only else cell) for cell in cells))
    return table
