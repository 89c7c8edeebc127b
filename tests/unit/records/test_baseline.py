from scalebench.records.baseline import baseline_of, key_of
from scalebench.records.summary import Row
from tests.builders.gated import gated_run


def rows_of(run):
    """The plain row, one that was measured on two ranks, and all of them."""
    rows = run.rows
    return rows[0], next(row for row in rows if (row.case, row.world_size) == ("ddp", 2)), rows


def other_plain(plain):
    slower = [s.model_copy(update={"pace_s": [2 * t for t in s.pace_s]}) for s in plain.samples]
    return plain.model_copy(update={"case": "plain-compile", "samples": slower})


def test_the_key_says_which_row_the_baseline_is():
    plain, row, rows = rows_of(gated_run())
    other = other_plain(plain)
    named = row.model_copy(update={"baseline": key_of(other)})
    assert baseline_of(named, [plain, other, *rows]) is other
    assert baseline_of(named, rows) is None
    assert Row.model_validate_json(named.model_dump_json(), strict=True) == named


def test_without_a_key_it_is_the_row_that_gives_the_number():
    plain, row, rows = rows_of(gated_run())
    assert row.baseline is None
    assert baseline_of(row, [other_plain(plain), *rows]) is plain
    assert baseline_of(row, [other_plain(plain), row]) is None
