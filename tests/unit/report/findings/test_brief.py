"""The verdict in brief: one headline per suite, at most two lines per case."""

import pytest

from scalebench.records.summary import Correctness, Estimate
from scalebench.report import render_table
from scalebench.report.findings.brief import judge_in_brief, losses
from tests.builders.summaries import (
    LOSSES,
    attributed,
    make_missing,
    make_plain,
    make_row,
    make_summary,
    traced_rows,
)


def in_brief(*rows):
    (suite,) = judge_in_brief(make_summary([make_plain(), *rows]))
    return suite


def headline(*rows):
    return in_brief(*rows).headline


def case(*rows):
    (found,) = in_brief(*rows).cases
    return found


def test_the_headline_names_the_best_with_its_interval_and_whether_that_is_certain():
    apart = headline(make_row("a", efficiency=0.9), make_row("b", efficiency=0.7))
    assert apart == (
        "Highest efficiency: case a, 90.0 % (86.4–93.6). Certain: its interval lies above all"
        " others."
    )
    close = headline(
        make_row("a", efficiency=0.9), make_row("b", efficiency=0.88), make_row("c", efficiency=0.5)
    )
    assert close.endswith("(86.4–93.6). Not certain: b may be as good.")


@pytest.mark.parametrize(
    ("peaks", "told"),
    [
        ((100e6, 60e6, 90e6), "Least memory: case b, 60.0 MB a rank, 40 % less than a."),
        ((60e6, 100e6, 90e6), "Least memory: case a, 60.0 MB a rank, 40 % less than b."),
        ((100e6, 97e6, 99e6), ""),  # nobody chooses by 3 %
        ((100e6, None, 90e6), ""),  # it may need the least
    ],
)
def test_the_headline_says_who_needs_least_memory(peaks, told):
    rows = [
        make_row(case, efficiency=efficiency, peak_memory_bytes=peak and int(peak))
        for case, efficiency, peak in zip("abc", (0.9, 0.7, 0.5), peaks, strict=True)
    ]
    said = headline(*rows)
    assert said.endswith(told or "above all others.") and ("memory" in said) == bool(told)


def test_ranks_that_together_are_slower_than_one_are_said_to_be_so():
    slow = [make_row("a", efficiency=0.4), make_row("b", efficiency=0.3)]
    assert headline(*slow).endswith("above all others. None trains faster than one rank alone.")
    assert headline(slow[0]).endswith("It trains no faster than one rank alone.")
    assert "one rank" not in headline(make_row("a", efficiency=0.52), slow[1])
    assert "one rank" not in headline(make_row("a", efficiency=0.49, spread=0.1), slow[1])


def test_without_intervals_the_headline_is_not_certain():
    text = headline(make_row("a", efficiency=0.9, spread=None), make_row("b", efficiency=0.2))
    assert text.endswith("case a, 90.0 %. Not certain: one launch gives no interval.")
    other = headline(make_row("a", efficiency=0.9), make_row("b", efficiency=0.2, spread=None))
    assert other.endswith("Not certain: not every case has an interval.")
    alone = headline(make_row("a", efficiency=0.9, spread=None))
    assert alone == "Efficiency of a: 90.0 %. One launch gives no interval."


def test_a_wrong_result_is_never_the_highest_and_its_next_step_is_to_find_out():
    wrong = Correctness(status="deviates", gradient_deviation=0.02, tolerance=1e-4)
    suite = in_brief(
        make_row("a", efficiency=0.99, correctness=wrong), make_row("b", efficiency=0.7)
    )
    assert suite.headline.startswith("Efficiency of b: 70.0 %")
    assert "why the result is wrong: 2.0e-02, allowed 1e-04" in (suite.cases[0].next_step or "")


def test_other_workloads_are_not_ranked_and_no_rated_case_has_no_best():
    mixed = headline(make_row("a"), make_row("b", workload="cnn"))
    assert mixed == "The cases run different workloads or batches: they are not ranked."
    assert headline(make_row(world_size=1)) == "No case has an efficiency on several ranks."


def test_a_larger_loss_that_is_not_significant_is_not_passed_over_in_silence():
    row = attributed(make_row(efficiency=0.85), doubtful=["wait"])
    assert losses(row)[0] == (
        "probable, not certain: waiting, 9.4 of the 15.0 % lost. Certain: 5.4 % lost to transfer"
    )


def test_where_no_part_is_significant_the_line_says_so():
    likely = attributed(make_row(efficiency=0.85), doubtful=LOSSES)
    assert losses(likely)[0] == "probable, not certain: waiting, 9.4 of the 15.0 % lost"
    vague = attributed(make_row(efficiency=0.85), vague=LOSSES)
    assert losses(vague)[0] == "uncertain: waiting, 9.4 of the 15.0 % lost"
    one = attributed(make_row(efficiency=0.85, spread=None), n=1)
    assert losses(one)[0] == ("one launch saw: waiting, 9.4 of the 15.0 % lost")


def test_an_open_budget_says_why_and_names_no_part():
    told = losses(attributed(make_row(efficiency=0.85), losses={"wait": 10.0}))
    assert told[0] == "no cause is named: 5.0 % of the step is unexplained"
    assert not any("waiting" in text for text in told)
    row = attributed(make_row(efficiency=0.85))
    drifted = row.budget.model_copy(update={"closes": False, "drift": 0.4})
    assert losses(row.model_copy(update={"budget": drifted}))[0] == (
        "no cause is named: while parts were measured, a step took 40 % more"
    )


def test_cases_without_an_efficiency_say_why():
    assert case(make_missing(status="failed", reason="no")).result == "no result at any size"
    assert "one rank only" in case(make_row(world_size=1)).result
    unknown = make_row(unavailable={"efficiency": "plain failed"}).model_copy(
        update={"efficiency": None}
    )
    assert case(unknown).result == "efficiency unknown: plain failed"
    wide = Estimate(value=0.8, low=0.41, high=1.18, n=3)
    assert case(make_row().model_copy(update={"efficiency": wide})).result == (
        "inconclusive: 41–118 %"
    )


def test_a_next_step_that_all_cases_share_is_said_once():
    suite = in_brief(*(make_row(name, spread=None) for name in "ab"))
    assert suite.next_step == "Run it again with --repeats 3 before acting on it"
    assert [found.next_step for found in suite.cases] == [None, None]
    text = render_table(make_summary([make_row(name, spread=None) for name in "ab"]), 100)
    assert text.count("--repeats 3") == 1 and "→ All cases: Run it again" in text


def verdict_lines(rows, width=100, ascii_only=False):
    text = render_table(make_summary(rows), width, ascii_only=ascii_only)
    return text[text.index("verdict on suite") :].splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_number_of_the_verdict_is_broken(width, ascii_only):
    lines = verdict_lines(traced_rows(), width, ascii_only)
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert ("85.0 +/- 3.4" if ascii_only else "85.0 ± 3.4") in text
    assert "5.4" in text and "…" not in text
