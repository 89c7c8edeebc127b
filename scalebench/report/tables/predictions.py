"""What the cost model says next to what was measured: for terminal, Markdown and page."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalebench import units
from scalebench.analysis.projection.scores import predicted_rows, score
from scalebench.records.rows.prediction import PredictedOperation
from scalebench.records.summary import Row
from scalebench.report.tables.layout import (
    RANKS,
    SHRINKING_CASE,
    Column,
    Table,
    pages,
    placed,
    value,
    value_of_each,
)
from scalebench.report.words import wording

NOTHING = wording.DASH


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
