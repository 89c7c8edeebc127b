"""The main job end to end: real ranks train, the run folder holds what the contract says."""

import csv
import json
import math
import stat
from itertools import pairwise
from pathlib import Path

import pytest

from scalebench.analysis.run import load_run
from scalebench.records.files import read_text
from scalebench.records.paths import RunPaths
from scalebench.records.summary import Summary
from scalebench.report import render_table
from tests.conftest import scalebench_in
from tests.integration.conftest import SHORT, row_of, summary_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One default-like run of the ddp suite, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("main-job")
    words = ("run", "ddp", "--gpus", "1,2", "--steps", "12", "--repeats", "2", "--quick")
    words += ("--batch-size", "8")
    process = scalebench_in(folder, *words, code=0)
    return folder / "reports" / "latest", process.stdout


def test_the_first_line_says_what_this_was_run_on_and_the_last_where_the_report_is(finished):
    first, *_, where, rest = finished[1].splitlines()
    assert "CPU ranks over gloo" in first
    said, path = where.split()
    assert said == "Report" and path.endswith("report.html")
    assert rest.split()[:4] == ["More", "scalebench", "show", "--verbose"]
    assert (finished[0].parent.parent / path).stat().st_size > 1_000_000


def test_run_folder(finished):
    run = finished[0]
    assert {p.name for p in run.iterdir() if p.name != ".lock"} == {
        *("run.json", "summary.json", "summary.csv", "summary.md", "report.html"),
        "timeline.perfetto.json.gz",
        *("link-profile.json", "cells", "logs"),
    }
    assert stat.S_IMODE(run.resolve().stat().st_mode) == 0o700
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "complete"
    assert info["environment"]["threads"] == info["spec"]["threads"]
    assert info["profile_differs"] == []  # no link profile was given
    tails = {"inspect": "inspect", "independent": "independent{rank_batch}.r{repeat}"}
    assert RunPaths(run).stored_cells().keys() == {
        f"{c['suite']}.{c['case']}.n{c['world_size']}."
        + tails.get(c["purpose"], f"r{c['repeat']}").format(**c)
        for c in info["plan"]
    }
    with (run / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(summary_of(run)["rows"])


def test_launches_are_interleaved_over_sizes(finished):
    info = json.loads((finished[0] / "run.json").read_text())
    ddp = [c for c in info["plan"] if c["case"] == "ddp"]
    assert [c["world_size"] for c in ddp if c["purpose"] == "inspect"] == [1, 2]
    measured = [(c["repeat"], c["world_size"]) for c in ddp if c["purpose"] == "measure"]
    assert measured == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_only_one_row_works_at_a_time(finished):
    results = [r for r in load_run(finished[0]).results.values() if r.cell.purpose == "measure"]
    for repeat in range(2):
        of_round = [r for r in results if r.cell.repeat == repeat]
        ids = sorted(result.cell.id for result in of_round)
        assert len(ids) == 7 and all(sorted(r.shared_with) == ids for r in of_round)
        assert all(r.launch_s is None and r.wall_s for r in of_round)
    blocks = sorted(
        (block.start_ns, block.end_ns, result.cell.id)
        for result in results
        for rank in result.ranks
        for block in rank.blocks
        if block.phase != "warmup" and block.start_ns is not None and block.end_ns is not None
    )
    assert {cell for _, _, cell in blocks} == {r.cell.id for r in results}
    for (_, end, before), (start, _, after) in pairwise(blocks):
        assert start >= end or before == after, f"{after} began while {before} was at work"


def test_every_row_is_whole_and_correct(finished):
    rows = summary_of(finished[0])["rows"]
    assert [(r["case"], r["world_size"]) for r in rows] == [
        ("plain", 1),
        *((case, n) for case in ("ddp", "ddp-bucket-1mb", "ddp-accumulate-4") for n in (1, 2)),
    ]
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        assert row["scaling"] == "strong"
        assert row["global_batch"] == row["rank_batch"] * row["world_size"] == 8
        assert row["step_s"]["n"] == 2
        assert row["num_clean_steps"] == 2 * 12
        expected = row["global_batch"] / row["step_s"]["value"]
        assert row["throughput"]["value"] == pytest.approx(expected, rel=1e-9)
        assert row["memory"]["rss_bytes"] > row["peak_memory_bytes"] > 16 * row["num_parameters"]
        ratio = row["throughput"]["value"] / rows[0]["throughput"]["value"]
        assert row["speedup"]["value"] == pytest.approx(ratio, rel=1e-9)
        assert row["efficiency"]["value"] == pytest.approx(ratio / row["world_size"], rel=1e-9)
        if row["case"] != "plain":
            assert row["correctness"]["status"] == "verified"
            deviation = row["correctness"]["gradient_deviation"]
            assert 0 <= deviation < row["correctness"]["tolerance"]  # sums of two have one order


def test_every_row_of_several_ranks_is_held_against_its_prediction(finished):
    profile = json.loads((finished[0] / "link-profile.json").read_text())
    assert {point["op"] for point in profile["points"]} == {"all_reduce"}
    assert sum(point["num_wrong"] for point in profile["points"]) == 0
    assert [fit["world_size"] for fit in profile["fits"]] == [2]
    summary = summary_of(finished[0])
    for row in summary["rows"]:
        if row["world_size"] == 1:
            assert row["predicted_step_s"] is None
            assert "N=1" in row["unavailable"]["predicted_step_s"] or row["case"] == "plain"
            continue
        assert row["predicted_step_s"] > 0, row["unavailable"]
        error = row["predicted_step_s"] / row["step_s"]["value"] - 1
        assert row["prediction_error"] == pytest.approx(error, rel=1e-9)
        told = row["prediction"]
        assert told["low_s"] < row["predicted_step_s"] < told["high_s"]
        sent = sum(operation["size_bytes"] for operation in told["operations"])
        assert sent == 4 * row["num_parameters"]
        assert len(told["operations"]) == (2 if row["case"] == "ddp-bucket-1mb" else 1)
        assert all(operation["measured_s"] > 0 for operation in told["operations"])
    assert summary["model"]["num_rows"] == 3
    whole = render_table(Summary.model_validate(summary), verbose=True)
    assert "what the cost model says" in whole
    parts = json.loads(read_text(RunPaths(finished[0]).cell("ddp.ddp.n1.r0")))["ranks"][0]
    assert {b["num_samples"] for b in parts["blocks"] if b["phase"] == "part"} == {4}


def test_training_is_real(finished):
    """The loss starts at that of guessing a byte, falls, and is the same at every N."""
    rows = [row_of(finished[0], "ddp", n) for n in (1, 2)]
    for row in rows:
        assert row["loss_first"] == pytest.approx(math.log(256), rel=0.1)
        assert row["loss_last"] < 0.9 * row["loss_first"]
    assert rows[0]["loss_first"] == pytest.approx(rows[1]["loss_first"], rel=1e-5)


def test_conditions_are_the_same_at_every_size(finished):
    cells = [json.loads(read_text(p)) for p in (finished[0] / "cells").iterdir()]
    ranks = [rank for cell in cells for rank in cell["ranks"]]
    assert len({rank["facts"]["threads"] for rank in ranks}) == 1
    assert {rank["facts"]["scheduling_class"] for rank in ranks} == {"SCHED_BATCH"}
    for cell in cells:
        pinned = [tuple(rank["facts"]["affinity"]) for rank in cell["ranks"]]
        assert len(set(pinned)) == len(pinned) or cell["cell"]["oversubscribed"]


def test_every_null_has_a_reason(finished):
    explained_elsewhere = {"reason", "backend"}
    for row in summary_of(finished[0])["rows"]:
        nulls = {name for name, value in row.items() if value is None} - explained_elsewhere
        assert nulls <= set(row["unavailable"])


def test_weak_scaling_keeps_the_batch_of_a_rank(scalebench, project):
    """Also, rows that are isolated have launches of their own."""
    flags = ("--scaling", "weak", "--workload", "mlp-tiny", "--verbose", "--isolated")
    done = scalebench(
        "run", "ddp", "-k", "bucket-5", "--gpus", "1,2", "--out", "r", *SHORT, *flags, code=0
    )
    row, plain = row_of(project / "r", "ddp-bucket-5mb", 2), row_of(project / "r", "plain", 1)
    assert (row["rank_batch"], row["global_batch"], row["scaling"]) == (16, 32, "weak")
    step_ratio = plain["step_s"]["value"] / row["step_s"]["value"]
    assert row["efficiency"]["value"] == pytest.approx(step_ratio, rel=1e-9)
    assert row["correctness"]["status"] == "verified"
    assert row["step_s"]["low"] is None and row["step_s"]["high"] is None  # one launch
    assert row["budget"] is None and "--no-trace" in row["unavailable"]["budget"]
    assert "where the lost time goes" not in done.stdout
    results = load_run(project / "r").results.values()
    assert all(r.shared_with == [] and r.launch_s for r in results if r.cell.purpose == "measure")


def test_optional_cases_and_a_size_of_one_that_is_added(scalebench, project):
    cases = "static or bf16 or checkpointing or loader"
    flags = ("-k", cases, "--gpus", "2", "--out", "r", *SHORT, "--batch-size", "4")
    done = scalebench("run", "ddp", *flags, code=0)
    assert "N = 1 was added" in done.stdout
    run = project / "r"
    for name in ("static-graph", "bf16", "checkpointing", "loader", "loader-inline"):
        row = row_of(run, f"ddp-{name}", 2)
        assert row["correctness"]["status"] == "verified"
        assert row["efficiency"] is not None and row["efficiency_wrapped"] is not None
    # What computes in bf16 has a baseline of its own precision.
    assert row_of(run, "plain-bf16", 1)["strategy_settings"]["autocast"]
    plain, less = row_of(run, "plain", 1), row_of(run, "ddp-checkpointing", 2)
    assert less["peak_memory_bytes"] < plain["peak_memory_bytes"]
    assert not any(log.read_text().count("Warning") for log in (run / "logs").rglob("*.log"))


def test_a_strategy_that_cannot_run_is_skipped_with_the_reason(scalebench, project, troubled):
    flags = ("--workload", "troubled:healthy", "-k", "checkpointing or static")
    done = scalebench("run", "ddp", "--gpus", "1,2", "--out", "r", *SHORT, *flags)
    assert done.returncode == 4 and "Nothing of ddp: ddp-checkpointing was measured" in done.stderr
    row = row_of(project / "r", "ddp-checkpointing", 2)
    assert row["status"] == "skipped"
    assert "names its blocks" in row["reason"]
    assert row_of(project / "r", "ddp-static-graph", 2)["status"] == "ok"
    planned = scalebench("run", "tensor", "--dry-run", "--workload", "troubled:healthy")
    assert "Nothing of tensor: tensor-sequence can be measured: exit code 4." in planned.stdout


def test_python_interface_and_more_ranks_than_cores(project):
    import scalebench as sb
    import scalebench.machine as machine

    suite = sb.Suite(
        name="mine",
        question="does it work from Python?",
        cases=(sb.Case(name="small", strategy=sb.Ddp(bucket_mb=1), workload="mlp-tiny"),),
        steps=sb.StepPlan(steps=8, trace=False),
        repeats=1,
    )
    run = sb.run(suite, world_sizes=[1, 4])
    assert [(r.case, r.world_size, r.status) for r in run.summary.rows] == [
        ("plain", 1, "ok"),
        ("small", 1, "ok"),
        ("small", 4, "ok"),
    ]
    row = run.summary.rows[-1]
    assert row.oversubscribed == (machine.num_cores() < 4) == ("oversubscribed" in row.stamps)
    assert run.paths.root.parent == Path("reports")
    results = [r for r in load_run(run.paths.root).results.values() if r.cell.purpose == "measure"]
    turns = [sum(b.phase == "clean" for b in r.ranks[0].blocks) for r in results]
    assert turns == [4] * 3  # of 2 steps each
