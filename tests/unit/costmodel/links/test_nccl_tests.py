import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.costmodel.links.nccl_tests import read_log
from scalebench.costmodel.links.nccl_tests.run import busbw_factor
from scalebench.errors import UsageError
from tests.builders.links import nccl_logs as logs
from tests.builders.links.nccl_logs import Result, Run
from tests.examples import cases, examples

GOLDEN = Path(__file__).parents[3] / "golden" / "nccl_tests"

NOISE = (
    "node0:4711:4711 [0] NCCL INFO Bootstrap : Using ib0:10.0.35.1<0>",
    "NCCL version 2.21.5+cuda12.4",
    "node0:4711:4726 [0] NCCL INFO Channel 00/02 :    0   1   2   3",
    "node1:8:9 [3] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    "",
    "node0:4711:4726 [0] NCCL INFO 24 coll channels, 16 nvls channels, 32 p2p channels",
    "node0:4711:4726 [0] NCCL INFO threadThresholds 8/8/64 | 16/8/64 | 512 | 512",
    "Warning: Permanently added '[192.168.173.233]:2022' (RSA) to the list of known hosts.",
)

PREFIXES = ("", "[1,0]<stdout>:", "[1,0]<stdout>: ", "node0: ", " 0: ", "0: ", "[0] ", "\x1b[32m")


@pytest.fixture
def write(tmp_path):
    def write(content, name="nccl.log"):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8")
        return path

    return write


def facts_of(*tables):
    names = ("size_bytes", "count", "dtype", "itemsize", "redop", "root", "in_place", "num_wrong")
    return [
        {name: getattr(point, name) for name in names}
        | {
            "op": table.op,
            "world_size": table.world_size,
            "time_us": point.time_us and point.time_us.value,
            "algbw_gb_per_s": point.algbw_gb_per_s.value,
            "busbw_gb_per_s": point.busbw_gb_per_s.value,
        }
        for table in tables
        for point in table.points
    ]


def points_of(log):
    return [point for table in log.tables for point in table.points]


def error_of(path, **told):
    with pytest.raises(UsageError) as caught:
        read_log(path, **told)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_tables_that_do_not_tell_their_operation_are_refused():
    path = GOLDEN / "p5_openmpi_tagged.txt"
    assert "can be of all_reduce or reduce_scatter" in error_of(path)
    (table,) = read_log(path, op="all_reduce").tables
    assert (table.op, len(table.points)) == ("all_reduce", 6)


COUNTS = st.integers(0, 2**31)
TIMES = st.floats(0.5, 2e6)


@st.composite
def runs(draw, style=None, is_json=False):
    op = draw(st.sampled_from(logs.OPS))
    style = style or draw(st.sampled_from(("own", "common", "new")))
    wrong = st.integers(0, 99999) if style != "own" else st.sampled_from((0, 1, 300))
    results = draw(
        st.lists(
            st.builds(Result, COUNTS, st.tuples(TIMES, TIMES), st.tuples(wrong, wrong)),
            min_size=1,
            max_size=5,
        )
    )
    num_processes = draw(st.integers(1, 6))
    each = draw(st.integers(1, 4))
    extra = st.sampled_from(((), ("#bitdiff",), ("i_min", "i_max", "i_p99", "i_cv%")))
    return Run(
        op=op,
        num_ranks=num_processes * each,
        results=tuple(results),
        type_name=draw(st.sampled_from(sorted(logs.ITEMSIZE))),
        redop=draw(st.sampled_from(("sum", "prod", "max", "min", "avg", "mulsum"))),
        root=draw(st.integers(0, 7)),
        style=style,
        is_checked=draw(st.booleans()),
        has_cpu_time=style != "own" and draw(st.booleans()),
        extra=draw(extra) if style == "new" and not is_json else (),
        has_stamp=style == "new" and draw(st.booleans()),
        blank_redop=draw(st.booleans()),
        ranks_per_process=each,
        is_named=draw(st.booleans()),
    )


@settings(max_examples=examples(150))
@given(runs(), st.sampled_from(PREFIXES), st.booleans())
def test_what_was_written_is_read(tmp_path_factory, run, prefix, is_noisy):
    path = tmp_path_factory.mktemp("logs") / "nccl.log"
    path.write_text(logs.text(run, prefix, NOISE if is_noisy else ()), encoding="utf-8")
    (table,) = read_log(path, op="hypercube" if run.is_named else run.op).tables
    assert logs.facts(run) == facts_of(table)
    assert table.op == run.op


@settings(max_examples=examples(60))
@given(runs(style="common", is_json=True), st.booleans())
def test_json_is_read_like_the_text(tmp_path_factory, run, lists_all):
    path = tmp_path_factory.mktemp("logs") / "nccl.json"
    path.write_text(logs.json_text(run, lists_all))
    (table,) = read_log(path).tables
    assert (table.op, table.world_size) == (run.op, run.num_ranks)
    expected = iter(logs.facts(run))
    for point, fact in zip(table.points, expected, strict=True):
        exact = ("size_bytes", "count", "dtype", "redop", "root", "in_place")
        assert {name: getattr(point, name) for name in exact} == {n: fact[n] for n in exact}
        assert point.num_wrong == fact["num_wrong"]
        assert (point.time_us is None) == (point.time_s is None) == run.has_cpu_time


BIG = Result(count=2**24, times_us=(1000.0, 1100.0))


