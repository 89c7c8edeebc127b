"""Faults of ranks and launchers: told, contained, nothing lost, and no process left behind."""

import json
import os
import re
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from scalebench.records.folder import PREFIX, working_on
from scalebench.records.paths import RunPaths
from tests.conftest import PATIENCE_S, ended, ran
from tests.examples import cases
from tests.integration.conftest import SHORT, row_of, summary_of
from tests.processes import left_after, listening_at, wait_for

ONE = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--out", "r", *SHORT)


def family_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def _cells(project):
    return len(RunPaths(project / "r").stored_cells())


SLOW = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--out", "r", "--batch-size", "16")
SLOW_WORKLOAD = ("--workload", "troubled:slow", "--steps", "10", "--no-trace", "--no-report")


def test_no_rank_survives_a_killed_launcher(start_scalebench, scalebench, project, troubled):
    launcher = start_scalebench(*SLOW, *SLOW_WORKLOAD, "--repeats", "2")
    wait_for(lambda: _cells(project) >= 3, PATIENCE_S, "the inspections")
    listening = set()
    while _cells(project) < 4:
        listening |= listening_at(family_of(launcher))
        time.sleep(0.05)
    assert set() < listening <= {"127.0.0.1", "::1"}, "or none was seen: at the wrong moment"
    wait_for(lambda: len(family_of(launcher)) >= 2, PATIENCE_S, "a rank")
    family = family_of(launcher)
    launcher.kill()
    launcher.communicate()
    assert len(family) >= 2 and left_after(family) == []
    shown = scalebench("show", "r", "--json", code=0)
    assert any(row["status"] == "ok" for row in json.loads(shown.stdout)["rows"]) or _cells(project)
    with working_on(project / "r"):
        refused = scalebench("run", "--resume", "r", code=2)
    assert "Another scalebench is working on r" in refused.stderr
    before = {p.name: p.read_bytes() for p in (project / "r/cells").iterdir()}
    scalebench("run", "--resume", "r", "--no-report", code=0)
    after = {p.name: p.read_bytes() for p in (project / "r/cells").iterdir()}
    assert {name: after[name] for name in before} == before  # nothing done twice
    assert len(after) == len(json.loads((project / "r/run.json").read_text())["plan"])
    assert all(row["status"] == "ok" for row in summary_of(project / "r")["rows"])


def test_an_interrupted_run_is_kept_and_shown(start_scalebench, project, troubled):
    process = start_scalebench(*SLOW, *SLOW_WORKLOAD, "--repeats", "2")
    wait_for(lambda: _cells(project) >= 3, PATIENCE_S, "the inspections, before rows take turns")
    wait_for(lambda: (project / "r/logs/ddp.plain.n1.r0").is_dir(), PATIENCE_S, "the first round")
    family = family_of(process)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = ended(process, 130, 30)
    assert "Traceback" not in stderr and "ddp-static-graph" in stdout
    assert left_after(family) == []
    assert json.loads((project / "r/run.json").read_text())["status"] == "interrupted"
    rows = summary_of(project / "r")["rows"]
    assert {row["status"] for row in rows} <= {"ok", "skipped"}
    assert any("interrupted" in (row["reason"] or "") for row in rows)


def test_two_runs_at_once_do_not_meet(start_scalebench, project, troubled):
    flags = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--workload", "troubled:busy")
    both = [start_scalebench(*flags, *SHORT) for _ in range(2)]
    for process in both:
        ended(process, 0)
    runs = [p for p in (project / "reports").iterdir() if not p.is_symlink()]
    assert len(runs) == 2
    for run in runs:
        rows = summary_of(run)["rows"]
        assert all(row["status"] == "ok" for row in rows)
        stamps = [stamp for row in rows for stamp in row["stamps"]]
        assert any(stamp.startswith("foreign load") for stamp in stamps), stamps


def test_what_was_skipped_for_a_failure_is_measured_when_mended(scalebench, project, troubled):
    scalebench(*ONE, "--workload", "troubled:works_the_second_time", code=4)
    assert row_of(project / "r", "ddp-static-graph", 2)["status"] == "failed"
    (project / "mended").touch()
    scalebench("run", "--resume", "r", "--no-report", code=0)
    assert row_of(project / "r", "ddp-static-graph", 2)["step_s"] is not None


def test_sigterm_before_anything_was_launched(start_scalebench, project):
    process = start_scalebench("run", "ddp", "--out", "r")
    wait_for(lambda: (project / "r").is_dir(), PATIENCE_S, "the run's folder")
    process.terminate()
    _, stderr = ended(process, 143, 30)
    assert "Traceback" not in stderr


def test_a_reader_that_stops_reading_loses_nothing(project, troubled):
    flags = [flag for flag in ONE if flag != "--no-report"]
    command = [sys.executable, "-m", "scalebench", *flags, "--workload", "troubled:healthy"]
    quoted = " ".join(f"'{part}'" for part in command)
    ran(["bash", "-c", f"set -o pipefail; {quoted} | true"], code=0)
    assert (project / "r" / "report.html").exists()


