"""Lines of a log: which rows a header allows, which run a line belongs to, what is refused."""

from pathlib import Path

import pytest

from scalebench.costmodel.links.nccl_tests import text as text_module
from scalebench.costmodel.links.nccl_tests.run import Rank
from scalebench.costmodel.links.nccl_tests.text import _row_below, read_text
from scalebench.errors import UsageError

PATH = Path("x.log")
HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
ROW = " 64 16 float sum -1 3.0 0.02 0.03 0 4.0 0.01 0.02 5"
FOOTER = "# Avg bus bandwidth : 0.025"


def read(*lines):
    return list(read_text(PATH, enumerate(lines, 1)))


def error_of(*lines):
    with pytest.raises(UsageError) as caught:
        read(*lines)
    return str(caught.value)


def columns(header, row):
    found = _row_below(header).match(row)
    return found and {name: value for name, value in found.groupdict().items() if value}


def test_a_header_names_the_columns_of_its_rows():
    assert columns(HEADER, ROW) == {
        **{"size": "64", "count": "16", "type": "float", "redop": "sum", "root": "-1"},
        **{"time0": "3.0", "algbw0": "0.02", "busbw0": "0.03", "wrong0": "0"},
        **{"time1": "4.0", "algbw1": "0.01", "busbw1": "0.02", "wrong1": "5"},
    }


@pytest.mark.parametrize(
    ("header", "row", "last"),
    [
        ("size count type time algbw busbw", " 8 2 int 1.0 2.0 3.0", ("busbw0", "3.0")),
        ("size count type time algbw busbw error", " 8 2 int 1.0 2.0 3.0 4e-7", ("error0", "4e-7")),
        ("size count type time algbw busbw #wrong", " 8 2 int 1 2 3 N/A", ("wrong0", "N/A")),
        (
            "size count type cputime algbw busbw #wrong cputime algbw busbw #wrong",
            " 8 2 int 1 2 3 4 5 6 7 8",
            ("cputime1", "5"),
        ),
        (
            "size count type time algbw busbw i_min i_max time algbw busbw i_min i_max",
            " 8 2 int 1 2 3 x y 5 6 7 x y",
            ("busbw1", "7"),
        ),
        (
            "size count type time algbw busbw #wrong #bitdiff time algbw busbw #wrong #bitdiff",
            " 8 2 int 1 2 3 4 x 5 6 7 8 y",
            ("wrong1", "8"),
        ),
        (
            "size count type time algbw busbw #wrong time algbw busbw #wrong timestamp",
            " 8 2 int 1 2 3 4 5 6 7 8 2026-01-31 12:00:00",
            ("wrong1", "8"),
        ),
        (
            "size count type time algbw busbw #wrong time algbw busbw #wrong",
            " 8 2 int" + " " * 24 + " 5 6 7 8",
            ("wrong1", "8"),
        ),
    ],
)
def test_every_kind_of_header_has_its_rows(header, row, last):
    found = columns(header, row)
    assert found["size"] == "8"
    assert last in found.items()
    assert columns(header, row + " 9") is None
    assert columns(header, row.rsplit(" ", 1)[0]) is None


def test_only_rows_of_two_modes_may_lack_the_first():
    header = "size count type time algbw busbw"
    assert columns(header, " 8 2 int" + " " * 24) is None
    assert _row_below("size count time algbw busbw") is None
    assert _row_below(header + " time algbw busbw time algbw busbw") is None


def test_blanks_stand_for_no_reduction_where_the_columns_have_one():
    found = columns("size count type redop root time algbw busbw", " 8 2 int  3 1 2 3")
    assert (found.get("redop"), found["root"], found["time0"]) == (None, "3", "1")


def test_a_run_has_what_its_lines_tell():
    (run,) = read(
        "# nccl-tests version 2.18.3",
        "# Collective test starting: all_reduce_perf",
        "# nThread 3 nGpus 2 minBytes 8",
        "#  Rank  0 Group  4 Pid 4711 on node0 device 0 [0x18] NVIDIA H100",
        "#  Rank  1 Pid 4712 on node0 device 1 [0x19] NVIDIA H100",
        HEADER,
        ROW,
        ROW,
        "# Out of bounds values : 7 OK",
        FOOTER,
    )
    assert (run.path, run.program, run.ranks_per_process) == (PATH, "all_reduce_perf", 6)
    assert run.ranks == [Rank(0, 4), Rank(1, 0)]
    assert [(p.place, p.in_place, p.num_wrong) for p in run.points] == [
        ("line 7", False, 0),
        ("line 7", True, 5),
        ("line 8", False, 0),
        ("line 8", True, 5),
    ]
    assert (run.num_out_of_bounds, run.average_busbw_gb_per_s, run.has_footer) == (7, 0.025, True)


def test_an_average_that_is_no_number_is_a_footer():
    (run,) = read(HEADER, ROW, "# Avg bus bandwidth : -nan")
    assert (run.average_busbw_gb_per_s, run.has_footer) == (None, True)


