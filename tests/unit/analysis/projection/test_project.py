import pytest
from click.testing import CliRunner

from benchmarks.interval_coverage import LAUNCH_SD, Predictions, coverage, ratio_holds
from scalebench.analysis.projection.project import project
from scalebench.analysis.projection.recovery import FailureRates, NothingToProject, project_recovery
from scalebench.analysis.run import StoredRun
from scalebench.cli import cli
from scalebench.costmodel.what_if import WhatIf
from scalebench.errors import ExitCode, UsageError
from scalebench.records.paths import RunPaths
from scalebench.spec import Ddp, Plain
from tests.builders.rows.predictions import BUCKETS, at_one
from tests.builders.rows.projections import make_run, the_profile
from tests.builders.rows.recoveries import rows_with, save
from tests.builders.runs import make_cell, make_info, make_result
from tests.examples import cases


def test_more_ranks_than_samples_are_refused_by_row(tmp_path):
    few, many = project(make_run(tmp_path, link=the_profile(2)), [32, 64]).rows
    assert few.step_s is not None
    assert many.step_s is None
    assert "--scaling weak" in many.reason


def test_a_run_that_supports_nothing_is_refused(tmp_path):
    with pytest.raises(NothingToProject, match="--topology") as refused:
        project(make_run(tmp_path), [8])
    assert refused.value.exit_code == ExitCode.INCONCLUSIVE
    run = make_run(tmp_path, link=the_profile(2))
    run.results = {k: r for k, r in run.results.items() if r.cell.case == "plain"}
    with pytest.raises(NothingToProject, match=r"ended before N=1 was measured; .*run --resume"):
        project(run, [8])


def test_bad_input_is_refused(tmp_path):
    run = make_run(tmp_path, link=the_profile(2))
    with pytest.raises(UsageError, match="2 ranks or more"):
        project(run, [1, 4])
    with pytest.raises(UsageError, match="--topology"):
        project(run, [4], what_if=WhatIf(hierarchical=True))


@cases("first", "float32", "bfloat16")
def test_a_case_is_projected_against_the_plain_row_of_its_precision_and_batch(tmp_path, first):
    """Three plain rows, in either order; each case has its own ideal."""
    plain = [
        make_result(make_cell("plain", 1), 0.1),
        make_result(make_cell("plain-bf16", 1, strategy=Plain(autocast=True)), 0.04),
        make_result(make_cell("plain-64", 1, global_batch=64, rank_batch=64), 0.15),
    ]
    one = at_one(*BUCKETS)
    bf16 = make_cell("ddp-bf16", 1, strategy=Ddp(autocast=True))
    larger = make_cell("ddp-64", 1, global_batch=64, rank_batch=64)
    cases = [one, *(one.model_copy(update={"cell": cell}) for cell in (bf16, larger))]
    results = [*(plain if first == "float32" else plain[::-1]), *cases]
    run = StoredRun(
        RunPaths(tmp_path),
        make_info([result.cell for result in results]),
        {result.cell.id: result for result in results},
        link=the_profile(2),
    )
    found = {row.case: row.ideal_s for row in project(run, [8]).rows}
    assert found == pytest.approx({"ddp": 0.1 / 8, "ddp-bf16": 0.04 / 8, "ddp-64": 0.15 / 8})


HOUR_S = 3600.0


@pytest.fixture
def rows():
    return rows_with([save("full", 4.0), save("async", 1.0)], [])


def test_without_a_restart_only_the_interval_is_known(rows):
    (one, _) = project_recovery(rows, (64,), FailureRates(mtbf_s=HOUR_S))
    assert one.at_optimum is None and "give --restart" in one.reason
    assert one.daly_interval_s == pytest.approx((2 * 4 * HOUR_S) ** 0.5, rel=0.02)


@cases(
    "rates, said",
    (FailureRates(mtbf_s=1, device_mtbf_s=1), "Give one of them"),
    (FailureRates(interval_s=60), "need a failure rate: add --mtbf 8h"),
    (FailureRates(mtbf_s=HOUR_S, interval_s=2), "--interval 2.00 s is shorter than one check"),
)
def test_what_contradicts_itself_is_refused(rows, rates, said):
    with pytest.raises(UsageError, match=said):
        project_recovery(rows, (64,), rates)


def test_project_refuses_failures_without_checkpoints():
    run = "reports/gallery/ddp-2-cores"
    done = CliRunner().invoke(
        cli, ["project", run, "--gpus", "16", "--mtbf", "3h"], standalone_mode=False
    )
    assert isinstance(done.exception, UsageError)
    assert "Run scalebench run recovery" in str(done.exception)


CALLS = 600
SLACK = 0.035
"""Nearly three standard errors of a share of 90 % in 600 calls; the normal quantile in place of
Student's t is off by 5 to 20 points."""


@cases(
    "counts",
    Predictions(2, 3 * LAUNCH_SD).row_holds,
    Predictions(4, 3 * LAUNCH_SD).row_holds,
    Predictions(4, 0.0).row_holds,
    Predictions(3, 3 * LAUNCH_SD, same_start=True).projection_holds,
    ids=["one other row", "three other rows", "launches alone", "projection"],
)
def test_ninety_percent_intervals_hold_the_truth_nine_times_in_ten(counts):
    for num_launches, share in coverage(counts, CALLS).items():
        assert share == pytest.approx(0.90, abs=SLACK), num_launches


def test_a_break_even_s_interval_holds_as_often_as_it_says():
    """Although rounds drift by five times what launches scatter."""
    for num_launches, share in coverage(ratio_holds, 200).items():
        assert share >= 0.91, num_launches
