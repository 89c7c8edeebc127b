"""Races as the terminal shows them: the table, and one sentence that decides nothing by luck."""

import pytest

from scalebench.report import render_table
from scalebench.report.findings import ranking
from scalebench.report.findings.findings import judge
from scalebench.report.page.cards import make_cards
from scalebench.report.page.overview import suite_card
from scalebench.report.page.palette import assign
from scalebench.report.page.rows import row_views
from scalebench.report.tables import races
from scalebench.stats import Estimate
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


def test_the_fastest_is_named_with_its_two_reasons():
    said = races.headline(rows_of(large=figures(4.0, 2560), slow=figures(6.0, 2048)))
    assert said == (
        "large on 2 CPU ranks reaches 2.476 in 4.000 s, 2.000 ± 0.040× as fast as plain on 1 rank: "
        "2.50 times the samples per second, 25 % more samples."
    )


def test_a_case_whose_interval_overlaps_may_be_as_fast():
    said = races.headline(rows_of(large=figures(4.0, 2048), close=figures(4.1, 2048)))
    assert "as many samples. Not certain: close may be as fast." in said
    one = figures(4.0, 2048, time_to_target_s=Estimate(value=4.0, n=1))
    assert races.headline(rows_of(large=one)).endswith("Not certain: one seed.")


def test_who_did_not_arrive_is_said_and_does_not_win():
    rows = rows_of(late=MISSED)
    assert "No case reached the target with every seed" in races.headline(rows)
    text = render_table(make_summary(rows), width=140)
    assert "1 of 3" in text
    assert "late on 2 CPU ranks: 2 of 3 seeds did not reach the target" in " ".join(text.split())


def test_many_that_did_not_arrive_share_a_line():
    late = MISSED.model_copy(update={"lowest_loss": 2.625})
    rows = rows_of(a=late, b=late, c=MISSED)
    text = " ".join(render_table(make_summary(rows), width=140).split())
    assert (
        "not reached with every seed within 4096 samples; lowest losses: a N=2: 2.625, "
        "b N=2: 2.625, c N=2: –" in text
    )
    assert "2 of 3 seeds did not reach" not in text


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_table_fits_the_terminal_and_keeps_what_decides(width):
    text = render_table(make_summary(rows_of(large=figures(4.0, 2560))), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    for part in ("time to loss", "statistical", "hardware", "2.000 ± 0.040×", "noise scale: 40"):
        assert part in " ".join(text.split())


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (6.0, 19.0, "in the steps: large N=2: "),
        (4.0, 132.0, "in the steps: not known within a factor of two"),
        (4.0, 19.0, "in the steps: not known within a factor of two"),
        (None, None, "in the steps: not known within a factor of two"),
    ],
)
def test_a_noise_scale_too_wide_to_act_on_is_not_printed(low, high, told):
    of_steps = Estimate(value=10.0, low=low, high=high, n=1 if low is None else 3)
    race = figures(4.0, 2560, noise_scale_of_steps=of_steps)
    text = render_table(make_summary(rows_of(large=race)), width=140)
    assert told in " ".join(text.split())


def test_a_card_of_the_page_has_the_speedup_to_the_loss_or_how_many_arrived():
    summary = make_summary(rows_of(large=figures(4.0, 2560), late=MISSED))
    (verdict,) = judge(summary).suites
    cards = {card.finding.case: card for card in make_cards(verdict.findings, assign(summary.rows))}
    assert (cards["large"].figure, cards["large"].noisy) == ("2.000", False)
    assert "25 % more samples" in cards["large"].sentence
    assert (cards["late"].figure, cards["late"].unit) == ("1 of 3", " seeds")
    assert cards["late"].noisy and not cards["plain"].noisy


def test_the_view_of_a_row_opens_with_its_race():
    found = rows_of(large=figures(4.0, 2560))
    (_, view) = row_views("suite-1", "ddp", found, assign(found), {}, None)
    first = view.sections[0]
    assert (first.name, first.title) == ("race", "Time to loss")
    assert first.sentence == races.sentence(found[1], found[1].race)
    assert len(first.tables) == 1
    without = [make_plain(), make_row("ddp", 2)]
    (_, other) = row_views("suite-1", "ddp", without, assign(without), {}, None)
    assert "race" not in {section.name for section in other.sections}


def test_suites_without_a_race_show_nothing_of_it():
    assert races.headline([make_plain(), make_row("ddp", 2)]) is None
    assert "time to loss" not in render_table(make_summary([make_plain(), make_row("ddp", 2)]))


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
