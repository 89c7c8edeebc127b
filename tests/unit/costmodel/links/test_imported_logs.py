"""``scalebench calibrate --import`` on logs as clusters and people leave them: what comes out."""

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from scalebench.cli.calibrate import calibrate
from scalebench.errors import UsageError
from scalebench.session.calibration import sweeps
from tests.builders.links import nccl_logs as logs
from tests.builders.links.nccl_logs import Result, Run
from tests.builders.repository.field_files import field_file
from tests.examples import cases


def told(*arguments):
    """Return the exit code, what is printed, and the object of ``--json``."""
    arguments = [str(one) for one in arguments]
    shown = CliRunner().invoke(calibrate, arguments, env={"COLUMNS": "200"})
    if isinstance(shown.exception, UsageError):
        return 2, str(shown.exception), None
    as_json = CliRunner().invoke(calibrate, [*arguments, "--json"])
    content = json.loads(as_json.output[: as_json.output.rindex("}") + 1])
    return shown.exit_code, shown.output, content


def imported(pattern, *options):
    return told("--import", field_file(f"cases/{pattern}"), *options)


def bandwidths(content):
    return [round((fit["bandwidth_byte_per_s"] or 0) / 1e9, 1) for fit in content["fits"]]


def test_two_runs_over_different_links_are_two_fits():
    code, shown, content = imported("02-*/small.log")
    assert code == 0
    assert bandwidths(content) == [23.1, 23.2, 2.8, 2.8]
    assert "differ by up to a factor of 7.8 (4.29 GB: 97.0 ms at small.log, line 14;" in shown
    assert "all_gather, in place, small.log, line 32" in shown


def test_what_was_not_checked_has_no_number_of_wrong_elements():
    code, shown, content = imported("03-*/small.log", "--op", "all_gather")
    assert code == 0
    assert {point["num_wrong"] for point in content["points"]} == {None}
    assert re.search(r"201 +189 +–\n", shown)
    assert "no result was checked" in shown


def test_a_log_copied_from_a_web_page_reads_like_the_one_with_blanks():
    _, _, copied = imported("10-*/nbsp.log")
    _, shown, plain = imported("11-*/small.log")
    assert copied["fits"] == plain["fits"]
    assert {fit["world_size"] for fit in copied["fits"]} == {16}
    assert pytest.approx(bandwidths(copied)[1], rel=0.01) == 343.0
    assert "\nall_reduce  " in shown and "\nall_reduce, in place  " in shown


def test_a_row_that_other_output_tore_is_left_out_and_told():
    code, shown, content = imported("12-*/small.log")
    assert code == 0
    assert len(content["points"]) == 2 * 3
    assert "left out: line 16: the row is cut off or mixed" in shown


def test_counts_are_those_of_the_log():
    code, shown, _ = imported("13-*/small.log")
    assert code == 0
    (title,) = re.findall("\nall_gather, N=8, bfloat16, out of place\n", shown)
    assert re.search(r"\n +1024 +64 +bfloat16", shown[shown.index(title) :])
    assert re.search(r"\n +1024 +512 +bfloat16", shown)


@cases(
    "link, said",
    ("infiniband-ndr", "a node has several of them (give their number, as in 8x"),
    ("8xinfiniband-ndr", "84.7 % of 8xinfiniband-ndr (400 GB/s): the link is well used"),
    ("0xinfiniband-ndr", "0xinfiniband-ndr is no link"),
    ("8xinfiniband", "There is no link 'infiniband'"),
)
def test_a_node_may_have_several_adapters(link, said):
    assert said in imported("16-*/small.log", "--against", link)[1]


def test_a_wrong_size_is_left_out_of_the_fit_and_ends_with_code_4():
    code, shown, content = imported("19-*/small.log")
    assert code == 4
    assert "4256 elements of results are wrong" in shown
    assert "in place: results were wrong at 33.6 MB, which the fit leaves out" in shown
    assert {fit["num_points"] for fit in content["fits"]} == {29}


def test_the_number_of_ranks_follows_from_the_bandwidths():
    code, shown, content = imported("20-*/small.log")
    assert code == 0
    assert {fit["world_size"] for fit in content["fits"]} == {16}
    assert "the log does not list the ranks; only N=16 fits its columns" in shown


SIZES = tuple(
    Result(count=2**k, times_us=(20 + 2**k / 2e3, 21 + 2**k / 2e3)) for k in range(14, 24)
)
REDUCE = Run(results=SIZES, num_ranks=8)
GATHER = Run(op="all_gather", results=SIZES, num_ranks=8, is_named=True)


def spaced(to):
    return lambda text: re.sub(r"(?<=\S)[ ]+(?=\S)|^[ ]+", to, text, flags=re.MULTILINE)


def grouped(text):
    return re.sub(r"(?<= )\d{4,}(?= )", lambda number: f"{int(number[0]):>,}", text)


