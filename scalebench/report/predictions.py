"""What the cost model says beside what was measured, as tables: for terminal, Markdown and page."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from scalebench import units
from scalebench.model_scores import predicted_rows, score
from scalebench.report import wording
from scalebench.report.listing import PlainTable
from scalebench.report.terminal import CASE_WIDTHS, line, to_ascii
from scalebench.summary import Row

TITLE = "what the cost model says"
UNIT = "steps predicted from N=1 and calibrated links"
HEADER = ("case", "N", "measured", "predicted", "90 % interval", "error", "from smaller N")
NOTHING = wording.DASH


def sentence(row: Row) -> str | None:
    """Say what the cost model makes of a measured row, beside the measurement; None: nothing."""
    told, error = row.prediction or {}, row.prediction_error
    if error is None or row.step_s is None:
        return None
    efficiency = told.get("efficiency")
    says = "this step" if efficiency is None else f"{100 * efficiency:.3g} %"
    way = "above" if error > 0 else "below"
    off = f"its step is {percent(abs(error))} {way} the measured one"
    low, high = told.get("low_s"), told.get("high_s")
    if low is None or high is None:
        return f"The cost model predicts {says}: {off}."
    apart = (
        row.step_s.high is not None
        and row.step_s.low is not None
        and (row.step_s.high < low or row.step_s.low > high)
    )
    agrees = ", and the measurement contradicts its interval" if apart else ""
    return f"The cost model predicts {says}: {off}{agrees}."


def cells(row: Row) -> tuple[str, ...]:
    """Return one line of the table."""
    told: Mapping[str, Any] = row.prediction or {}
    left_out = (told.get("left_out") or {}).get("prediction_error")
    measured = row.step_s.value if row.step_s else None
    return (
        wording.plain(row.case, 64),
        str(row.world_size),
        NOTHING if measured is None else units.seconds(measured),
        NOTHING if row.predicted_step_s is None else units.seconds(row.predicted_step_s),
        _interval(told),
        signed_percent(row.prediction_error),
        signed_percent(left_out),
    )


def _interval(told: Mapping[str, Any]) -> str:
    low, high = told.get("low_s"), told.get("high_s")
    if low is None or high is None:
        return NOTHING
    return f"{units.seconds(low)} to {units.seconds(high)}"


def signed_percent(ratio: float | None) -> str:
    """Return a ratio as percent with its sign; a dash for None."""
    if ratio is None:
        return NOTHING
    sign = wording.MINUS if ratio < 0 else "+"
    return f"{sign}{abs(100 * ratio):.1f} %"


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
        text for row in rows for text in (row.prediction or {}).get("outside", ())
    )
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


def prediction_parts(rows: Sequence[Row], width: int, ascii_only: bool) -> list[RenderableType]:
    """Return what a terminal shows below the budget of a suite; without predictions nothing."""
    told = predicted_rows(rows)
    if not told:
        return []
    shown = to_ascii if ascii_only else str
    columns = [i for i in range(len(HEADER)) if width >= 90 or HEADER[i] != "90 % interval"]
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold"
    )
    for index in columns:
        words = {"justify": "left", "max_width": CASE_WIDTHS[0]} if index == 0 else {}
        table.add_column(HEADER[index], **({"justify": "right", "no_wrap": True} | words))  # type: ignore[arg-type]
    previous = None
    for row in told:
        line_of = list(cells(row))
        if previous == row.case:
            line_of[0] = ""
        previous = row.case
        table.add_row(*(Text(shown(line_of[index])) for index in columns))
    title = Text.assemble((TITLE, "bold"), ("  " + UNIT, "dim"))
    notes = [line(note, ascii_only, "dim") for note in footnotes(rows)]
    return [Text(""), title, table, *notes]


def tables(rows: Sequence[Row]) -> tuple[PlainTable, ...]:
    """Return the tables of one suite for the page; none without predictions."""
    told = predicted_rows(rows)
    if not told:
        return ()
    steps = PlainTable(
        f"Predicted steps: {UNIT}",
        " ".join(f"{note[0].upper()}{note[1:]}." for note in footnotes(rows)),
        HEADER,
        tuple(cells(row) for row in told),
    )
    return tuple(t.shortened() for t in (steps, _operations(told), _laws(rows)) if t.lines)


def _operations(rows: Sequence[Row]) -> PlainTable:
    lines = [
        (
            wording.plain(row.case, 64),
            str(row.world_size),
            wording.plain(found["op"], 40),
            units.bytes_(found["size_bytes"]),
            units.seconds(found["ready_s"]),
            units.seconds(found["predicted_s"]),
            NOTHING if found["measured_s"] is None else units.seconds(found["measured_s"]),
        )
        for row in rows
        for found in (row.prediction or {}).get("operations", ())
    ]
    return PlainTable(
        "Operations of a step, predicted and measured",
        "Measured: from the last rank's arrival to the end, median over the traced steps. Two "
        "operations in flight at once share the link, and each lasts as long as both.",
        ("case", "N", "operation", "size", "asked for at", "predicted", "measured"),
        tuple(lines),
        words=frozenset({0, 2}),
        folded=True,
    )


def _laws(rows: Sequence[Row]) -> PlainTable:
    left_out = (score(rows) or {}).get("left_out", [])
    names = tuple(dict.fromkeys(law for found in left_out for law in found["errors"]))
    lines = [
        (
            wording.plain(found["case"], 64),
            str(found["world_size"]),
            ", ".join(map(str, found["fitted_on"])),
            *(signed_percent(found["errors"].get(law)) for law in names),
        )
        for found in left_out
    ]
    return PlainTable(
        "The largest N from smaller ones, by several laws",
        "Error of the predicted step. Every law was fitted without the N that it predicts.",
        ("case", "N", "fitted on N", *names),
        tuple(lines),
        folded=True,
    )
