"""Which sizes the page projects, with what changed, and why not."""

import pytest

from scalebench.analysis.page_data import extrapolation
from scalebench.analysis.page_data.extrapolation import Extrapolation, extrapolate
from scalebench.analysis.projection.rows import Projection
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.errors import ScalebenchError
from tests.builders.runs import make_run
from tests.builders.summaries import make_row, make_summary


@pytest.fixture
def asked(monkeypatch):
    """What was projected: sizes and change; the answer has the change in its name."""
    calls = []

    def project(run, sizes, what_if=AS_MEASURED, summary=None):
        calls.append((sizes, what_if, summary.run_id))
        return Projection.without_steps(repr(what_if), "")

    monkeypatch.setattr(extrapolation, "project", project)
    return calls


ROWS = [
    make_row("plain", 1, strategy="plain"),
    make_row(world_size=3),
    make_row(world_size=2),
    make_row("zero1", 3),
    make_row(world_size=5, oversubscribed=True),
    make_row(world_size=7, status="failed", step_s=None),
]


def test_sizes_are_the_measured_ones_and_five_doublings_of_the_largest(asked):
    run, summary = make_run([]), make_summary(ROWS)
    found = extrapolate(run, summary)
    sizes = [2, 3, 6, 12, 24, 48, 96]
    changes = [WhatIf(), WhatIf(2.0), WhatIf(10.0), WhatIf(1.0, 16)]
    assert asked == [(sizes, change, summary.run_id) for change in changes]
    assert found.reason is None and found.as_measured.run_id == repr(WhatIf())
    assert {name: one.run_id for name, one in found.changed.items()} == {
        "2 times the bandwidth": repr(WhatIf(2.0)),
        "10 times the bandwidth": repr(WhatIf(10.0)),
        "gradients of 16 bits, conversion not counted": repr(WhatIf(1.0, 16)),
    }


@pytest.mark.parametrize("rows", [[], ROWS[:1], [ROWS[0], *ROWS[4:]]])
def test_without_several_ranks_that_were_measured_nothing_is_projected(asked, rows):
    found = extrapolate(make_run([]), make_summary(rows))
    assert found == Extrapolation(None, {}, "nothing was measured on more than one rank")
    assert asked == []


def test_the_reason_is_told_without_the_folder(monkeypatch):
    run = make_run([])

    def project(*_, **__):
        raise ScalebenchError(f"{run.paths.root} supports no projection: no link.")

    monkeypatch.setattr(extrapolation, "project", project)
    found = extrapolate(run, make_summary(ROWS))
    assert found == Extrapolation(None, {}, "no link.")
