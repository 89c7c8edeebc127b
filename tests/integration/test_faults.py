"""Faults of ranks and launchers: told, contained, and nothing lost."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from scalebench.launch.ranks import GRACE_S
from scalebench.records.files import read_text
from scalebench.records.paths import RunPaths
from scalebench.records.scratch import PREFIX
from tests.conftest import PATIENCE_S, Scalebench
from tests.integration.conftest import SHORT, row_of, summary_of
from tests.processes import left_after

TWO = ("run", "ddp", "-k", "static or checkpointing", "--gpus", "1,2", "--out", "r", *SHORT)
ONE = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--out", "r", *SHORT)
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.parametrize(
    ("workload", "reason", "in_log"),
    [
        ("raises_on_rank_1", "rank 1: ValueError: planted on rank 1", "planted on rank 1"),
        ("killed_on_rank_1", "rank 1: killed by SIGKILL", ""),
        ("nan_on_rank_1", "the loss is not finite at step 8 on rank 1", ""),
    ],
)
def test_a_failing_rank_is_named_and_the_next_cell_runs(
    scalebench: Scalebench, project: Path, troubled: None, workload: str, reason: str, in_log: str
) -> None:
    done = scalebench(*ONE, "--workload", f"troubled:{workload}")
    assert done.returncode == 4
    assert "Traceback" not in done.stdout
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert (row["status"], row["reason"]) == ("failed", reason)
    assert row_of(project / "r", "ddp-static-graph", 1)["status"] == "ok"
    assert reason in done.stderr
    cell = json.loads(read_text(project / "r/cells/ddp.ddp-static-graph.n2.r0.json.gz"))
    if in_log:
        assert cell["failure"]["rank"] == 1
        assert in_log in cell["failure"]["log_tail"]
        assert in_log in (project / "r/logs/ddp.ddp-static-graph.n2.r0/rank1.log").read_text()
    assert scalebench("show", "r").returncode == 0


@pytest.mark.timed
def test_a_dead_rank_is_noticed_at_once(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    scalebench(*ONE, "--workload", "troubled:segfault_on_rank_1")
    assert row_of(project / "r", "ddp-static-graph", 2)["reason"] == "rank 1: killed by SIGSEGV"
    died_s = float((project / "died").read_text())
    stored_s = (project / "r/cells/ddp.ddp-static-graph.n2.r0.json.gz").stat().st_mtime
    assert 0 < stored_s - died_s < GRACE_S + 3


def test_out_of_memory_is_its_own_status(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    done = scalebench(*ONE, "--workload", "troubled:out_of_memory")
    assert done.returncode == 4
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert row["status"] == "oom"
    assert re.search(r"the process's peak until then: \d", row["reason"])


def test_a_hung_rank_is_ended_at_the_limit_and_its_stack_kept(
    project: Path, troubled: None
) -> None:
    import scalebench as sb

    suite = sb.Suite(
        name="hang",
        question="?",
        cases=(sb.Case(name="hangs", strategy=sb.Ddp()),),
        workload="troubled:hangs_on_rank_1",
        batch_size=16,
        steps=sb.StepPlan(steps=4),
        repeats=1,
        cell_limit_s=6,
    )
    run = sb.run(suite, [1, 2], out=Path("r"))
    row = row_of(project / "r", "hangs", 2)
    assert row["status"] == "failed"
    assert "still running after the time limit of 6 s: rank 0, 1 of 2" in row["reason"]
    assert re.search(r"rank 1 never reached collective \d+, where the others wait", row["reason"])
    log = (project / "r/logs/hang.hangs.n2.r0/rank1.log").read_text()
    assert "troubled.py" in log  # where it hung
    assert int(run.exit_code) == 4


def _wait_for(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited {limit_s} s for {what}"
        time.sleep(0.02)


def _cells(project: Path) -> int:
    return len(RunPaths(project / "r").stored_cells())


SLOW = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--out", "r", "--batch-size", "16")
SLOW_WORKLOAD = ("--workload", "troubled:slow", "--steps", "20", "--repeats", "2", "--no-report")


def test_no_rank_survives_a_killed_launcher(
    start_scalebench: Start, scalebench: Scalebench, project: Path, troubled: None
) -> None:
    launcher = start_scalebench(*SLOW, *SLOW_WORKLOAD)
    _wait_for(lambda: _cells(project) >= 4, PATIENCE_S, "four cells")
    _wait_for(lambda: _num_descendants(launcher.pid) >= 2, PATIENCE_S, "a rank")
    family = psutil.Process(launcher.pid).children(recursive=True)
    launcher.kill()
    launcher.communicate()
    assert len(family) >= 2
    assert left_after(family) == []

    shown = scalebench("show", "r", "--json")
    assert shown.returncode == 0
    assert any(row["status"] == "ok" for row in json.loads(shown.stdout)["rows"]) or _cells(project)

    before = {p.name: p.read_bytes() for p in (project / "r/cells").iterdir()}
    done = scalebench("run", "--resume", "r", "--no-report")
    assert done.returncode == 0, done.stderr
    after = {p.name: p.read_bytes() for p in (project / "r/cells").iterdir()}
    assert {name: after[name] for name in before} == before  # nothing done twice
    assert len(after) == len(json.loads((project / "r/run.json").read_text())["plan"])
    assert all(row["status"] == "ok" for row in summary_of(project / "r")["rows"])


def _num_descendants(pid: int) -> int:
    return len(psutil.Process(pid).children(recursive=True))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_is_kept_and_shown(
    start_scalebench: Start, project: Path, troubled: None, number: signal.Signals, code: int
) -> None:
    process = start_scalebench(*SLOW, *SLOW_WORKLOAD)
    _wait_for(lambda: _cells(project) >= 3, PATIENCE_S, "the inspections, before rows take turns")
    _wait_for(lambda: (project / "r/logs/ddp.plain.n1.r0").is_dir(), PATIENCE_S, "the first round")
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    assert left_after(family) == []
    assert "ddp-static-graph" in stdout
    assert json.loads((project / "r/run.json").read_text())["status"] == "interrupted"
    rows = summary_of(project / "r")["rows"]
    assert {row["status"] for row in rows} <= {"ok", "skipped"}
    assert any("interrupted" in (row["reason"] or "") for row in rows)


def test_two_runs_at_once_do_not_meet(
    start_scalebench: Start, project: Path, troubled: None
) -> None:
    flags = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--workload", "troubled:busy")
    both = [start_scalebench(*flags, *SHORT) for _ in range(2)]
    for process in both:
        _, stderr = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, stderr
    runs = [p for p in (project / "reports").iterdir() if not p.is_symlink()]
    assert len(runs) == 2
    for run in runs:
        rows = summary_of(run)["rows"]
        assert all(row["status"] == "ok" for row in rows)
        stamps = [stamp for row in rows for stamp in row["stamps"]]
        assert any(stamp.startswith("foreign load") for stamp in stamps), stamps


def test_what_was_skipped_for_a_failure_is_measured_when_it_is_mended(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    failed = scalebench(*ONE, "--workload", "troubled:works_the_second_time")
    assert failed.returncode == 4
    assert row_of(project / "r", "ddp-static-graph", 2)["status"] == "failed"
    (project / "mended").touch()
    done = scalebench("run", "--resume", "r", "--no-report")
    assert done.returncode == 0, done.stderr
    assert row_of(project / "r", "ddp-static-graph", 2)["step_s"] is not None


def test_a_run_that_is_being_worked_on_cannot_be_resumed(
    start_scalebench: Start, scalebench: Scalebench, project: Path, troubled: None
) -> None:
    first = start_scalebench(*SLOW, *SLOW_WORKLOAD)
    _wait_for(lambda: _cells(project) >= 1, PATIENCE_S, "a cell")
    second = scalebench("run", "--resume", "r")
    assert second.returncode == 2
    assert "Another scalebench is working on r" in second.stderr
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)


def test_sigterm_before_anything_was_launched(start_scalebench: Start, project: Path) -> None:
    process = start_scalebench("run", "ddp", "--out", "r")
    _wait_for(lambda: (project / "r").is_dir(), PATIENCE_S, "the run's folder")
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "Traceback" not in stderr


def test_a_reader_that_stops_reading_loses_nothing(project: Path, troubled: None) -> None:
    flags = [flag for flag in ONE if flag != "--no-report"]
    command = [sys.executable, "-m", "scalebench", *flags, "--workload", "troubled:healthy"]
    quoted = " ".join(f"'{part}'" for part in command)
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {quoted} | true"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (project / "r" / "report.html").exists()


def test_what_a_killed_launcher_leaves_is_removed_by_the_next(
    start_scalebench: Start, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(project))
    process = start_scalebench("run", "ddp", "--out", "scalebench-r")
    _wait_for((project / "scalebench-r").is_dir, PATIENCE_S, "the run's folder")
    (left,) = project.glob(f"{PREFIX}*")
    process.kill()
    process.communicate()
    assert left.exists()
    (project / "scalebench-r" / ".lock").touch()
    again = start_scalebench("doctor")
    _wait_for(lambda: not left.exists(), 30, "the old scratch folder to go")
    _wait_for(lambda: any(project.glob(f"{PREFIX}*/zygote.log")), PATIENCE_S, "its own")
    assert (project / "scalebench-r").is_dir()  # a run is no scratch folder, whatever its name
    again.terminate()
    again.communicate(timeout=30)


def test_a_budget_ends_the_run_and_says_so(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    done = scalebench(
        *SLOW, *SLOW_WORKLOAD[:2], "--repeats", "50", "--budget", "15s", "--no-report"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((project / "r/run.json").read_text())["status"] == "over budget"
    rows = summary_of(project / "r")["rows"]
    assert any(row["status"] == "ok" and row["step_s"]["n"] < 50 for row in rows)


def test_only_loopback_is_listened_on(
    start_scalebench: Start, project: Path, troubled: None
) -> None:
    process = start_scalebench(*SLOW, *SLOW_WORKLOAD)
    _wait_for(lambda: _cells(project) >= 3, PATIENCE_S, "three cells")
    listening: set[str] = set()
    end = time.monotonic() + 4
    while time.monotonic() < end and process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                sockets = child.net_connections(kind="inet")
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            listening |= {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert listening, "no listening socket was seen: the test looked at the wrong moment"
    assert listening <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ("raises_in_the_rounds", "tracing the steps failed: planted while traced"),
        ("dies_in_the_rounds", "was lost while steps were traced"),
    ],
)
def test_what_fails_after_the_clean_window_costs_the_attribution_and_nothing_else(
    scalebench: Scalebench, project: Path, troubled: None, workload: str, reason: str
) -> None:
    done = scalebench(*ONE, "--workload", f"troubled:{workload}")
    assert done.returncode == 0, done.stderr
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert row["status"] == "ok"
    assert row["step_s"] is not None and row["efficiency"] is not None
    assert row["budget"] is None
    assert reason in row["unavailable"]["budget"]
    assert scalebench("show", "r").returncode == 0


def test_a_hang_after_the_clean_window_ends_at_the_limit_and_loses_nothing(
    project: Path, troubled: None
) -> None:
    import scalebench as sb

    suite = sb.Suite(
        name="hang",
        question="?",
        cases=(sb.Case(name="hangs", strategy=sb.Ddp()),),
        workload="troubled:hangs_in_the_rounds",
        batch_size=16,
        steps=sb.StepPlan(steps=4),
        repeats=1,
        cell_limit_s=8,
    )
    sb.run(suite, [1, 2], out=Path("r"))
    row = row_of(project / "r", "hangs", 2)
    assert (row["status"], row["budget"]) == ("ok", None)
    assert "was lost while steps were traced" in row["unavailable"]["budget"]


def test_without_traces_there_is_no_budget_and_the_reason_is_said(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    done = scalebench(*ONE, "--workload", "troubled:healthy", "--no-trace", "--verbose")
    assert done.returncode == 0, done.stderr
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert row["budget"] is None
    assert "--no-trace" in row["unavailable"]["budget"]
    assert "where the lost time goes" not in done.stdout
