import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.rows.budget import MEASURED, PARTS, RESIDUAL, Budget
from scalebench.records.rows.script import LearningRate, ScriptChecks, ScriptFacts
from scalebench.report import render_page
from scalebench.report.figures import style
from scalebench.report.tables import budget as budget_table
from scalebench.report.tables.layout import cells
from scalebench.report.words import terms, wording
from scalebench.report.words.causes import budgeted
from scalebench.report.words.script_checks import brief, in_full
from tests.builders.summaries import attributed, make_row, make_summary
from tests.examples import cases


def test_every_part_of_a_budget_has_its_words_and_its_colour():
    fields = list(Budget.model_fields)
    parts = fields[fields.index("ideal_s") + 1 : fields.index("measured_s")]
    assert [part.field for part in PARTS] == parts == [f"{part.key}_s" for part in PARTS]
    assert list(style.PART_COLORS) == [part.key for part in PARTS]
    assert PARTS[-1] is RESIDUAL and (*MEASURED, RESIDUAL) == PARTS


shares = st.floats(-80, 80).map(lambda value: round(value, 3))


@given(st.fixed_dictionaries({part.key: shares for part in PARTS[:-1]}), st.floats(0.05, 2.0))
def test_the_written_row_sums_to_the_whole_step(losses, efficiency):
    row = attributed(make_row(efficiency=efficiency), losses=losses)
    accounted = budgeted([row])
    _, _, *numbers = cells(budget_table.columns_of(accounted), accounted[0])
    written = [
        float(n.replace(wording.MINUS, "-").strip("?")) for n in numbers if n not in ("", "open")
    ]
    assert sum(written) == pytest.approx(100.0, abs=0.05 * len(PARTS) + 0.06)


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
    *((8, 1.0, None, 8), (16, 2.0, 2, 8), (31, 3.9, 4, 8), (24, 3.0, None, None)),
    (16, 1.0, None, None),
)
def test_a_pass_of_several_on_one_batch_has_no_number_of_samples(batch, passes, accumulated, seen):
    checks = ScriptChecks(in_sync=True, batch_norms=2, accumulated=accumulated)
    facts = ScriptFacts(backwards_per_step=passes, checks=checks)
    lines = brief(make_row(script=facts, rank_batch=batch, global_batch=2 * batch))
    found = [line for line in lines if "BatchNorm" in line]
    assert bool(found) == (seen is not None)
    assert all(f"BatchNorm sees {seen} samples" in line for line in found)


def test_every_word_is_defined_by_the_document_briefly():
    document = terms.without_marks(terms.CHECKED_OUT.read_text("utf-8"))
    assert set(terms.definitions()) == set(terms.WORDS)
    for word, meaning in terms.definitions().items():
        assert meaning in document, word
        assert 15 < len(meaning) <= terms.LONG, word


def test_without_the_document_the_page_has_no_definitions(monkeypatch, tmp_path):
    monkeypatch.setattr(terms, "INSTALLED", tmp_path / "none.md")
    monkeypatch.setattr(terms, "CHECKED_OUT", tmp_path / "none.md")
    terms.definitions.cache_clear()
    try:
        assert 'class="term"' not in render_page([make_summary()])
    finally:
        terms.definitions.cache_clear()
