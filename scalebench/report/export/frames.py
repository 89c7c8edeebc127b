"""The rows and the raw steps as pandas frames: for CSV, Parquet, figures and notebooks.

CSV and Parquet are `rows_frame`, and of a run of collectives alone a line for each fitted regime:
estimates as ``name``, ``name_low``, ``name_high``, ``name_n``; nested values as JSON text, among
them ``unavailable`` with the reason for every null.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scalebench.analysis.run import StoredRun
from scalebench.errors import EnvironmentUnfit
from scalebench.records.summary import SUMMARY_FORMAT, Estimate, Row, Summary
from scalebench.report.words.plain_text import plain

if TYPE_CHECKING:
    import pandas as pd

ESTIMATES = tuple(
    name
    for name, field in Row.model_fields.items()
    if Estimate in getattr(field.annotation, "__args__", ())
)
"""Fields of a row that are estimates; each becomes name, name_low, name_high, name_n."""

_INTEGERS = tuple(
    name
    for name, field in Row.model_fields.items()
    if int in (field.annotation, *getattr(field.annotation, "__args__", ()))
)
_CORRECTNESS = {
    "gradient_check": "status",
    **{name: name for name in ("gradient_deviation", "loss_deviation", "tolerance")},
}
"""Column → field of a row's correctness."""
_FORMULA = ("=", "+", "-", "@")


def rows_frame(summaries: Sequence[Summary]) -> pd.DataFrame:
    """Return one flat line per row of each run.

    Nested values (settings, memory, budget, …) are JSON text; stamps are joined by ``;``, and
    a semicolon within one is written as a comma.
    """
    import pandas as pd

    frame = pd.DataFrame(_lines(summaries), columns=_COLUMNS)
    whole = [*_INTEGERS, *(f"{name}_n" for name in ESTIMATES)]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def run_frame(summary: Summary) -> pd.DataFrame:
    """Return a run's rows, or its fitted collectives where it trained nothing."""
    import pandas as pd

    fits = _fits(summary)
    if fits is None:
        return rows_frame([summary])
    return pd.DataFrame(fits, columns=None if fits else ["run_id"])


def rows_csv(summaries: Sequence[Summary]) -> str:
    """Return `rows_frame` as CSV, without pandas: its import takes longer than a table.

    Each text is one line, with an apostrophe where a spreadsheet would take it for a formula.
    """
    return _csv(_COLUMNS, _lines(summaries))


def _lines(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    return [
        {"run_id": summary.run_id, **flatten(row)} for summary in summaries for row in summary.rows
    ]


def _fits(summary: Summary) -> list[dict[str, Any]] | None:
    if summary.rows or summary.collectives is None:
        return None
    return [
        {"run_id": summary.run_id, **{name: _scalar(name, value) for name, value in fit.items()}}
        for fit in summary.collectives.fits
    ]


def _csv(columns: Iterable[str], lines: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _defused(value) for name, value in line.items()} for line in lines)
    return text.getvalue()


def flatten(row: Row | None) -> dict[str, Any]:
    """Return a row as one flat record; None: all its fields are null."""
    flat: dict[str, Any] = {}
    dumped = row.model_dump(mode="json", exclude={"samples"}) if row else {}
    for name in Row.model_fields:
        if name in ESTIMATES:
            ends = {f"{name}_{end}": end for end in ("low", "high", "n")}
            flat |= _parts(getattr(row, name, None), {name: "value", **ends})
        elif name == "correctness":
            flat |= _parts(getattr(row, name, None), _CORRECTNESS)
        elif name != "samples":
            flat[name] = _scalar(name, dumped.get(name))
    return flat


def _parts(found: object | None, fields: Mapping[str, str]) -> dict[str, Any]:
    return {column: getattr(found, field, None) for column, field in fields.items()}


def _scalar(name: str, value: Any) -> Any:
    if name == "stamps" and value is not None:
        return ";".join(stamp.replace(";", ",") for stamp in value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


_COLUMNS = ("run_id", *flatten(None))


def _defused(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def export_csv(run: StoredRun, summary: Summary) -> str:
    """Return the rows as CSV; what a spreadsheet would take for a formula is defused."""
    fits = _fits(summary)
    if fits is None:
        return rows_csv([summary])
    return _csv(dict.fromkeys(["run_id", *(name for fit in fits for name in fit)]), fits)


def export_parquet(run: StoredRun, summary: Summary) -> bytes:
    """Return the rows as Parquet; the file's metadata names run and format.

    Raises:
        EnvironmentUnfit: pyarrow, which writes it, is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise EnvironmentUnfit(
            "Parquet is written by pyarrow, which is not installed: "
            "pip install 'scalebench[parquet]'. --format csv needs nothing more."
        ) from error
    table = pyarrow.Table.from_pandas(run_frame(summary), preserve_index=False)
    about = {"scalebench.format": SUMMARY_FORMAT, "scalebench.run_id": summary.run_id}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **about})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()
