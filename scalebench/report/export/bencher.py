"""Bencher Metric Format: benchmark → measure → ``value``, ``lower_value``, ``upper_value``.

The bounds are those of the 95 % interval and are left out where there is none. A measure is named
like the field of ``summary.json``, with dashes as Bencher's slugs have them; its unit is the
suffix of its name. Source: https://bencher.dev/docs/reference/bencher-metric-format
"""

import json

from scalebench.analysis.run import StoredRun
from scalebench.records.summary import Summary
from scalebench.report.export.measures import (
    Number,
    collective_numbers,
    nothing_for,
    numbers,
    row_name,
    split,
)

MAX_NAME = 1024
"""Bencher refuses longer names of benchmarks."""


def export_bencher(run: StoredRun, summary: Summary) -> str:
    """Return the rows that went well, and collectives.

    Raises:
        ScalebenchError: There is neither.
    """
    rows = {row_name(row): numbers(row) for row in split(summary.rows)[0]}
    found = {
        name[:MAX_NAME]: {
            measure.field.replace("_", "-"): _metric(number) for measure, number in of
        }
        for name, of in (rows | collective_numbers(summary)).items()
    }
    if not found:
        raise nothing_for("Bencher", summary)
    return json.dumps(found, indent=1, allow_nan=False)


def _metric(number: Number) -> dict[str, float]:
    metric = {"value": number.value}
    if number.low is not None and number.high is not None:
        metric |= {"lower_value": number.low, "upper_value": number.high}
    return metric