@cases("op", *logs.OPS)
def test_a_wrong_number_of_ranks_is_found(write, op):
    run = Run(op=op, results=(BIG,), has_ranks=False)
    path = write(logs.text(run))
    if busbw_factor(op, None) == 1:
        assert read_log(path, op=op, world_size=7).tables[0].world_size == 7
    else:
        assert "the number of ranks is not 7" in error_of(path, op=op, world_size=7)


@cases("column", 0, 1, 5, 6, 7, 9, 10, 11)
@given(ratio=st.floats(1.02, 100))
@settings(max_examples=10)
def test_a_damaged_number_is_found(tmp_path_factory, column, ratio):
    run = Run(results=(BIG, BIG), is_named=True)

    def change(word):
        return f"{float(word) * ratio:.{0 if column < 2 else 2}f}"

    path = tmp_path_factory.mktemp("logs") / "nccl.log"
    text, row = logs.text(run), logs.row(run, BIG)
    words = row.split()
    words[column] = change(words[column])
    path.write_text(text.replace(row, " ".join(words)))
    number = text.splitlines().index(row) + 1
    message = error_of(path)
    assert f", line {number}: " in message
    assert "damaged" in message


def test_lost_rows_and_a_lost_footer_are_told(write):
    run = Run(results=(BIG, Result(count=1024)), is_named=True)
    lost = logs.text(run).replace(logs.row(run, run.results[1]) + "\n", "")
    assert "some are lost" in read_log(write(lost)).notices[0]
    footless = logs.text(replace(run, has_footer=False))
    assert "no footer" in read_log(write(footless)).notices[0]
    assert read_log(write(logs.text(run))).notices == ()


@settings(max_examples=examples(150))
@given(data=st.data())
def test_a_log_cut_anywhere_is_refused_or_gives_whole_rows(tmp_path_factory, data):
    run = Run(results=(BIG, Result(1024), BIG), is_named=True)
    content = logs.text(run)
    whole = logs.facts(run)
    cut = data.draw(st.integers(1, len(content) - 1))
    path = tmp_path_factory.mktemp("logs") / "nccl.log"
    path.write_text(content[:cut])
    try:
        (table,) = read_log(path).tables
    except UsageError as error:
        assert str(path) in str(error)
    else:
        assert facts_of(table) == whole[: len(table.points)]
        assert len(table.points) % 2 == 0


RUN_TEXT = logs.text(Run(results=(BIG,), is_named=True))


@cases(
    "content, expected",
    (b"", "is empty"),
    (b" \n\n", "is empty"),
    (b"\x7fELF\x02\x01\x00\x00\x00", "line 1: binary data"),
    (RUN_TEXT.encode("utf-16"), "binary data"),
    (b"hello\nworld\n", "has no table of nccl-tests"),
    (b"time,algbw,busbw\n1,2,3\n", "has no table of nccl-tests"),
    (b"#      bytes             N    type      op    time  algbw  busbw      res\n", "before 2.0"),
    (RUN_TEXT[: RUN_TEXT.index("#  Rank")].encode(), "has no table"),
    (RUN_TEXT.replace(" size ", " sise ").encode(), "without the header"),
    (RUN_TEXT.replace("   float ", " float4 ").encode(), "type 'float4' is not known"),
    (RUN_TEXT.replace("  sum  ", "  sum  host:1:2 [0] NCCL INFO ").encode(), "cut off or mixed"),
    (RUN_TEXT.replace("all_reduce_perf", "alltoallv_perf").encode(), "'alltoallv_perf' is not"),
    (b'{"a": 1}', "is JSON, but not a result of nccl-tests"),
    (b'{"results": []}', "is JSON, but not a result of nccl-tests"),
    (b'{"results": [1]}', "results[0]"),
    (b'{"results": [{"size": 8}]}', "results[0].count: Field required"),
    (b'{"results": [{"si', "the JSON is cut off or damaged (EOF"),
    (b"{" * 100000, "JSON is cut off or damaged"),
    (b'{"a":' * 100000, "JSON is cut off or damaged"),
)
def test_a_file_that_is_no_log(write, content, expected):
    assert expected in error_of(write(content))


def test_paths_that_cannot_be_opened(tmp_path):
    assert "No such file" in error_of(tmp_path / "missing.log")
    assert "cannot be read" in error_of(tmp_path)


def test_a_line_without_end_is_not_held_in_memory(write):
    path = write("x" * 20_000_000 + "\n" + RUN_TEXT)
    tracemalloc.start()
    log = read_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    out_of_place, _ = points_of(log)
    number = RUN_TEXT[: RUN_TEXT.index("67108864")].count("\n") + 2
    assert out_of_place.place == f"line {number}"
    assert peak < 4e6


PIECES = st.one_of(
    st.text(max_size=5),
    st.sampled_from(
        ("\n", " ", "-1", "N/A", "1e999", "9" * 5000, "#", "nan", "\x1b[0m", "\r", "{")
    ),
)


@settings(max_examples=examples(200))
@given(
    name=st.sampled_from(sorted(path.name for path in GOLDEN.glob("*.txt"))),
    where=st.floats(0, 1),
    num_lost=st.integers(0, 20),
    piece=PIECES,
)
def test_a_damaged_log_gives_points_or_one_clear_line(
    tmp_path_factory, name, where, num_lost, piece
):
    content = (GOLDEN / name).read_text()
    at = round(where * len(content))
    path = tmp_path_factory.mktemp("logs") / "nccl.log"
    path.write_text(content[:at] + piece + content[at + num_lost :], encoding="utf-8")
    try:
        assert points_of(read_log(path))
    except UsageError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
