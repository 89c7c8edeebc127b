"""What the cost model says next to what was measured; and a calibration as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from scalebench import units
from scalebench.analysis.projection.scores import predicted_rows, score
from scalebench.costmodel.links.fitted import LinkFit, Regime, Winner, crossovers
from scalebench.costmodel.links.nccl_tests.run import DTYPES, OPERATIONS
from scalebench.costmodel.links.profile import CalibratedPoint, LinkProfile
from scalebench.records.rows.steps import PredictedOperation
from scalebench.records.summary import Row
from scalebench.report.tables.layout import (
    RANKS,
    SHRINKING_CASE,
    Column,
    Screen,
    Table,
    pages,
    placed,
    value,
    value_of_each,
)
from scalebench.report.words import wording
from scalebench.spec.base import BACKEND, ONLY_IN_PLACE

NOTHING = wording.DASH
S = TypeVar("S")


def sentence(row: Row) -> str | None:
    """Say what the cost model makes of a measured row, next to the measurement; None: nothing."""
    told, error = row.prediction, row.prediction_error
    if error is None or row.step_s is None:
        return None
    efficiency = told.efficiency if told else None
    says = "this step" if efficiency is None else f"{100 * efficiency:.3g} %"
    way = "above" if error > 0 else "below"
    off = f"its step is {percent(abs(error))} {way} the measured one"
    low, high = (told.low_s, told.high_s) if told else (None, None)
    if low is None or high is None:
        return f"The cost model predicts {says}: {off}."
    ends = row.step_s.ends
    apart = ends is not None and (ends[1] < low or ends[0] > high)
    agrees = ", and the measurement contradicts its interval" if apart else ""
    return f"The cost model predicts {says}: {off}{agrees}."


def _interval(row: Row) -> str:
    told = row.prediction
    return wording.span_s(told.low_s, told.high_s) if told else NOTHING


def signed_percent(ratio: float | None) -> str:
    """Return a ratio as percent with its sign; a dash for None."""
    if ratio is None:
        return NOTHING
    sign = wording.MINUS if ratio < 0 else "+"
    return f"{sign}{abs(100 * ratio):.1f} %"


def unit(rows: Sequence[Row]) -> str:
    """Say what the predictions of rows start from."""
    bases = sorted({row.prediction.base_world_size for row in rows if row.prediction})
    start = " or ".join(f"N={n}" for n in bases) or "N=1"
    return f"steps predicted from {start} and calibrated links"


def _base_notes(rows: Sequence[Row]) -> list[str]:
    bases = {
        (row.case, row.prediction.base_world_size)
        for row in rows
        if row.prediction is not None and row.prediction.base_world_size > 1
    }
    return [
        f"{wording.plain(case, 64)}: predicted from N={n}, the smallest that shows what it sends; "
        f"N={n} itself is the base and no test"
        for case, n in sorted(bases)
    ]


def _from_smaller(row: Row) -> str:
    return signed_percent(row.prediction.left_out.prediction_error if row.prediction else None)


COLUMNS: tuple[Column[Row], ...] = (
    SHRINKING_CASE,
    RANKS,
    value("measured", lambda r: r.step_s.value if r.step_s else None, units.seconds),
    value("predicted", lambda r: r.predicted_step_s, units.seconds),
    Column("90 % interval", _interval, from_width=90),
    Column("error", lambda r: signed_percent(r.prediction_error)),
    Column("from smaller N", _from_smaller),
)


def columns_of(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Return the table's columns; without any N that smaller ones predict, not the last one."""
    some = any(_from_smaller(row) != NOTHING for row in rows)
    return COLUMNS if some else COLUMNS[:-1]


def footnotes(rows: Sequence[Row]) -> list[str]:
    """Say how good the predictions of a suite are, and those of other laws for the largest N."""
    found = score(rows)
    if found is None:
        return []
    level = f"{100 * found['confidence']:.0f} %"
    several = "s" if found["num_rows"] > 1 else ""
    within = ""
    if found["num_rows"] > 1:
        within = f", {found['num_within']} of them within the {level} interval"
    meaning = f"error = (predicted {wording.MINUS} measured)/measured"
    notes = [
        f"mean error {percent(found['mean_error'])} over {found['num_rows']} row{several}{within}; "
        f"{meaning}"
    ]
    beyond = dict.fromkeys(
        text for row in rows if row.prediction for text in row.prediction.outside
    )
    notes += _base_notes(rows)
    notes += [f"beyond the link's support: {text}" for text in beyond]
    if found["left_out"]:
        by_law = sorted(found["left_out_mean_error"].items(), key=lambda pair: pair[1])
        told = ", ".join(f"{law} {percent(error)}" for law, error in by_law)
        cases = len(found["left_out"])
        of_cases = f"mean error of {cases} cases" if cases > 1 else "error"
        notes.append(f"largest N from smaller ones, {of_cases}: {told}")
    return notes


def percent(ratio: float) -> str:
    """Return a ratio as percent without its sign."""
    return f"{100 * ratio:.1f} %" if ratio < 0.1 else f"{100 * ratio:.0f} %"


def _operations(rows: Sequence[Row]) -> list[tuple[Row, PredictedOperation]]:
    told = predicted_rows(rows)
    return [(row, op) for row in told if row.prediction for op in row.prediction.operations]


def _left_out(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = (score(rows) or {}).get("left_out", [])
    return found if predicted_rows(rows) else []


def _law_columns(lines: Sequence[Mapping[str, Any]]) -> list[Column[Mapping[str, Any]]]:
    laws = dict.fromkeys(law for found in lines for law in found["errors"])
    return [
        Column("case", lambda found: wording.plain(found["case"], 64), numeric=False),
        Column("N", lambda found: str(found["world_size"])),
        Column("fitted on N", lambda found: ", ".join(map(str, found["fitted_on"]))),
        *value_of_each(
            {law: law for law in laws}, lambda found, law: found["errors"].get(law), signed_percent
        ),
    ]


PREDICTIONS = Table(
    "what the cost model says",
    columns_of,
    predicted_rows,
    heading=lambda rows: f"Predicted steps: {unit(predicted_rows(rows))}",
    remark=lambda rows: unit(predicted_rows(rows)),
    notes=footnotes,
)
tables = pages(
    PREDICTIONS,
    Table(
        "Operations of a step, predicted and measured",
        placed(
            Column("operation", lambda one: wording.plain(one.op, 40), numeric=False),
            Column("size", lambda one: units.bytes_(one.size_bytes)),
            Column("asked for at", lambda one: units.seconds(one.ready_s)),
            Column("predicted", lambda one: units.seconds(one.predicted_s)),
            value("measured", lambda one: one.measured_s, units.seconds),
        ),
        _operations,
        about=(
            "Measured: from the last rank's arrival to the end, median over the traced steps. Two "
            "operations in flight at once share the link, and each lasts as long as both."
        ),
        folded=True,
    ),
    Table(
        "The largest N from smaller ones, by several laws",
        _law_columns,
        _left_out,
        about=("Error of the predicted step. Every law was fitted without the N that it predicts."),
        folded=True,
    ),
)


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
