"""One sentence on top says that the machine was not quiet."""

import pytest

from scalebench.report import render_markdown, render_page, render_table
from scalebench.report.findings.disturbance import LEAST_DRIFT, disturbance, drift
from tests.builders.summaries import make_missing, make_plain, make_row, make_summary

LOADED = "foreign load: 0.41 processors busy with other programs"


def with_rounds(case, *factors):
    """A row whose launches took these factors of its step."""
    row = make_row(case)
    kept = [
        sample.model_copy(update={"repeat": i, "step_s": [0.02 * factor] * 20})
        for i, (sample, factor) in enumerate(zip(row.samples, factors, strict=True))
    ]
    return row.model_copy(update={"samples": kept})


def test_the_sentence_counts_rows_and_quotes_the_baseline():
    rows = [make_row(stamps=["foreign load: x"]), make_plain(stamps=[LOADED]), make_row("b")]
    text = disturbance(make_summary([*rows, make_missing()])) or ""
    assert text.startswith(
        "The machine was not quiet: other programs were running on 2 of 3 rows (plain, N=1: 0.41"
        " processors busy with other programs). "
    )


@pytest.mark.parametrize("stamp", ["throttled: power cap", "clocks differ: a", "swap: 1 MB"])
def test_what_the_machine_did_is_named(stamp):
    text = disturbance(make_summary([make_row(stamps=[stamp])])) or ""
    name, _, told = stamp.partition(": ")
    assert f"{name} on 1 of 1 rows (ddp-25mb, N=2: {told})" in text


def test_clocks_that_the_load_itself_changes_blame_no_other_program():
    stamped = make_row(stamps=["throttled: power cap in 38.2 %", "clocks differ: a"])
    text = disturbance(make_summary([stamped])) or ""
    assert "not quiet" not in text and "stop what disturbs" not in text
    assert "nvidia-smi -lgc" in text


def test_what_is_about_a_case_does_not_speak_of_the_machine():
    assert disturbance(make_summary([make_row(stamps=["budget open", "unsteady"])])) is None


def test_drift_is_what_all_rows_share():
    slower = [with_rounds(name, 1.0, 1.05, 1.1) for name in "abc"]
    assert drift(slower) == pytest.approx(0.1)
    assert "all cases together were 10 % slower in one round" in (
        disturbance(make_summary(slower)) or ""
    )
    apart = [with_rounds("a", 1.0, 1.1, 1.0), with_rounds("b", 1.1, 1.0, 1.0)]
    apart.append(with_rounds("c", 1.0, 1.0, 1.1))
    assert (drift(apart) or 0.0) < LEAST_DRIFT / 5


def test_the_sentence_stands_above_the_tables_everywhere():
    summary = make_summary([make_plain(stamps=[LOADED]), make_row()])
    for verbose in (False, True):
        text = render_table(summary, 100, verbose=verbose)
        assert text.index("The machine was not quiet") < text.index("\nddp\n")
    assert "The machine was not quiet" in render_markdown(summary).partition("####")[0]
    assert "The machine was not quiet" in render_page([summary])
