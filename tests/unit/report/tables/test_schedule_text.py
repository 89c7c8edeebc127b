"""A schedule drawn as text."""

import json

from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.costmodel.pipelines.dry_run import dry_run, equal_times
from scalebench.costmodel.pipelines.orders import plan_schedule
from scalebench.report.tables.layout import Screen
from scalebench.report.tables.pipelines import render_schedule


def drawn(name, p, m, v=1, width=100, ascii_only=False):
    timeline = dry_run(plan_schedule(name, p, m, v), equal_times(p * v))
    return render_schedule(timeline, Screen(width, ascii_only=ascii_only)).splitlines()


def test_1f1b_looks_like_this():
    lines = drawn("1f1b", 2, 3)
    assert lines[:2] == [
        "rank 0  F0 F1 ·  ·  B0─── F2 B1─── ·  B2───",
        "rank 1  ·  F0 B0─── F1 B1─── F2 B2─── ·  ·",
    ]
    told = "\n".join(lines[2:])
    assert "bubble 25.0 %" in told and "by the law (p−1)/(m+p−1) 25.0 %" in told
    assert "by rank: 2, 1" in told


def test_the_command_draws_without_a_run_and_prints_json():
    shown = CliRunner().invoke(cli, ["show", "--schedule", "gpipe", "-p", "2", "-m", "2"])
    assert shown.exit_code == 0 and "rank 1" in shown.stdout
    told = CliRunner().invoke(cli, ["show", "--schedule", "1f1b", "-p", "2", "-m", "2", "--json"])
    found = json.loads(told.stdout)
    assert found["actions"][0] == {
        **{"rank": 0, "stage": 0, "kind": "F", "microbatch": 0, "start": 0.0, "end": 1.0}
    }


def test_wrong_numbers_are_refused_in_one_line():
    for arguments, told in (
        (("--schedule", "1f1c"), "There is no schedule '1f1c'"),
        (("--schedule", "1f1b", "-p", "8", "-m", "4"), "as many microbatches as stages"),
        (("--schedule", "zbv", "-v", "1"), "zbv has two chunks on each rank. Give -v 2"),
        (("-p", "2"), "-p, -m and -v are for --schedule"),
        (("run", "--schedule", "gpipe"), "--schedule draws without a run"),
    ):
        done = CliRunner().invoke(cli, ["show", *arguments])
        assert done.exit_code != 0
        assert told in str(done.exception), arguments
