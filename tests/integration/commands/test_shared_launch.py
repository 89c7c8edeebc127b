"""Rows of a suite that take turns in one launch: one works at a time, and a failure is found."""

import json
from itertools import pairwise

from scalebench.analysis.run import load_run
from tests.integration.conftest import SHORT, row_of

STATIC = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--out", "r", "--no-report")
ONE = (*STATIC, *SHORT)


def measured_in(run):
    """Return start, end and cell of every block after the warm-up, in the order of time."""
    return sorted(
        (block.start_ns, block.end_ns, result.cell.id)
        for result in run.results.values()
        if result.cell.purpose != "inspect"
        for rank in result.ranks
        for block in rank.blocks
        if block.phase != "warmup" and block.start_ns is not None and block.end_ns is not None
    )


def test_only_one_row_works_at_a_time_and_all_had_their_turns(scalebench, project):
    flags = ("--repeats", "2", "--steps", "8", "--batch-size", "16", "--workload", "mlp-tiny")
    scalebench(*STATIC, *flags, code=0)
    run = load_run(project / "r")
    for repeat in range(2):
        of_round = [
            r
            for r in run.results.values()
            if r.cell.purpose != "inspect" and r.cell.repeat == repeat
        ]
        ids = [result.cell.id for result in of_round]
        assert len(ids) == 3 + 2 and all(sorted(r.shared_with) == sorted(ids) for r in of_round)
        assert all(r.launch_s is None and r.wall_s for r in of_round)
    blocks = measured_in(run)
    assert {cell for _, _, cell in blocks} == {
        r.cell.id for r in run.results.values() if r.cell.purpose != "inspect"
    }
    for (_, end, before), (start, _, after) in pairwise(blocks):
        assert start >= end or before == after, f"{after} began while {before} was at work"
    clean = [sum(b.phase == "clean" for b in r.ranks[0].blocks) for r in run.results.values()]
    assert set(clean) == {0, 4}  # inspections have none; 8 steps are 4 turns of 2


def test_isolated_rows_have_launches_of_their_own(scalebench, project):
    scalebench(*ONE, "--isolated", code=0)
    results = load_run(project / "r").results.values()
    assert all(r.shared_with == [] and r.launch_s for r in results if r.cell.purpose == "measure")


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
