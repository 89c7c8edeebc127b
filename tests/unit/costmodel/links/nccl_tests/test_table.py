"""A run's checked table: its operation, number of ranks, columns and notices; case by case."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from scalebench.costmodel.links.nccl_tests.run import Point, Printed, Rank, Run
from scalebench.costmodel.links.nccl_tests.table import (
    Law,
    Log,
    Table,
    _disagreement,
    _has_columns_of,
    _is_checked_like,
    _rate,
    _rows_are_missing,
    table_of,
)
from scalebench.errors import UsageError


def near(value, half=0.005):
    return Printed(value, value - half, value + half)


def point(count=3_000_000, shares=1, time_us=1000.0, factor=1.0, **changes):
    """``count`` floats in so many microseconds; the algbw column holds size / time."""
    size = 4 * count * shares
    rate = size / time_us / 1e3
    given = Point(
        size_bytes=size,
        count=count,
        dtype="float32",
        itemsize=4,
        redop="sum",
        root=None,
        in_place=False,
        time_us=near(time_us),
        algbw_gb_per_s=near(rate),
        busbw_gb_per_s=near(rate * factor),
        num_wrong=0,
        place="line 5",
    )
    return replace(given, **changes)


def run_of(*points, num_ranks=3, footer=None, **changes):
    average = sum(p.busbw_gb_per_s.value for p in points) / len(points)
    given = {
        "program": "all_reduce_perf",
        "ranks": [Rank(i, 0) for i in range(num_ranks)],
        "has_footer": True,
        "average_busbw_gb_per_s": average if footer is None else footer,
    }
    return Run(Path("x.log"), points=list(points), **{**given, **changes})


REDUCED = point(factor=4 / 3)


def test_a_whole_run_is_its_table():
    second = replace(REDUCED, in_place=True, place="line 6")
    found = table_of(run_of(REDUCED, second), None, None)
    assert found == Table("all_reduce", (REDUCED, second), 3, None, ())


def test_the_list_of_ranks_is_believed_before_the_caller():
    assert table_of(run_of(REDUCED), 7, "broadcast").world_size == 3


def test_without_a_list_the_caller_tells_the_number():
    run = run_of(REDUCED, num_ranks=0)
    assert table_of(run, 3, None).world_size == 3
    assert table_of(run, 3, None).world_size_reason is None
    assert table_of(run, None, None).world_size == 3  # the only one that fits the bandwidths
    vague = replace(run, points=[point(3000, factor=4 / 3)])
    unknown = table_of(vague, None, None)
    assert unknown.world_size is None
    assert unknown.world_size_reason == (
        "the log does not list the ranks; 2 to 8 fit its bandwidths; give it with --world-size"
    )
    with pytest.raises(UsageError, match="the number of ranks is not 4"):
        table_of(run, 4, None)


def test_shares_tell_the_number_of_ranks_by_the_first_row_that_can():
    """A row of no elements tells nothing."""
    gather = {"redop": None}
    empty = point(count=0, time_us=5.0, **gather)
    row = point(shares=5, factor=4 / 5, **gather)
    run = run_of(empty, row, num_ranks=0, program="all_gather_perf")
    assert table_of(run, None, None).world_size == 5
    assert table_of(run, None, None).world_size_reason is None


def test_one_rank_that_shares_is_one():
    row = point(shares=1, factor=0.0, redop=None)
    run = run_of(row, num_ranks=0, program="all_gather_perf")
    assert table_of(run, None, None).world_size == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size_bytes": 12_000_004}, "the size 12000004 is not the count 3000000 × 4 bytes, as"),
        (
            {"algbw_gb_per_s": near(12.02)},
            "algbw 12.02 GB/s is not size / time = 12 to 12 GB/s, as it is for all_reduce among 3",
        ),
        (
            {"busbw_gb_per_s": near(16.02)},
            "busbw 16.02 GB/s is not algbw × 1.333 = 15.993 to 16.007 GB/s, as it is for",
        ),
        (
            {"time_us": near(1002.0), "algbw_gb_per_s": near(11.98, 0.02)},
            "busbw 16 GB/s is not size / time × 1.333 = 15.968 to 15.968 GB/s",
        ),
    ],
)
def test_columns_that_disagree_are_told(changes, words):
    wrong = replace(REDUCED, **changes)
    found = _disagreement(wrong, Law("all_reduce", 3, None, False))
    assert found.startswith("line 5: ")
    assert words in found
    with pytest.raises(UsageError, match="The line is damaged, or the test is not all_reduce, or"):
        table_of(run_of(REDUCED, wrong), None, None)


@pytest.mark.parametrize(("printed", "agrees"), [(16.011, True), (16.013, False)])
def test_columns_agree_as_far_as_rounding_goes(printed, agrees):
    """Both bounds of rounding, 0.005 × 4/3 and 0.005, may add up; the time is not known."""
    of_call = replace(REDUCED, time_us=None)
    found = _disagreement(
        replace(of_call, busbw_gb_per_s=near(printed)), Law("all_reduce", 3, None, False)
    )
    assert (found is None) == agrees


def test_single_precision_is_no_disagreement():
    """A millionth of 10 GB/s is allowed beyond rounding, two are not."""
    exact = replace(REDUCED, redop=None, root=0, time_us=None, algbw_gb_per_s=near(10.0, 0.0))
    law = Law("broadcast", None, None, False)
    for excess, agrees in ((0.9e-6, True), (1.1e-6, False)):
        above = replace(exact, busbw_gb_per_s=near(10.0 * (1 + excess), 0.0))
        below = replace(exact, busbw_gb_per_s=near(10.0 / (1 + excess), 0.0))
        assert (_disagreement(above, law) is None) == agrees
        assert (_disagreement(below, law) is None) == agrees


def test_where_the_algbw_column_holds_the_busbw_both_are_alike():
    row = point(shares=3, factor=2 / 3, redop=None)
    early = replace(row, algbw_gb_per_s=row.busbw_gb_per_s)
    assert _disagreement(row, Law("all_gather", 3, None, False)) is None
    assert _disagreement(early, Law("all_gather", 3, None, True)) is None
    assert "algbw 24 GB/s is not size / time = 36" in _disagreement(
        early, Law("all_gather", 3, None, False)
    )
    assert "algbw 36 GB/s is not size / time × 0.6667" in _disagreement(
        row, Law("all_gather", 3, None, True)
    )
    table = table_of(run_of(early, program="all_gather_perf"), None, None)
    assert table.notices == (
        "the table of all_gather at line 5: its algbw column holds the busbw; algbw is size / time "
        "here",
    )


def test_shares_are_named_with_the_ranks():
    row = point(shares=4, redop=None)
    assert "× 3 ranks, as it is for all_gather" in _disagreement(
        row, Law("all_gather", 3, None, False)
    )


def test_a_time_that_was_rounded_to_nothing_has_no_upper_rate():
    assert _rate(4000, Printed(2.0, 1.5, 2.5)) == pytest.approx((4 / 1.5, 1.6, 4 / 1.5))
    assert _rate(4000, Printed(0.0, 0.0, 0.5)) == (math.inf, 8.0, math.inf)
    assert _rate(4000, Printed(0.0, -0.5, 0.5)) == (math.inf, 8.0, math.inf)


def test_one_rank_moves_nothing_whatever_a_time_of_nothing_says():
    none = point(time_us=1.0, factor=0.0, redop=None)
    instant = replace(none, time_us=Printed(0.0, -0.005, 0.005))
    instant = replace(instant, algbw_gb_per_s=near(3e6))
    assert _disagreement(instant, Law("all_gather", 1, None, False)) is None


@pytest.mark.parametrize(
    ("op", "redop", "root", "has"),
    [
        ("all_reduce", "sum", None, True),
        ("all_reduce", None, None, False),
        ("all_reduce", "sum", 0, False),
        ("broadcast", None, 2, True),
        ("broadcast", None, None, False),
        ("send_recv", "sum", None, True),
        ("send_recv", None, None, True),
        ("send_recv", None, 1, False),
        ("reduce", "sum", 0, True),
    ],
)
def test_an_operation_is_known_by_its_reduction_and_root(op, redop, root, has):
    good = point(redop=redop, root=root)
    assert _has_columns_of(op, [good, good]) == has
    assert not _has_columns_of(op, [good, point(redop="sum" if redop is None else None, root=3)])


@pytest.mark.parametrize(
    ("checked", "like"),
    [
        ((True, True), "all_reduce"),
        ((True, False), "all_to_all"),
        ((False, True), "both"),
        ((False, False), "both"),
    ],
)
def test_an_operation_is_known_by_whether_results_in_place_are_checked(checked, like):
    points = [
        point(in_place=place, num_wrong=0 if was else None)
        for place, was in zip((False, True), checked, strict=True)
    ]
    assert _is_checked_like("all_reduce", points) == (like in ("all_reduce", "both"))
    assert _is_checked_like("all_to_all", points) == (like in ("all_to_all", "both"))
    assert _is_checked_like("all_to_all", points[:1])


def test_an_operation_is_taken_from_the_name_the_command_the_caller_or_the_columns():
    rooted = point(redop=None, root=0)
    told = {"program": "", "ranks": []}
    assert table_of(run_of(rooted, program="broadcast_perf"), None, None).op == "broadcast"
    assert table_of(run_of(rooted, **told, commanded={"broadcast"}), None, None).op == "broadcast"
    assert table_of(run_of(rooted, **told), None, "broadcast").op == "broadcast"
    reduced = point(redop="sum", root=0)
    assert table_of(run_of(reduced, **told), None, None).op == "reduce"
    both = {"commanded": {"broadcast", "reduce"}}
    assert table_of(run_of(reduced, **told, **both), None, None).op == "reduce"
    wrong = {"commanded": {"all_gather"}}
    assert table_of(run_of(reduced, **told, **wrong), None, None).op == "reduce"
    with pytest.raises(UsageError, match="'other_perf' is not read"):
        table_of(run_of(rooted, program="other_perf"), None, None)
    assert table_of(run_of(rooted, program="other_perf"), None, "broadcast").op == "broadcast"


def test_of_several_that_fit_the_only_one_commanded_is_taken():
    """Without a number of ranks a table of sums can be an all-reduce or a send/recv."""
    row = point(redop="sum", num_wrong=None)
    told = {"program": "", "num_ranks": 0}
    with pytest.raises(UsageError, match="this table can be of all_reduce or send_recv: older"):
        table_of(run_of(row, **told), None, None)
    several = {"commanded": {"send_recv", "broadcast", "gather"}}
    assert table_of(run_of(row, **told, **several), None, None).op == "send_recv"
    several = {"commanded": {"send_recv", "all_reduce"}}
    with pytest.raises(UsageError, match="this table can be of"):
        table_of(run_of(row, **told, **several), None, None)


def test_a_table_of_nothing_that_is_known_is_told_with_its_first_error():
    damaged = point(redop="sum", root=0, size_bytes=13)
    with pytest.raises(UsageError, match="line 5: the size 13 is not the count"):
        table_of(run_of(damaged, program=""), None, None)
    none = [point(redop="sum", root=0), point(redop=None, root=None)]
    with pytest.raises(UsageError, match="can be of no known test"):
        table_of(run_of(*none, program=""), None, None)


def notices(*points, **changes):
    found = table_of(run_of(*points, **changes), None, None)
    return list(Log(Path("x.log"), (found, found)).notices[: len(found.notices)])


TABLE = "the table of all_reduce at line 5"


@pytest.mark.parametrize(
    ("points", "changes", "expected"),
    [
        (
            [REDUCED, replace(REDUCED, num_wrong=1, place="line 9")],
            {"num_out_of_bounds": 7},
            f"1 of 2 measurements of {TABLE} had wrong results (#wrong > 0), the first at line 9",
        ),
        (
            [REDUCED],
            {"num_out_of_bounds": 1},
            f"{TABLE} had 1 measurements out of bounds, and no row says which: any may be wrong",
        ),
        ([REDUCED], {"num_out_of_bounds": 0}, None),
        ([replace(REDUCED, num_wrong=None)], {}, f"{TABLE}: no result was checked"),
        ([replace(REDUCED, num_wrong=None, deviation=1e-6)], {}, None),
        (
            [REDUCED],
            {"num_ranks": 0},
            f"{TABLE}: the log does not list the ranks; only N=3 fits its columns",
        ),
        (
            [REDUCED, replace(REDUCED, time_us=None)],
            {},
            f"{TABLE} has CPU times of the call, no times of the operation",
        ),
        (
            [REDUCED],
            {"ranks": [Rank(0, 1), Rank(1, 1), Rank(2, 1), Rank(3, 0)]},
            f"{TABLE}: other groups of ranks ran the same at the same time",
        ),
        (
            [REDUCED],
            {"has_footer": False, "average_busbw_gb_per_s": 1.0},
            f"{TABLE} has no footer: the run did not end, or the log is cut off",
        ),
        (
            [REDUCED],
            {"average_busbw_gb_per_s": 15.0},
            f"{TABLE}: the average in its footer is not that of its rows: some are lost",
        ),
    ],
)
def test_each_notice_by_itself(points, changes, expected):
    assert notices(*points, **changes) == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("average", "missing"),
    [(None, False), (15.0, False), (15.24, False), (15.26, True), (14.76, False), (14.74, True)],
)
def test_an_average_may_differ_by_one_percent_and_by_rounding(average, missing):
    """Of 10 and 20 GB/s, each ± 0.1: 15 ± (0.15 + 0.1)."""
    points = [replace(REDUCED, busbw_gb_per_s=near(value, 0.1)) for value in (10.0, 20.0)]
    run = run_of(*points)
    run.average_busbw_gb_per_s = average
    assert _rows_are_missing(run) == missing
