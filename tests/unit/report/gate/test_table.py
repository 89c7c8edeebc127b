"""How verdicts look in a terminal."""

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from scalebench.gate.metrics import GateSettings
from scalebench.gate.result import SAME_RUN
from scalebench.report.gate.markdown import render_verdict_markdown
from scalebench.report.gate.table import detectable_text, interval_text, is_quiet, render_verdict
from tests.builders.gated import collectives, gated, gated_run, with_row
from tests.builders.summaries import make_missing


@pytest.fixture(scope="module")
def result():
    """A regression, a missing row, noise that decides nothing, an exact change, a mismatch."""
    base = with_row(gated_run(seed=1), "ddp", 2, communication=[collectives(5)])
    base = with_row(base, "ddp-small", 2, loss_last=5.0)
    new = gated_run({("ddp", 4): 1.05, ("plain", 1): 1.013}, seed=2)
    new = with_row(new, "ddp", 2, communication=[collectives(21)])
    settings = {"bucket_mb": 1.0, "accumulate": 1}
    new = with_row(new, "ddp-small", 2, strategy_settings=settings, loss_last=5.4)
    bad = make_missing("ddp-small", 4, "failed", "rank 1 was killed")
    rows = [bad if (r.case, r.world_size) == ("ddp-small", 4) else r for r in new.rows]
    return gated(base, new.model_copy(update={"rows": rows}))


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("everything", [False, True])
def test_the_table_fits_the_terminal(result, width, everything):
    text = render_verdict(result, width, everything=everything)
    table = text.partition("\n\n")[2].partition("not shown")[0]
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "verdict" in table
    for verdict in ("slower", "missing"):
        assert verdict in table


def test_that_both_runs_are_the_same_stands_first_and_once(result):
    same = replace(result, notes=("torch was 1 and is 2", SAME_RUN))
    text = render_verdict(same, 100)
    assert text.splitlines()[0] == f"note: {SAME_RUN}"
    assert text.count(SAME_RUN) == 1 and text.index("torch was 1") > text.index("verdict")
    markdown = render_verdict_markdown(same)
    assert markdown.count(SAME_RUN) == 1 and markdown.index(SAME_RUN) < markdown.index("| case |")


def test_the_worst_comes_first_and_what_is_unchanged_is_counted(result):
    text = render_verdict(result, 100)
    assert text.startswith("regressed: ddp, N=4, step time: slower, +5.")
    verdicts = re.findall(r"(slower|worse|missing|not comparable|better)$", text, re.M)
    verdicts = [verdict.replace("worse", "slower") for verdict in verdicts]
    order = ["slower", "missing", "not comparable", "better"]
    assert verdicts and verdicts == sorted(verdicts, key=order.index)
    count = sum(is_quiet(row) for row in result.rows)
    assert f"{count} without a change, not shown" in text
    assert "a change, not shown" not in render_verdict(result, 100, everything=True)


def test_the_legend_says_how_sure_the_intervals_are(result):
    text = " ".join(render_verdict(result, 100).split())
    assert "over launches (repeats); 99 % sure, for all 2 that count together; smallest" in text
    (one, *_) = (row for row in result.deciding if row.basis == "launches")
    text = " ".join(render_verdict(replace(result, rows=(one,)), 100).split())
    assert "over launches (repeats); 99 % sure; smallest findable" in text
    noisy = [replace(row, decides=True) for row in result.rows if row.basis == "launches"]
    text = " ".join(render_verdict(replace(result, rows=tuple(noisy)), 100).split())
    assert f"99 % sure, for all {len(noisy)} that count together" in text


def test_what_is_as_good_as_unknown_has_no_number_of_a_hundred_digits(result):
    row = replace(result.rows[0], basis="launches", min_detectable=1e169, low=-1.0, high=1e200)
    assert detectable_text(row) == "over 10000 %"
    assert interval_text(row).endswith("100.0 to over +10000")
    assert detectable_text(replace(row, min_detectable=0.031)) == "3.1 %"


def test_regressions_are_explained_below_the_table(result):
    text = render_verdict(result, 100)
    assert re.search(r"^ddp, N=2: worse: all-reduces per step", text, re.M)
    assert "rank 1 was killed" in text
    assert "--allow-mismatch bucket_mb" in " ".join(text.split())
    assert "bucket_mb: 25.0 in the baseline, 1.0 in the new run" in " ".join(text.split())


def test_who_compares_pinned_ranks_with_others_is_told_to_measure_again():
    """What is compared all the same would compare a change of scalebench's."""
    base = gated_run(seed=1)
    text = render_verdict(gated(base, with_row(gated_run(seed=2), "ddp", 2, pinned=False)), 200)
    assert "pinned: True in the baseline, False in the new run (measure both with --pinned" in text


def test_what_does_not_decide_stands_in_brackets():
    result = gated(gated_run(seed=1), gated_run({("ddp", 4): 1.1}, seed=2),
                   settings=GateSettings().only_exact())  # fmt: skip
    text = render_verdict(result, 100)
    assert text.startswith("passed") and "(slower)" in text and "does not count" in text
