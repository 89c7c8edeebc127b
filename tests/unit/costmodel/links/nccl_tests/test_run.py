"""A run as its file has it: printed numbers, rows, and the list of ranks."""

from pathlib import Path

import pytest

from scalebench.costmodel.links.nccl_tests.run import Point, Printed, Rank, Run, points_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", (12, 11.5, 12.5)),
        ("-3.4", (-3.4, -3.45, -3.35)),
        ("+0.05", (0.05, 0.045, 0.055)),
        ("2e3", (2000, 1500, 2500)),
        ("2.5e+07", (2.5e7, 2.45e7, 2.55e7)),
        ("7.25e-2", (0.0725, 0.07245, 0.07255)),
        ("0", (0, -0.5, 0.5)),
    ],
)
def test_a_number_lies_within_half_a_unit_of_its_last_digit(text, expected):
    assert Printed.parse(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", [None, "", "N/A", "1.", ".5", "1e", "1e+999", "1" * 19, " 1", "1 "]
)
def test_what_is_no_number_is_none(text):
    assert Printed.parse(text) is None


def test_the_longest_numbers_are_read():
    assert Printed.parse("1" * 18 + "." + "1" * 18).value == pytest.approx(1.1111111111e17)
    assert Printed.parse("1e-999").value == 0.0
    assert Printed.parse("1e99").value == 1e99


ROW = {
    "size": "640",
    "count": "320",
    "type": "half",
    "redop": "max",
    "root": "2",
    **{"time0": "12.5", "algbw0": "0.25", "busbw0": "0.5", "wrong0": "3"},
    **{"time1": "13", "algbw1": "0.75", "busbw1": "1.5", "wrong1": "N/A"},
}


def test_a_row_has_a_measurement_out_of_place_and_one_in_place():
    first, second = points_of(ROW, "line 7")
    assert first == Point(
        size_bytes=640,
        count=320,
        dtype="float16",
        itemsize=2,
        redop="max",
        root=2,
        in_place=False,
        time_us=pytest.approx((12.5, 12.45, 12.55)),
        algbw_gb_per_s=pytest.approx((0.25, 0.245, 0.255)),
        busbw_gb_per_s=pytest.approx((0.5, 0.45, 0.55)),
        num_wrong=3,
        place="line 7",
    )
    assert first.time_s == pytest.approx(12.5e-6)
    assert (second.in_place, second.time_us.value, second.num_wrong) == (True, 13, None)
    assert (second.algbw_gb_per_s.value, second.busbw_gb_per_s.value) == (0.75, 1.5)


@pytest.mark.parametrize(
    ("changes", "redop", "root"),
    [
        ({"redop": "none", "root": "-1"}, None, None),
        ({"redop": "", "root": "0"}, None, 0),
        ({"redop": None, "root": None}, None, None),
        ({"redop": "avg", "root": "1"}, "avg", 1),
    ],
)
def test_an_operation_may_reduce_nothing_and_have_no_root(changes, redop, root):
    assert {(p.redop, p.root) for p in points_of(ROW | changes, "")} == {(redop, root)}


@pytest.mark.parametrize("column", ["algbw", "busbw"])
def test_a_mode_without_both_bandwidths_is_left_out(column):
    (out_of_place,) = points_of(ROW | {f"{column}1": None}, "")
    (in_place,) = points_of(ROW | {f"{column}0": None}, "")
    assert (out_of_place.in_place, in_place.in_place) == (False, True)


def test_a_row_of_the_calls_own_time_has_none_of_the_operation():
    first, _ = points_of(ROW | {"time0": None, "wrong0": "0"}, "")
    assert (first.time_us, first.time_s, first.num_wrong) == (None, None, 0)


@pytest.mark.parametrize(("printed", "number"), [("2.6", 3), ("1e+02", 100), (None, None)])
def test_wrong_elements_are_a_whole_number(printed, number):
    assert next(points_of(ROW | {"wrong0": printed}, "")).num_wrong == number


def started(*ranks, **changes):
    return Run(Path("x.log"), ranks=[Rank(*rank) for rank in ranks], **changes)


def test_the_table_is_about_the_group_of_the_first_rank():
    run = started((3, 1), (0, 7), (1, 1), (2, 7))
    assert run.group() == [Rank(0, 7), Rank(2, 7)]
    assert started().group() == []


@pytest.mark.parametrize(
    ("ranks", "each", "reason"),
    [
        ([(0, 0)], None, None),
        ([(1, 0), (0, 0), (2, 0)], 3, None),
        ([(0, 0), (1, 0), (2, 0), (3, 0)], 2, None),
        ([(0, 0), (1, 0), (2, 0)], 2, "the list of ranks is cut off: 3 lines, 2 for each process"),
        ([(0, 0), (1, 0)], 4, "the list of ranks is cut off: 2 lines, 4 for each process"),
        ([(1, 0), (2, 0)], None, "the list of ranks has gaps: 2 lines up to 2"),
        ([(1, 0), (0, 0), (1, 0), (1, 0)], None, "rank 1 is listed 3 times: several jobs"),
        ([], 2, "the log does not list the ranks"),
    ],
)
def test_why_a_list_of_ranks_does_not_tell_their_number(ranks, each, reason):
    found = started(*ranks, ranks_per_process=each).why_world_size_is_unknown()
    assert found is None if reason is None else found.startswith(reason)


def test_a_run_knows_nothing_at_first():
    run = Run(Path("x.log"))
    assert (run.program, run.commanded, run.ranks_per_process) == ("", set(), None)
    assert (run.ranks, run.points, run.has_footer) == ([], [], False)
    assert (run.average_busbw_gb_per_s, run.num_out_of_bounds) == (None, None)
