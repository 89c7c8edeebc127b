"""What is known of two results before their rows are compared."""

import pytest

from scalebench.gate.accepted_runs import further_runs, usable
from scalebench.gate.result import SAME_RUN
from scalebench.gate.results import Results, mismatches_of, notes_on
from tests.builders.summaries import make_row, make_summary


def run(number, *rows, **changes):
    return make_summary(list(rows) or [make_row()], **{"run_id": f"run-{number}", **changes})


def test_two_runs_that_are_alike_have_no_notes():
    assert notes_on(Results("a", (run(1),)), Results("b", (run(2),))) == []


def test_every_note_once_and_in_order():
    base = run(1, status="interrupted", damaged={"cell.json": "too large"})
    new = run(1, scalebench_version="9", status="running")
    both = notes_on(Results("a", (base, base)), Results("b", (new, run(2, scalebench_version="9"))))
    assert both == [
        SAME_RUN,
        f"scalebench was {base.scalebench_version} and is 9",
        "the baseline is not complete: interrupted",
        "baseline: cell.json was set aside: too large",
        "the new run is not complete: running",
    ]


def test_rows_of_all_summaries_by_their_key():
    one, other = run(1, make_row("a", 2)), run(2, make_row("b", 3))
    results = Results("x", (one, other))
    assert [row.case for row in results.rows] == ["a", "b"]
    assert results.by_key()["ddp", "b", 3] == (other.rows[0], other)
    assert not results.partial and results.repeats == ()


def test_mismatches_with_each_new_run():
    base = run(1)
    other = run(2, environment={**base.environment, "torch": "9.9"})
    foreign = run(3, model={"profile_differs": ["cpu"]})
    found = mismatches_of(base, [base, other, foreign], ["torch"])
    assert [(m.name, m.allowed) for m in found] == [("torch", True), ("link_profile", False)]


def test_accepted_runs_that_count_and_why_others_do_not():
    first, new = run(1), run(9)
    software = {**first.environment, "torch": "9.9"}
    elsewhere = make_row().model_copy(update={"suite": "fsdp"})
    repeats = (
        run(2),
        run(3, environment=software),
        run(9),
        run(4, elsewhere, environment=software),
    )
    found, notes = usable(Results("a", (first,), repeats=repeats), Results("b", (new,)))
    assert [summary.run_id for summary in found.repeats] == ["run-2", "run-4"]
    assert [note.partition(":")[0] for note in notes] == [
        "accepted run run-3 is left out", "accepted run run-9 is left out",
    ]  # fmt: skip
    assert "torch was" in notes[0] and notes[0].endswith("and is 9.9")
    assert notes[1].endswith("it is the new run") and found.summaries == (first,)


@pytest.mark.parametrize(
    ("other", "counts"),
    [
        (make_row(), True),
        (make_row(loss_last=9.0), True),
        (make_row(status="failed"), False),
        (make_row(backend="nccl"), False),
        (make_row("another"), False),
        (make_row(world_size=3), False),
    ],
)
def test_a_row_of_an_accepted_run_counts_where_it_is_the_same_row(other, counts):
    rows = [make_row("plain", 1), other]
    base = Results("a", (run(1),), repeats=(run(2, *rows),))
    found = list(further_runs(make_row(), base))
    assert [row for row, _ in found] == ([other] if counts else [])
    assert all(beside == rows for _, beside in found)
