"""Wrong results are failed rows; models that cannot be compared are not blamed."""

from pathlib import Path

import pytest

from tests.conftest import Scalebench
from tests.integration.conftest import SHORT, row_of

DDP = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--out", "r", *SHORT)


def test_a_wrong_gradient_is_a_failed_row_without_a_speed(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    done = scalebench(*DDP, "--workload", "troubled:bypasses_the_wrapper")
    assert done.returncode == 4
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert row["status"] == "failed"
    assert row["correctness"]["gradient_deviation"] > 0.1
    assert "single-process reference" in row["reason"]
    assert row["step_s"] is None and row["speedup"] is None
    assert row_of(project / "r", "ddp-static-graph", 1)["status"] == "ok"  # one rank: nothing lost


@pytest.mark.parametrize(
    ("workload", "cause"),
    [
        ("with_batchnorm", "BatchNorm1d"),
        ("with_dropout", "Dropout"),
        ("with_summed_loss", "no known module"),
    ],
)
def test_a_model_that_depends_on_the_split_is_unverified_not_failed(
    scalebench: Scalebench, project: Path, troubled: None, workload: str, cause: str
) -> None:
    done = scalebench(*DDP, "--workload", f"troubled:{workload}")
    assert done.returncode == 0, done.stderr
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert row["correctness"]["status"] == "unverified"
    assert cause in row["correctness"]["reason"]
    assert "unverified" in row["stamps"]
    assert row["step_s"] is not None


def test_ranks_that_are_fed_the_same_samples_are_not_verified(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    done = scalebench(*DDP, "--workload", "troubled:feeds_all_ranks_alike")
    assert done.returncode == 0, done.stderr
    correctness = row_of(project / "r", "ddp-static-graph", 2)["correctness"]
    assert correctness["status"] == "unverified"
    assert "rank 1 got the same samples as rank 0" in correctness["reason"]


def test_a_healthy_custom_workload_is_verified(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    done = scalebench(*DDP, "--workload", "troubled:healthy")
    assert done.returncode == 0, done.stderr
    correctness = row_of(project / "r", "ddp-static-graph", 2)["correctness"]
    assert correctness["status"] == "verified"
    assert 0 <= correctness["gradient_deviation"] < 1e-5


def test_a_model_that_one_process_cannot_hold_is_measured_unverified(
    scalebench: Scalebench, project: Path, troubled: None
) -> None:
    done = scalebench(*DDP, "--workload", "troubled:too_large_for_one_process")
    assert done.returncode == 0, done.stderr
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert row["status"] == "ok" and row["step_s"] is not None
    assert row["peak_memory_bytes"] is not None
    assert row["correctness"]["status"] == "unverified"
    assert "planted: the bare model does not fit" in row["correctness"]["reason"]
    assert "unverified" in row["stamps"]
    assert "one process cannot hold" in row["unavailable"]["flops_per_sample"]
    assert row_of(project / "r", "ddp-static-graph", 1)["correctness"]["status"] == "verified"
