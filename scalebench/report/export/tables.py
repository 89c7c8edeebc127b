"""The rows as one flat table: CSV for anything, Parquet with its types for dataframes.

Both are `scalebench.report.export.frames.rows_frame`, and of a run of collectives alone a line for
each fitted regime: estimates as ``name``, ``name_low``,
``name_high``, ``name_n``; nested values as JSON text, among them ``unavailable`` with the reason
for every null.
"""

import io

from scalebench.analysis.run import StoredRun
from scalebench.errors import EnvironmentUnfit
from scalebench.records.summary import SUMMARY_FORMAT, Summary


def export_csv(run: StoredRun, summary: Summary) -> str:
    """Return the rows as CSV; what a spreadsheet would take for a formula is defused."""
    from scalebench.report.export.frames import as_csv, run_frame

    return as_csv(run_frame(summary))


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
    from scalebench.report.export.frames import run_frame

    table = pyarrow.Table.from_pandas(run_frame(summary), preserve_index=False)
    about = {"scalebench.format": SUMMARY_FORMAT, "scalebench.run_id": summary.run_id}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **about})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()
