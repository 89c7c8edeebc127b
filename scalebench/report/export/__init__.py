"""A run in the formats of other tools. One file for each format; `FORMATS` lists them.

An exporter is a pure function of the stored run and its summary; nothing is measured and nothing
heavy is imported before a format needs it. What is null in the summary is null in the export,
with its reason where the format can hold one, and is left out where it cannot.
"""

from collections.abc import Callable
from dataclasses import dataclass

from scalebench.analysis.run import StoredRun
from scalebench.records.summary import Summary
from scalebench.report.export.chrome_trace import export_chrome_trace
from scalebench.report.export.frames import (
    export_bencher,
    export_bigger,
    export_csv,
    export_parquet,
    export_pytest_benchmark,
    export_smaller,
)
from scalebench.report.export.junit import export_junit
from scalebench.report.export.measures import export_openmetrics

Export = Callable[[StoredRun, Summary], str | bytes]


@dataclass(frozen=True)
class Format:
    """A format that a run can be exported to.

    Attributes:
        export: Makes the file's content.
        only_good: It holds only rows that succeeded; it has no place for the others.
    """

    export: Export
    only_good: bool = False


FORMATS: dict[str, Format] = {
    "pytest-benchmark": Format(export_pytest_benchmark),
    "github-action-benchmark-bigger": Format(export_bigger, only_good=True),
    "github-action-benchmark-smaller": Format(export_smaller, only_good=True),
    "bencher": Format(export_bencher, only_good=True),
    "openmetrics": Format(export_openmetrics),
    "junit": Format(export_junit),
    "csv": Format(export_csv),
    "parquet": Format(export_parquet),
    "chrome-trace": Format(export_chrome_trace),
}
