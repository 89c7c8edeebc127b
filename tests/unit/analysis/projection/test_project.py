"""Sizes that were not measured, projected from runs whose every number is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.projection.project import project
from scalebench.analysis.projection.rows import NothingToProject
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.what_if import WhatIf, with_buckets
from scalebench.errors import ExitCode, UsageError
from scalebench.records.paths import RunPaths
from scalebench.spec import Ddp, Plain
from tests.builders.rows.predictions import BUCKET, BUCKETS, at_one, shape
from tests.builders.rows.projections import make_run, the_profile
from tests.builders.runs import make_cell, make_info, make_result


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


@given(st.floats(1e4, 1e7))
def test_other_buckets_carry_the_same_gradients(bucket_bytes):
    found = with_buckets(shape(at_one(*BUCKETS)), bucket_bytes)
    assert sum(r.size_bytes for r in found.requests) == 3 * BUCKET
    assert max(r.size_bytes for r in found.requests) <= bucket_bytes + 1
    ready = [r.ready_s for r in found.requests]
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(found.batch_s)


BF16 = {"strategy": Plain(autocast=True)}


@pytest.mark.parametrize("first", ["float32", "bfloat16"])
def test_a_case_is_projected_against_the_plain_row_of_its_precision_and_batch(tmp_path, first):
    """Three plain rows, in either order; each case has its own ideal."""
    plain = [
        make_result(make_cell("plain", 1), 0.1),
        make_result(make_cell("plain-bf16", 1, **BF16), 0.04),
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
