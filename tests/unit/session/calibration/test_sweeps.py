"""Calibration: what is planned, what becomes of points, how it is shown."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner

from scalebench.cli.calibrate import as_object, calibrate
from scalebench.costmodel.links.points import crossovers
from scalebench.costmodel.links.profile import LinkProfile, profile_of
from scalebench.errors import ExitCode, UsageError
from scalebench.records.rank import Memory
from scalebench.report.tables.calibration import render_calibration
from scalebench.session.calibration.of_run import PARTS, _sweeps
from scalebench.session.calibration.sweeps import (
    Sweeps,
    cut_short,
    imported,
    measured_profile,
    sizes_up_to,
    transfers_of,
)
from scalebench.spec import Cell, Ddp, Expert
from scalebench.spec.presets import PRESETS, MoeShape
from tests.builders.calibrated import ALPHA_S, BANDWIDTH, line, point
from tests.builders.runs import make_cell, make_record, make_result

GOLDEN = Path(__file__).parents[3] / "golden" / "nccl_tests"
ORIGIN = {"created": "now", "version": "0", "device": "cpu", "backend": "gloo"}


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


def test_a_wrong_result_is_not_fitted_and_counted():
    points = [*line()[:-1], point(1 << 22, 0.01, wrong=3)]
    profile = profile_of(points, (), **ORIGIN)
    assert profile.num_wrong == 3
    assert profile.fits == profile_of(line()[:-1], (), **ORIGIN).fits
    assert "results were wrong at 4.19 MB" in profile.notices[0]


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


MOE = cast(MoeShape, PRESETS["gpt-moe-tiny"])
PARAMETERS_BYTES = 9_135_104


def of_run(cells: Sequence[Cell]) -> Sweeps:
    """Return what a run of cells calibrates that have been inspected."""
    spec = SimpleNamespace(device="cpu", virtual_hosts=None, pinned=False)
    inspections = [cell.model_copy(update={"purpose": "inspect"}) for cell in cells]
    memory = Memory(parameters_bytes=PARAMETERS_BYTES)
    ranks = [make_record(r).model_copy(update={"memory": memory}) for r in range(2)]
    results = {cell.id: make_result(cell, ranks=ranks) for cell in inspections}
    return _sweeps(cells, SimpleNamespace(results=results, info=SimpleNamespace(spec=spec)))  # type: ignore[arg-type]


def test_each_operation_is_timed_up_to_what_its_own_strategies_send() -> None:
    """Tokens on their way to experts are small beside all gradients in one bucket."""
    settings = {"world_size": 2, "workload": MOE, "global_batch": 16, "rank_batch": 8}
    cells = [
        make_cell("ddp", strategy=Ddp(), **settings),
        make_cell("expert", strategy=Expert(), **settings),
    ]
    sweeps = of_run(cells)
    largest = {op: sizes[-1] for op, sizes in sweeps.sizes.items()}
    assert not sweeps.pinned, "as the run's ranks are"
    assert largest["all_reduce"] == PARAMETERS_BYTES
    assert largest["all_to_all"] == 4 * MOE.width * MOE.top_k * MOE.context * 8
    planned = transfers_of(sweeps)
    assert len(planned) == 2 * len(PARTS)
    assert {(t.operation, t.size_bytes) for t in planned} == {
        (op, size // part) for op, size in largest.items() for part in PARTS
    }