def test_what_a_killed_launcher_leaves_the_next_removes(start_scalebench, project, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(project))
    process = start_scalebench("run", "ddp", "--out", "scalebench-r")
    wait_for((project / "scalebench-r").is_dir, PATIENCE_S, "the run's folder")
    (left,) = project.glob(f"{PREFIX}*")
    process.kill()
    process.communicate()
    assert left.exists()
    (project / "scalebench-r" / ".lock").touch()
    again = start_scalebench("doctor")
    wait_for(lambda: not left.exists(), 30, "the old scratch folder to go")
    wait_for(lambda: any(project.glob(f"{PREFIX}*/zygote.log")), PATIENCE_S, "its own")
    assert (project / "scalebench-r").is_dir()  # a run is no scratch folder, whatever its name
    again.terminate()
    again.communicate(timeout=30)


def test_a_budget_ends_the_run_and_says_so(scalebench, project, troubled):
    flags = ("--workload", "troubled:healthy", "--steps", "4", "--no-trace", "--no-report")
    done = scalebench(*SLOW, *flags, "--repeats", "200", "--budget", "10s", code=0)
    assert "scalebench run --resume " in done.stdout.splitlines()[-1]
    assert json.loads((project / "r/run.json").read_text())["status"] == "over budget"
    rows = summary_of(project / "r")["rows"]
    assert any(row["status"] == "ok" and row["step_s"]["n"] < 50 for row in rows)


SCRIPT = Path(__file__).parents[1] / "scripts" / "leaves_processes.py"
FLAGS = ("run", "--quick", "--no-report", "--no-trace", "--out", "r")
LIMIT_S = 300.0


@pytest.fixture(autouse=True)
def script(project):
    shutil.copy(SCRIPT, project / "script.py")
    yield
    for path in project.glob("pids*"):
        for pid in path.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def started_by(project, rank, size):
    """The script's process of a rank, and those that it has started."""
    noted, found = project / f"pids{size}.{rank}", []
    wait_for(noted.exists, LIMIT_S, "the script")
    for pid in noted.read_text().split():
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(pid)))
    return found


def nothing_left_of(project, ranks):
    left = [process for rank in range(ranks) for process in started_by(project, rank, ranks)]
    assert left_after(left, 0.0) == []
    assert len([*project.glob(f"asked{ranks}.*")]) == ranks, "SIGTERM comes first"
    return row_of(project / "r", "script", ranks)["reason"]


@cases(
    "trouble, ranks, code, told",
    ("fails", 2, 4, "rank 1: RuntimeError: a trouble of its own"),
    ("ends", 1, 0, None),
)
def test_what_a_script_starts_ends_with_its_launch(scalebench, project, trouble, ranks, code, told):
    command = (*FLAGS, "--gpus", str(ranks), "--", "script.py", trouble, str(ranks))
    scalebench(*command, timeout=LIMIT_S, code=code)
    assert nothing_left_of(project, ranks) == told


@pytest.fixture
def no_nohup():
    """Under nohup, SIGHUP is ignored by all below it, as it should be."""
    formerly = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, formerly)


@pytest.mark.usefixtures("no_nohup")
@cases("number, code", (signal.SIGHUP, 129), (signal.SIGKILL, -9))
def test_what_a_script_has_started_ends_with_the_launcher(start_scalebench, project, number, code):
    launcher = start_scalebench(*FLAGS, "--gpus", "1", "--", "script.py", "hangs", "1")
    family = started_by(project, 0, 1)
    launcher.send_signal(number)
    ended(launcher, code, LIMIT_S)
    assert len(family) == 4 and left_after(family) == []
    if number != signal.SIGKILL:
        assert json.loads((project / "r/summary.json").read_text())["rows"]
        assert (project / "asked1.0").exists(), "SIGTERM comes first"


def test_what_a_script_starts_ends_when_the_process_that_forks_is_killed(start_scalebench, project):
    launcher = start_scalebench(*FLAGS, "--gpus", "1", "--", "script.py", "hangs", "1")
    family = started_by(project, 0, 1)
    (zygote,) = psutil.Process(launcher.pid).children()
    zygote.kill()
    _, stderr = ended(launcher, 5, LIMIT_S)
    assert "The process that starts the ranks was killed by SIGKILL: scalebench did not" in stderr
    assert len(family) == 4 and left_after(family) == []


def test_a_stopped_rank_of_a_script_is_named(start_scalebench, project):
    limit = ("--gpus", "2", "--time-limit", "8s")
    launcher = start_scalebench(*FLAGS, *limit, "--", "script.py", "hangs", "2")
    stopped, *_ = started_by(project, 1, 2)
    stopped.suspend()
    ended(launcher, 4, LIMIT_S)
    reason = row_of(project / "r", "script", 2)["reason"]
    assert reason.startswith("rank 1: still running after the time limit of 8 s"), reason
    assert f"rank 1 was stopped (process {stopped.pid}" in reason


def test_nohup_is_respected_and_a_script_that_hangs_is_ended(start_scalebench, project):
    nohup = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    flags = (*FLAGS, "--gpus", "1", "--time-limit", "5s")
    launcher = start_scalebench(*flags, "--", "script.py", "hangs", "1", before=nohup)
    started_by(project, 0, 1)
    os.kill(launcher.pid, signal.SIGHUP)
    ended(launcher, 4, LIMIT_S)
    told = r"time limit of 5 s: .*rank 0 at script\.py:\d+ in hang_here"
    assert re.search(told, nothing_left_of(project, 1))
