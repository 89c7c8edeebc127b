"""Every pair of unlike, hostile and damaged runs gets a verdict that can be written down."""

import json

import pytest
from rich.cells import cell_len

from scalebench.report.gate.table import render_verdict
from scalebench.report.tables.layout import Screen
from tests.builders.gated import gated, gated_run
from tests.builders.summaries import (
    gpu_rows,
    hostile_summary,
    make_summary,
    rated_rows,
    remembered_rows,
    traced_rows,
)

RUNS = {
    "hostile": hostile_summary,
    "usual": make_summary,
    "gpu": lambda: make_summary(gpu_rows()),
    "rated": lambda: make_summary(rated_rows()),
    "traced": lambda: make_summary(traced_rows()),
    "remembered": lambda: make_summary(remembered_rows()),
    "gated": gated_run,
}


@pytest.mark.parametrize("base", RUNS)
@pytest.mark.parametrize("new", RUNS)
def test_any_two_runs_can_be_judged_and_shown(base, new):
    result = gated(RUNS[base](), RUNS[new]())
    json.dumps(result.as_json(), allow_nan=False)
    assert result.exit_code in (0, 1, 3, 4)
    text = render_verdict(result, Screen(80), everything=True)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    for row in result.rows:
        assert row.reason, row
        assert (row.low is None) == (row.high is None)
        if row.low is not None:
            assert row.low <= row.change <= row.high
            assert row.min_detectable > 0 and 0 <= row.p_value <= 1
        if row.verdict == "regressed":
            worse = row.change if not row.higher_is_better else -row.change
            assert worse > row.floor
