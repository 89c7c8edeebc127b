"""What is said where a run fell short of the precision that was wanted."""

from scalebench.records.precision import ImpreciseRow, PrecisionReached
from scalebench.report.words.notes import precision_note
from tests.builders.summaries import make_plain, make_row, make_summary


def summary_with(*imprecise: ImpreciseRow):  # type: ignore[no-untyped-def]
    reached = PrecisionReached(
        half_width=0.03, budget_s=90.0, num_rows=6, imprecise=list(imprecise)
    )
    summary = make_summary([make_plain(), make_row()])
    return summary.model_copy(update={"precision": reached})


def row(case: str, half_width: float | None, more_s: float | None) -> ImpreciseRow:
    return ImpreciseRow(suite="ddp", case=case, world_size=2, half_width=half_width, more_s=more_s)


def test_a_row_that_is_too_wide_is_named_with_the_budget_that_would_do() -> None:
    assert precision_note(summary_with(row("ddp", 0.042, 86.4))) == (
        "target precision ± 3 % not reached in 90 s by 1 of 6 rows (ddp, N=2: ± 4.2 %); reaching it"
        " would take --budget 3m"
    )


def test_the_widest_are_named_and_the_longest_time_is_asked_for() -> None:
    note = precision_note(
        summary_with(row("a", 0.04, 70.0), row("b", 0.09, 720.0), row("c", 0.06, 270.0))
    )
    assert note is not None
    assert "by 3 of 6 rows" in note
    assert "(b, N=2: ± 9 %; c, N=2: ± 6 %; …)" in note
    assert note.endswith("would take --budget 14m")


def test_no_budget_of_hours_is_advised() -> None:
    note = precision_note(summary_with(row("ddp", 0.71, 3600.0)))
    assert note is not None and "--budget" not in note
    assert "would take more than an hour: close other programs" in note
    just = precision_note(summary_with(row("ddp", 0.71, 3510.0)))
    assert just is not None and just.endswith("would take --budget 60m")