def headed(text):
    return re.sub(
        r"size( +)count( .*)",
        lambda header: re.sub(
            "algbw|busbw",
            lambda name: f"{name[0][:3].title()}BW (GB/s)",
            f"Size (B){header[1]}Count (elements){header[2]}".replace("time", "Time(us)"),
        ),
        text,
    )


COPIED = {
    "no-break spaces": lambda text: text.replace("  ", "\N{NO-BREAK SPACE} "),
    "ideographic spaces": lambda text: text.replace(" ", "\N{IDEOGRAPHIC SPACE}"),
    "entities": lambda text: text.replace("  ", "&nbsp; "),
    "tabs": spaced("\t"),
    "pipes": lambda text: re.sub(r"^(.*)$", r"| \1 |", spaced(" | ")(text), flags=re.MULTILINE),
    "box": spaced(" │ "),
    "commas": spaced(","),
    "semicolons": spaced(";"),
    "quotes": lambda text: re.sub(r"(?<=\s)(\S+)", r'"\1"', text),
    "minus": lambda text: text.replace(" -1 ", " \N{MINUS SIGN}1 "),
    "thousands": grouped,
    "units": headed,
    "line ends": lambda text: text.replace("\n", " \r\n"),
}


@cases("run", REDUCE, replace(GATHER, blank_redop=True))
@cases("how", *COPIED)
def test_however_the_columns_are_parted(tmp_path, run, how):
    files = [tmp_path / "plain.log", tmp_path / "copied.log"]
    for file, copied in zip(files, (str, COPIED[how]), strict=True):
        file.write_text(copied(logs.text(run)), encoding="utf-8")
    plain, other = (sweeps.imported([file], None, run.op).fits for file in files)
    assert plain == other and len(plain) == 2


def test_a_table_whose_columns_are_others_is_named(tmp_path):
    file = tmp_path / "other.log"
    file.write_text("# size ranks algbw busbw time\n  1024 8 1.5 2.5 10\n")
    code, said, _ = told("--import", file)
    assert code == 2 and "line 1: a header that is not read" in said
    file.write_text(file.read_text() + logs.text(GATHER))
    code, said, _ = told("--import", file)
    assert code == 0 and "line 1: a header that is not read" in said


OSU = "# OSU MPI-CUDA Allreduce Latency Test v7.2\n# Size Avg Latency(us)\n4 12.3\n8 12.5\n"
HCCL = "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): |\n8192 | 9.1 | 0.9 |\n"


@cases("text", OSU, HCCL)
def test_logs_of_other_programs_are_refused_by_name_of_what_is_read(tmp_path, text):
    file = tmp_path / "other.log"
    file.write_text(text)
    code, said, _ = told("--import", file)
    assert code == 2 and "has no table of nccl-tests" in said and "other programs" in said


@cases(
    "run, footer, flag, wrong",
    (replace(REDUCE, style="own"), "0 OK", "", 0),
    (replace(REDUCE, style="own"), "3 FAILED", "", 20),
    (replace(REDUCE, style="own", results=(Result(wrong=(1, 0)), *SIZES)), "1 FAILED", "", 1),
    (replace(REDUCE, style="own", results=(Result(wrong=(1, 0)), *SIZES)), "0 OK", "", 0),
    (replace(REDUCE, style="own", results=(Result(wrong=(1, 0)), *SIZES)), None, "*", 1),
    (replace(REDUCE, is_checked=False), "2 FAILED", "", 20),
    (replace(REDUCE, is_checked=False), "0 OK", "", 0),
)
def test_wrong_results_are_seen_in_the_error_column_and_in_the_footer(
    tmp_path, run, footer, flag, wrong
):
    file = tmp_path / "nccl.log"
    text = logs.text(run).replace(" 1e+00 ", f" 1e+00{flag} ")
    bounds = "" if footer is None else f"# Out of bounds values : {footer}\n"
    file.write_text(text.replace("# Out of bounds values : 0 OK\n", bounds))
    code, shown, content = told("--import", file, "--op", "all_reduce")
    assert code == (4 if wrong else 0)
    assert shown.count("> 0\n") == wrong
    assert sum(point["failed_check"] for point in content["points"]) == wrong
    assert {point["num_wrong"] for point in content["points"]} == {None}
    assert len(content["fits"]) == (2 if wrong < 2 else 0)


@cases("op", "all_reduce", "broadcast", "all_gather")
@cases("num_ranks", 2, 3, 8, 64)
def test_ranks_that_are_not_told(tmp_path, op, num_ranks):
    file = tmp_path / "nccl.log"
    run = Run(op=op, results=SIZES, num_ranks=num_ranks, has_ranks=False)
    file.write_text(logs.text(run))
    code, said, content = told("--import", file, "--op", op)
    if op == "broadcast":
        assert code == 2 and "--world-size" in said
        code, _, content = told("--import", file, "--op", op, "--world-size", num_ranks)
    assert code == 0
    assert {fit["world_size"] for fit in content["fits"]} == {num_ranks}
