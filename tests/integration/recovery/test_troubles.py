"""Workloads with known troubles, all in one run: each row says its own, and the others go on.

Wrong results are failed rows; models that cannot be compared are not blamed.
"""

import json
import re
from pathlib import Path

import pytest

from scalebench.launch.ranks import GRACE_S
from scalebench.records.files import read_text
from tests.conftest import scalebench_in
from tests.examples import cases
from tests.integration.conftest import row_of
from tests.integration.troubled import BATCH_S

SUITES = """
from scalebench import Case, Ddp, StepPlan, Suite

def suite(name, troubles, trace, limit_s):
    cases = tuple(Case(name=t, strategy=Ddp(), workload="troubled:" + t) for t in troubles)
    steps = StepPlan(steps=4, trace=trace)
    return Suite(name=name, question="?", cases=cases, batch_size=16, steps=steps, repeats=1,
                 cell_limit_s=limit_s)
"""
TROUBLES = (
    *("raises_on_rank_1", "killed_on_rank_1", "nan_on_rank_1", "segfault_on_rank_1"),
    *("out_of_memory", "bypasses_the_wrapper", "with_batchnorm", "with_dropout"),
    *("with_summed_loss", "feeds_all_ranks_alike", "too_large_for_one_process", "slow_batches"),
    "healthy",
)
LATER = (
    *("hangs_on_rank_1", "raises_in_the_rounds", "dies_in_the_rounds", "hangs_in_the_rounds"),
    "late_on_rank_0",
)
"""Troubles that take the limit of a launch, or show when steps are traced."""
LIMIT_S = 8


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("troubles")
    (folder / "troubled.py").write_text((Path(__file__).parents[1] / "troubled.py").read_text())
    (folder / "suites.py").write_text(SUITES)
    for name, *rest in (("early", TROUBLES, False, 120), ("late", LATER, True, LIMIT_S)):
        made = ", ".join(map(repr, (name, *rest)))
        (folder / f"{name}.py").write_text(f"from suites import suite\nSUITE = suite({made})\n")
    done = scalebench_in(
        folder,
        *("run", "./early.py", "./late.py", "--gpus", "1,2", "--device", "cpu", "--no-report"),
        *("--out", "r"),
    )
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stdout
    return folder / "r", done.stderr


@cases(
    "workload, reason, in_log",
    ("raises_on_rank_1", "rank 1: ValueError: planted on rank 1", "planted on rank 1"),
    ("killed_on_rank_1", "rank 1: killed by SIGKILL", ""),
    ("segfault_on_rank_1", "rank 1: killed by SIGSEGV", ""),
    ("nan_on_rank_1", "the loss is not finite at step 8 on rank 1", ""),
)
def test_a_failing_rank_is_named_and_the_next_cell_runs(ended, workload, reason, in_log):
    run, told = ended
    row = row_of(run, workload, 2)
    assert (row["status"], row["reason"]) == ("failed", reason)
    assert row_of(run, workload, 1)["status"] == "ok"
    assert reason in told
    if in_log:
        cell = json.loads(read_text(run / f"cells/early.{workload}.n2.r0.json.gz"))
        assert cell["failure"]["rank"] == 1
        assert in_log in cell["failure"]["log_tail"]
        assert in_log in (run / f"logs/early.{workload}.n2.r0/rank1.log").read_text()


def test_a_dead_rank_is_noticed_long_before_the_limit(ended):
    died_s = float((ended[0].parent / "died").read_text())
    cell = ended[0] / "cells/early.segfault_on_rank_1.n2.r0.json.gz"
    assert 0 < cell.stat().st_mtime - died_s < GRACE_S + 30


def test_out_of_memory_is_its_own_status(ended):
    row = row_of(ended[0], "out_of_memory", 2)
    assert row["status"] == "oom"
    assert re.search(r"the process's peak until then: \d", row["reason"])


def test_a_hung_rank_is_ended_at_the_limit_and_its_stack_kept(ended):
    row = row_of(ended[0], "hangs_on_rank_1", 2)
    assert row["status"] == "failed"
    assert f"still running after the time limit of {LIMIT_S} s: rank 0, 1 of 2" in row["reason"]
    assert re.search(r"rank 1 never reached collective \d+, where the others wait", row["reason"])
    log = (ended[0] / "logs/late.hangs_on_rank_1.n2.r0/rank1.log").read_text()
    assert "troubled.py" in log  # where it hung


@cases(
    "workload, reason",
    ("raises_in_the_rounds", "tracing the steps failed: planted while traced"),
    ("dies_in_the_rounds", "was lost while steps were traced"),
    ("hangs_in_the_rounds", "was lost while steps were traced"),
)
def test_what_fails_after_the_clean_window_costs_the_attribution_alone(ended, workload, reason):
    row = row_of(ended[0], workload, 2)
    assert row["status"] == "ok"
    assert row["step_s"] is not None and row["efficiency"] is not None
    assert row["budget"] is None
    assert reason in row["unavailable"]["budget"]


def test_a_wrong_gradient_is_a_failed_row_without_a_speed(ended):
    row = row_of(ended[0], "bypasses_the_wrapper", 2)
    assert row["status"] == "failed"
    assert row["correctness"]["gradient_deviation"] > 0.1
    assert "single-process reference" in row["reason"]
    assert row["step_s"] is None and row["speedup"] is None
    assert row_of(ended[0], "bypasses_the_wrapper", 1)["status"] == "ok"  # nothing lost


@cases(
    "workload, cause",
    ("with_batchnorm", "BatchNorm1d"),
    ("with_dropout", "Dropout"),
    ("with_summed_loss", "no known module"),
    ("feeds_all_ranks_alike", "rank 1 got the same samples as rank 0"),
    ("too_large_for_one_process", "planted: the bare model does not fit"),
)
def test_what_cannot_be_compared_is_unverified_not_failed(ended, workload, cause):
    row = row_of(ended[0], workload, 2)
    assert row["status"] == "ok" and row["step_s"] is not None
    assert row["correctness"]["status"] == "unverified"
    assert cause in row["correctness"]["reason"]
    assert "unverified" in row["stamps"]
    if workload == "too_large_for_one_process":
        assert row["peak_memory_bytes"] is not None
        assert "one process cannot hold" in row["unavailable"]["flops_per_sample"]
        assert row_of(ended[0], workload, 1)["correctness"]["status"] == "verified"


def test_a_healthy_custom_workload_is_verified(ended):
    correctness = row_of(ended[0], "healthy", 2)["correctness"]
    assert correctness["status"] == "verified"
    assert 0 <= correctness["gradient_deviation"] < 1e-5


def test_a_late_root_makes_the_others_wait_in_its_broadcast(ended):
    row = row_of(ended[0], "late_on_rank_0", 2)
    assert (row["stragglers"][0]["rank"], row["budget"]["rank"]) == (0, 1)
    assert row["wait_s"]["value"] > 0.8 * BATCH_S


def test_a_batch_that_takes_its_time_is_part_of_the_step(ended):
    assert row_of(ended[0], "slow_batches", 1)["step_s"]["value"] >= BATCH_S
