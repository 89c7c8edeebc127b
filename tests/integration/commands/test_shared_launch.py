"""Rows of a suite that cannot take turns in one launch: a failure is found, and others go on."""

import json

from scalebench.analysis.run import load_run
from tests.integration.conftest import SHORT, row_of

ONE = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--out", "r", "--no-report", *SHORT)


def test_a_row_that_fails_is_found_and_the_others_go_on_sharing(scalebench, project, troubled):
    arguments = (*ONE, "--workload", "troubled:raises_on_rank_1")
    assert scalebench(*arguments, "--repeats", "2").returncode == 4
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert (row["status"], row["reason"]) == ("failed", "rank 1: ValueError: planted on rank 1")
    run = load_run(project / "r")
    shared = {r.cell.id: len(r.shared_with) for r in run.results.values()}
    assert shared["ddp.plain.n1.r0"] == shared["ddp.ddp-static-graph.n1.r0"] == 0
    assert shared["ddp.plain.n1.r1"] == shared["ddp.ddp-static-graph.n1.r1"] == 2
    assert shared["ddp.ddp-static-graph.n2.r1"] == 0
    notices = json.loads((project / "r/run.json").read_text())["notices"]
    assert not any("by turns" in notice for notice in notices)  # it failed by itself, too


def test_batches_made_in_advance_keep_a_workload_from_sharing(scalebench, project, troubled):
    scalebench(*ONE, "--workload", "troubled:fed_by_workers", code=0)
    run = load_run(project / "r")
    assert not any(r.shared_with for r in run.results.values())
    (said,) = [notice for notice in run.info.notices if "by turns" in notice]
    assert "workers of its DataLoader do not wait" in said
