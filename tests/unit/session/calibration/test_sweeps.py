"""Calibration: what is planned, what becomes of points, how it is shown."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scalebench.cli.calibrate import as_object, calibrate
from scalebench.costmodel.links.crossover import crossovers
from scalebench.costmodel.links.laws import algorithms
from scalebench.costmodel.links.profile import LAW_OF, LinkProfile, point_of, profile_of
from scalebench.errors import ExitCode, UsageError
from scalebench.records.probes import ProbeRecord, TimedTransfer
from scalebench.report.tables.calibration import render_calibration
from scalebench.session.calibration.sweeps import (
    Sweeps,
    cut_short,
    imported,
    measured_points,
    measured_profile,
    sizes_up_to,
    transfers_of,
)
from scalebench.spec.collectives import COLLECTIVES, EITHER_PLACE, OWN_ALGORITHMS
from scalebench.spec.probes import Transfer
from scalebench.worker.collectives import ALL_REDUCES
from tests.builders.calibrated import ALPHA_S, BANDWIDTH, line, point

GOLDEN = Path(__file__).parents[3] / "golden" / "nccl_tests"
ORIGIN = {"created": "now", "version": "0", "device": "cpu", "backend": "gloo"}


@given(st.integers(min_value=8, max_value=1 << 34))
def test_sizes_are_doubles_up_to_the_largest(largest):
    sizes = sizes_up_to(largest)
    assert sizes[0] == 8
    assert largest / 2 < sizes[-1] <= largest
    assert all(b == 2 * a for a, b in pairwise(sizes))


def test_every_operation_is_planned_at_every_size_and_small_ones_more_often():
    planned = transfers_of(
        Sweeps((2,), COLLECTIVES, ("float32", "int8"), 1 << 22, algorithms=("ring", "tree"))
    )
    sweeps = len(COLLECTIVES) - 1 + len(EITHER_PLACE) + 2
    assert len(planned) == 1 + sweeps * 2 * len(sizes_up_to(1 << 22))
    assert {one.algorithm for one in planned} == {"backend", "ring", "tree"}
    assert {one.back_to_back for one in planned if one.size_bytes == 8} == {20}
    assert {one.back_to_back for one in planned if one.size_bytes == 1 << 22} == {2}


def test_what_the_time_limit_left_out_is_told_for_each_number_of_ranks():
    sizes = tuple(1 << n for n in (16, 18, 20, 22))
    sweeps = Sweeps(
        (2, 4),
        ("all_reduce", "all_gather"),
        ("float32",),
        1 << 22,
        sizes={"all_reduce": sizes, "all_gather": sizes},
        in_place=False,
        time_limit_s=30.0,
    )
    points = [
        point(size, 0.01, operation=op, num_ranks=n)
        for op in ("all_reduce", "all_gather")
        for n in (2, 4)
        for size in sizes
    ]
    assert cut_short(points, sweeps, "cpu") == ()
    slow = [p for p in points if (p.op, p.world_size) != ("all_gather", 4) or p.size_bytes < 1e6]
    (told,) = cut_short(slow, sweeps, "cpu")
    assert "N=4" in told and "30 s" in told and "all_gather up to 262 kB of 4.19 MB" in told
    assert "all_reduce" not in told
    profile = measured_profile(slow, sweeps, "cpu", 2, {})
    assert profile.cut_short == (told,)
    assert LinkProfile.model_validate_json(profile.model_dump_json()).cut_short == (told,)


@pytest.mark.parametrize("pinned", [True, False])
def test_ranks_that_calibrate_are_placed_as_asked(pinned, tmp_path):
    asked = []

    def probe(plan, logs):
        asked.append(plan)
        return [ProbeRecord(rank=0)]

    sweeps = Sweeps((2, 4), ("all_reduce",), ("float32",), 64, pinned=pinned)
    launcher = SimpleNamespace(probe=probe)
    assert measured_points(launcher, sweeps, "cpu", tmp_path, lambda *_: None) == []
    assert [(plan.world_size, plan.pinned) for plan in asked] == [(2, pinned), (4, pinned)]


def test_a_wrong_result_is_not_fitted_and_counted():
    points = [*line()[:-1], point(1 << 22, 0.01, wrong=3)]
    profile = profile_of(points, (), **ORIGIN)
    assert profile.num_wrong == 3
    assert profile.fits == profile_of(line()[:-1], (), **ORIGIN).fits
    assert "results were wrong at 4.19 MB" in profile.notices[0]


def test_each_own_algorithm_is_fitted_by_its_own_law():
    assert set(OWN_ALGORITHMS) == set(ALL_REDUCES)
    assert set(LAW_OF) < set(ALL_REDUCES)
    assert set(LAW_OF.values()) <= set(algorithms("all_reduce"))
    profile = profile_of([*line("tree"), *line("hierarchical")], (), **ORIGIN)
    assert [fit.law for fit in profile.fits] == ["binomial tree"]
    assert "hierarchical" in profile.refused[0]


def test_the_fastest_algorithm_changes_where_the_lines_cross():
    quick_start = line("tree", alpha_s=10e-6, bandwidth=1e8)
    fast_wire = line("ring", alpha_s=100e-6, bandwidth=1e9)
    profile = profile_of([*quick_start, *fast_wire], (), **ORIGIN)
    tree, ring = crossovers(profile.points, profile.fits)
    assert (tree.measured, ring.measured) == ("tree", "ring")
    assert (tree.predicted, ring.predicted) == ("tree", "ring")
    crossing = 2 * 90e-6 / (1 / 1e8 - 1 / 1e9)
    assert tree.max_bytes < crossing < ring.min_bytes == 2 * tree.max_bytes
    assert crossovers(line(), ()) == []


def test_the_profile_is_read_again_as_it_was_written():
    profile = profile_of([*line(), *line("tree")], ("a notice",), **ORIGIN)
    assert LinkProfile.model_validate_json(profile.model_dump_json()) == profile


def test_the_json_has_the_fields_of_the_contract():
    told = as_object(profile_of(line(), (), **ORIGIN))
    assert {
        *("op", "size_bytes", "dtype", "world_size", "time_s"),
        *("algbw_byte_per_s", "busbw_byte_per_s", "num_wrong"),
    } <= set(told["points"][0])
    assert {
        *("op", "world_size", "alpha_s", "bandwidth_byte_per_s", "law"),
        *("min_bytes", "max_bytes", "error_ratio"),
    } <= set(told["fits"][0])
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("width", [40, 80, 100, 160])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_tables_fit_and_have_the_columns_of_nccl_tests(width, ascii_only):
    points = [*line(), *line("tree", alpha_s=5e-6, bandwidth=5e8)]
    text = render_calibration(profile_of(points, (), **ORIGIN), width, ascii_only=ascii_only)
    assert max(map(len, text.splitlines())) <= width
    assert not ascii_only or text.isascii()
    if width >= 100:
        for header in ("size (B)", "count", "algbw (GB/s)", "busbw (GB/s)", "#wrong"):
            assert header in text
        assert "4194304" in text
        assert "1.00 GB/s" in text


def test_the_type_of_a_fit_is_a_column_only_where_types_differ():
    one = profile_of(line(), (), **ORIGIN)
    half = tuple(fit.model_copy(update={"dtype": "bfloat16"}) for fit in one.fits)
    both = one.model_copy(update={"fits": (*one.fits, *half)})

    def fits_of(profile):
        return render_calibration(profile, 160).partition("fits")[2].splitlines()

    title, header, *_ = (line.split() for line in fits_of(one) if line.strip())
    assert title[:2] == ["of", "float32,"] and "type" not in header
    title, header, *lines = (line.split() for line in fits_of(both) if line.strip())
    assert "float32" not in title and "type" in header
    told = [word for line in lines for word in line if word in ("float32", "bfloat16")]
    assert told == ["float32", "bfloat16"]


NOT_ENDED = "v100_no_mpi_two_jobs.txt"
NOT_NAMED = {"p5_openmpi_tagged.txt": "all_reduce"}
UNTOLD = {
    "gtx1080_2ranks_sendrecv_no_redop.txt": 2,
    "p5_openmpi_tagged.txt": 16,
    "sharp_128ranks_error_column.txt": 128,
    "v100_256ranks_no_device_list.txt": 256,
}
LOGS = sorted(path.name for path in GOLDEN.glob("*.txt") if path.name != NOT_ENDED)


@pytest.mark.parametrize("log", LOGS)
def test_logs_of_clusters_are_read_fitted_and_shown(log):
    op, world_size = NOT_NAMED.get(log), UNTOLD.get(log)
    if world_size:
        with pytest.raises(UsageError, match=r"Nothing in .* --world-size"):
            imported([GOLDEN / log], None, op)
    profile = imported([GOLDEN / log], world_size, op)
    assert profile.points
    assert {point.source.partition(",")[0] for point in profile.points} <= {str(GOLDEN / log)}
    text = render_calibration(profile, 120)
    assert all(str(point.size_bytes) in text for point in profile.points)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--max-bytes", "much"], "not a size"),
        (["--max-bytes", "8"], "from 64 B"),
        (["--gpus", "1,2"], "2 ranks or more"),
        (["--world-size", "4"], "--import"),
        (["--link", "50mbit"], "--launcher lab"),
        (["--op", "all_reduze"], "all_reduce"),
        (["--dtype", "fp8"], "bfloat16"),
        (["--algorithms", "rings"], "ring"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, told, monkeypatch):
    monkeypatch.setattr("scalebench.launch.local.LocalLauncher.survey", lambda *_: {"devices": []})
    result = CliRunner().invoke(calibrate, arguments)
    said = str(result.exception) if isinstance(result.exception, UsageError) else result.output
    assert isinstance(result.exception, UsageError) or result.exit_code == ExitCode.USAGE
    assert told in said


def test_a_file_that_is_no_log_is_refused_by_name(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing of the sort\n")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        imported([tmp_path / "notes.txt"], None)


@pytest.mark.parametrize(("backend", "law"), [("nccl", "ring"), ("gloo", "tree")])
def test_a_broadcast_is_fitted_by_the_backends_law(backend, law):
    """On a chain of 4 ranks: 3 messages until the last rank's first piece, then the link's rate."""
    points = [
        point(size, 3 * ALPHA_S + size / BANDWIDTH, operation="broadcast", num_ranks=4)
        for size in sizes_up_to(1 << 22)
    ]
    profile = profile_of(points, (), **ORIGIN | {"backend": backend})
    (fit,) = profile.fits
    assert fit.law == law
    (regime,) = fit.regimes
    if law == "ring":
        assert regime.alpha_s == pytest.approx(ALPHA_S, rel=1e-3)
        assert regime.bandwidth_byte_per_s == pytest.approx(BANDWIDTH, rel=1e-3)


def test_timings_of_whole_batches_have_a_median_and_no_percentile():
    transfer = Transfer(operation="all_reduce", size_bytes=1024)
    timed = TimedTransfer(
        transfer=transfer,
        size_bytes=1024,
        time_s=(1e-5, 3e-5, 2e-5),
        num_elements=256,
        num_wrong=0,
    )
    found = point_of(timed, 2, "")
    assert found.time_s == 2e-5
    assert found.p99_s is None


def test_a_gpu_has_twenty_operations_at_every_size():
    planned = transfers_of(Sweeps((2,), ("all_reduce",), ("float32",), 1 << 28), "cuda")
    assert {one.back_to_back for one in planned} == {20}
    few = transfers_of(
        Sweeps((2,), ("all_reduce",), ("float32",), 1 << 20, sizes={"all_reduce": (1 << 20,)})
    )
    assert {one.back_to_back for one in few} == {2}