def test_a_table_without_a_footer_ends_with_the_log_or_the_next_header():
    one, two = read(HEADER, ROW, HEADER, ROW, ROW)
    assert (len(one.points), len(two.points)) == (2, 4)
    assert (one.has_footer, two.has_footer) == (False, False)


def test_what_follows_a_footer_is_not_of_the_table():
    (run,) = read(HEADER, ROW, FOOTER, "# Out of bounds values : 7 OK", "# Avg bus bandwidth : 9")
    assert (run.num_out_of_bounds, run.average_busbw_gb_per_s) == (None, 0.025)


def test_a_header_that_is_repeated_before_any_row_is_of_the_same_run():
    (run,) = read("# nThread 1 nGpus 2", HEADER, HEADER, ROW, FOOTER)
    assert run.ranks_per_process == 2
    one, two = read("# nThread 1 nGpus 2", HEADER, ROW, HEADER, ROW)
    assert (one.ranks_per_process, two.ranks_per_process) == (2, None)


def test_a_line_of_an_earlier_stage_belongs_to_the_next_run():
    rank = "# Rank {} Pid 4711 on node0 device 0 [0x18] NVIDIA H100"
    one, two = read(
        "# nThread 1 nGpus 5", rank.format(0), HEADER, ROW, FOOTER, rank.format(1), HEADER, ROW
    )
    assert (one.ranks, two.ranks) == ([Rank(0, 0)], [Rank(1, 0)])
    assert (one.ranks_per_process, two.ranks_per_process) == (5, None)
    (run,) = read(rank.format(0), "# nThread 1 nGpus 5", HEADER, ROW)
    assert (run.ranks, run.ranks_per_process) == ([], 5)
    (run,) = read("# Collective test starting: a", "# Collective test starting: b", HEADER, ROW)
    assert run.program == "b"


def test_the_commands_before_a_run_are_those_of_the_run():
    one, two = read(
        "./all_reduce_perf -b 8",
        "./broadcast_perf",
        "# nThread 1 nGpus 1",
        HEADER,
        ROW,
        FOOTER,
        "./reduce_perf",
        HEADER,
        ROW,
    )
    assert (one.commanded, two.commanded) == ({"all_reduce", "broadcast"}, {"reduce"})


def test_each_run_is_handed_over_when_its_table_ends():
    lines = iter([HEADER, ROW, FOOTER, HEADER, ROW])
    runs = read_text(PATH, enumerate(lines, 1))
    assert len(next(runs).points) == 2
    assert list(lines) == [HEADER, ROW]  # not yet read


@pytest.mark.parametrize(
    ("row", "is_row"),
    [
        (" 64 16 float sum -1 3.0 0.02 0.03", True),
        (" 64 16 float 3.0 N/A 0.03", True),
        (" 64 16 float 3.0 0.02", False),
        (" 64 16 float 3.0 0.02 x", False),
        (" 64 16 float x 0.02 0.03", False),
        (" 64 16 float x 0.02 0.03 0.04", True),
        (" 64 16 floats 3.0 0.02 0.03", False),
    ],
)
def test_a_row_without_a_header_ends_in_three_numbers(row, is_row):
    message = error_of(row)
    assert ("line 1: a row without the header" in message) == is_row
    assert ("has no table of nccl-tests" in message) != is_row


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW.replace("float", "float9"), "line 2: the type 'float9' is not known; valid: int8, "),
        (ROW + " 7", "line 2: the row is cut off or mixed with other output"),
        (ROW[:-5], "columns of the header at line 1, found 'sum -1 3.0"),
    ],
)
def test_a_row_that_is_damaged_is_told(row, words):
    assert words in error_of(HEADER, row)


def test_of_a_damaged_row_the_start_is_shown():
    message = error_of(HEADER, " 64 16 float " + "y" * 119 + "z" + "w" * 9)
    assert f"found {'y' * 119 + 'z'!r} behind the type" in message


def test_other_lines_that_begin_like_a_row_are_none():
    (run,) = read(HEADER, " 64 16 files were copied", ROW)
    assert len(run.points) == 2


def test_as_many_rows_as_are_allowed_are_read(monkeypatch):
    monkeypatch.setattr(text_module, "MAX_ROWS", 3)
    assert sum(len(run.points) for run in read(HEADER, ROW, FOOTER, HEADER, ROW, ROW)) == 6
    assert "line 6: more than 3 rows" in error_of(HEADER, ROW, HEADER, ROW, ROW, ROW)


def test_a_log_without_rows_names_its_last_header():
    assert "line 3: the header of a table with no row below it" in error_of("x", HEADER, HEADER)
    assert "x.log has no table of nccl-tests" in error_of("x")
    assert "before 2.0" in error_of("# bytes N type op time algbw busbw res")


def test_a_command_that_begins_like_a_row_is_a_command():
    (run,) = read("  4 2 nodes: ./all_reduce_perf -b 8", HEADER, ROW)
    assert run.commanded == {"all_reduce"}
    (run,) = read("  4 2 nodes ./all_reduce_perf -b 8", HEADER, ROW)
    assert run.commanded == {"all_reduce"}
