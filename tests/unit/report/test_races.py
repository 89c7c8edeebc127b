"""Races as the terminal shows them: a table and a sentence that decide nothing by luck."""

from scalebench.report.figures.style import assign
from scalebench.report.findings import ranking
from scalebench.report.findings.findings import judge
from scalebench.report.page.overview import suite_card
from scalebench.report.tables import races
from tests.builders.races import figures, near
from tests.builders.summaries import make_plain, make_row, make_summary

MISSED = figures(
    1,
    1,
    num_reached=1,
    unavailable={"time_to_target_s": "2 of 3 seeds did not reach the target within 4096 samples"},
    **dict.fromkeys(
        (
            "time_to_target_s",
            "samples_to_target",
            "statistical_efficiency",
            "hardware_efficiency",
            "speedup_to_target",
        )
    ),
)


def rows_of(**races):
    plain = make_plain().model_copy(update={"race": figures(8.0, 2048)})
    others = [make_row(name, 2).model_copy(update={"race": race}) for name, race in races.items()]
    return [plain, *others]


def card_of(rows):
    (verdict,) = judge(make_summary(rows)).suites
    return suite_card(verdict, rows, assign(rows))


def test_a_race_is_ranked_by_time_to_the_target_not_by_efficiency():
    rows = rows_of(quick=figures(4.0, 2560), efficient=figures(6.0, 2048), late=MISSED)
    rows[1].efficiency, rows[2].efficiency = near(0.5), near(0.9)
    card = card_of(rows)
    assert card.caption == "time to a loss of 2.476"
    assert [(line.name, line.text) for line in card.cases] == [
        ("quick", "4.00 s"),
        ("efficient", "6.00 s"),
        ("late", "reached by 1 of 3"),
    ]
    faster, slower, none = (line.bar for line in card.cases)
    assert faster.middle > slower.middle > faster.ideal and none is None
    assert ranking.best_row(rows[1:]).case == "quick"
    assert ranking.best_row([make_row("a", 2), *rows_of(late=MISSED)[1:]]).case in ("a", "late")


def test_the_baseline_of_a_race_is_no_way_to_train_on_several_ranks():
    rows = rows_of(slow=figures(16.0, 4096))
    assert races.first_at_target(rows)[0].case == "slow"
    assert races.first_at_target(rows_of(late=MISSED)) is None
