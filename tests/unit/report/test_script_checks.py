"""What is said of a script's learning rate, a note with both rules, and of its BatchNorm."""

from scalebench.records.rows.script import LearningRate, ScriptChecks, ScriptFacts
from scalebench.report.words.script_checks import brief, in_full
from tests.builders.summaries import make_row
from tests.examples import cases

SCALED = {"at_one": 0.1, "batch": 32, "batch_at_one": 8, "linear": 0.4, "square_root": 0.2}


def row_of(**rate):
    told = LearningRate(**{"first": 0.1, "last": 0.1, "last_step": 50, **SCALED, **rate})
    return make_row(script=ScriptFacts(checks=ScriptChecks(in_sync=True, learning_rate=told)))


def test_the_rate_of_one_rank_for_a_larger_batch_is_noted_with_both_rules():
    (line,) = brief(row_of())
    assert line == "checks: in sync · note: the learning rate is that of N=1"
    (note,) = [text for text in in_full(row_of()) if text.startswith("note: ")]
    assert "from 8 to 32 samples" in note
    assert "linear rule it would be 0.4" in note and "square-root rule 0.2" in note


@cases("rate", {"first": 0.4, "last": 0.4}, {"last": 0.2}, {"at_one": None})
def test_a_scaled_rate_a_warm_up_and_an_equal_batch_are_silent(rate):
    assert brief(row_of(**rate)) == ["checks: in sync"]


@cases(
    "batch, passes, accumulated, seen",
    (8, 1.0, None, 8),
    (16, 2.0, 2, 8),
    (31, 3.9, 4, 8),
    (24, 3.0, None, None),
    (16, 1.0, None, None),
)
def test_a_pass_of_several_on_one_batch_has_no_number_of_samples(batch, passes, accumulated, seen):
    checks = ScriptChecks(in_sync=True, batch_norms=2, accumulated=accumulated)
    facts = ScriptFacts(backwards_per_step=passes, checks=checks)
    lines = brief(make_row(script=facts, rank_batch=batch, global_batch=2 * batch))
    found = [line for line in lines if "BatchNorm" in line]
    assert bool(found) == (seen is not None)
    assert all(f"BatchNorm sees {seen} samples" in line for line in found)
