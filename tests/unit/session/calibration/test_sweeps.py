"""Calibration: what is planned, what becomes of points, how it is shown."""

import pytest
from click.testing import CliRunner

from scalebench.cli.calibrate import calibrate
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.errors import ExitCode, UsageError
from scalebench.session.calibration.sweeps import Sweeps, cut_short, measured_profile
from tests.builders.links.calibrated import point


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
