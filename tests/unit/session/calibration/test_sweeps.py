"""Calibration: what is planned, what becomes of points, how it is shown."""

import json

import pytest
from click.testing import CliRunner

from scalebench.cli.calibrate import as_object, calibrate
from scalebench.costmodel.links.profile import LinkProfile, profile_of
from scalebench.errors import ExitCode, UsageError
from scalebench.report.tables.calibration import render_calibration
from scalebench.session.calibration.sweeps import (
    Sweeps,
    cut_short,
    measured_profile,
    sizes_up_to,
)
from tests.builders.calibrated import ALPHA_S, BANDWIDTH, line, point

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
