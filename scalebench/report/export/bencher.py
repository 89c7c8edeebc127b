"""Bencher Metric Format: benchmark → measure → ``value``, ``lower_value``, ``upper_value``.

The bounds are those of the 95 % interval and are left out where there is none. A measure is named
like the field of ``summary.json``, with dashes as Bencher's slugs have them; its unit is the
suffix of its name. Source: https://bencher.dev/docs/reference/bencher-metric-format
"""

import json

from scalebench.analysis.run import StoredRun
from scalebench.errors import ScalebenchError
from scalebench.records.summary import Summary
from scalebench.report.export.measures import Number, numbers, row_name, split
from scalebench.report.words.plain_text import plain

MAX_NAME = 1024
"""Bencher refuses longer names of benchmarks."""


def export_bencher(run: StoredRun, summary: Summary) -> str:
    """Return the rows that went well.

    Raises:
        ScalebenchError: None did.
    """
    found = {
        row_name(row)[:MAX_NAME]: {
            measure.field.replace("_", "-"): _metric(number) for measure, number in numbers(row)
        }
        for row in split(summary.rows)[0]
    }
    if not found:
        raise ScalebenchError(
            f"No row of {plain(summary.run_id)} succeeded: there is nothing for Bencher to store. "
            "`scalebench show` says what became of them."
        )
    return json.dumps(found, indent=1, allow_nan=False)


def _metric(number: Number) -> dict[str, float]:
    metric = {"value": number.value}
    if number.low is not None and number.high is not None:
        metric |= {"lower_value": number.low, "upper_value": number.high}
    return metric
