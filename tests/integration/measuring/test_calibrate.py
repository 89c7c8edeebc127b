"""``scalebench calibrate`` with real ranks."""

import json
from pathlib import Path

from scalebench.costmodel.links.profile import LinkProfile
from scalebench.spec.base import COLLECTIVES


def test_collectives_are_timed_verified_and_fitted(scalebench):
    done = scalebench(
        *("calibrate", "--gpus", "2", "--device", "cpu", "--max-bytes", "1k", "--json"),
        *("--dtype", "float32,int8", "--algorithms", "ring,tree", "--repeats", "3"),
        *("--out", "link.json"),
        code=0,
    )
    told = json.loads(done.stdout)
    assert {point["op"] for point in told["points"]} == set(COLLECTIVES)
    assert {point["algorithm"] for point in told["points"]} == {"backend", "ring", "tree"}
    for point in told["points"]:
        assert point["num_wrong"] == 0
        assert 0 < point["low_s"] <= point["time_s"] <= point["high_s"]
        assert point["time_s"] <= point["p99_s"]
        assert point["algbw_byte_per_s"] == point["size_bytes"] / point["time_s"]
    fitted = {(fit["op"], fit["dtype"], fit["algorithm"]) for fit in told["fits"]}
    with_law = set(COLLECTIVES) - {"all_to_all_uneven", "barrier"}
    assert fitted >= {(op, "int8", "backend") for op in with_law}
    places = {(point["op"], point["in_place"]) for point in told["points"]}
    assert places >= {("all_gather", True), ("all_gather", False), ("send_recv", None)}
    assert [point["size_bytes"] for point in told["points"] if point["op"] == "barrier"] == [0]
    assert ("all_reduce", "float32", "ring") in fitted

    profile = LinkProfile.model_validate_json(Path("link.json").read_text())
    assert len(profile.points) == len(told["points"])
    assert profile.machine["cores"]


def test_a_suite_of_collectives_is_a_run_that_trains_nothing(scalebench):
    wanted = ("run", "collectives", "-k", "all_reduce", "--gpus", "2", "--device", "cpu", "--quick")
    done = scalebench(*wanted, "--out", "links", code=0)
    assert "every result verified: 0 wrong elements" in done.stdout
    summary = json.loads(Path("links/summary.json").read_text())
    profile = LinkProfile.model_validate_json(Path("links/link-profile.json").read_text())
    assert summary["status"] == "complete"
    assert summary["rows"] == []
    assert summary["collectives"]["num_points"] == len(profile.points)
    assert {fit["op"] for fit in summary["collectives"]["fits"]} == {"all_reduce"}
    assert {p.algorithm for p in profile.points} >= {"backend", "ring", "double-tree"}
    assert "link" not in summary
    assert Path("links/report.html").is_file()
    again = scalebench("show", "links")
    assert "all-reduce: which algorithm is fastest" in again.stdout

    # A run with these links, as if measured elsewhere, says so, and is not gated by them.
    foreign = profile.model_copy(update={"machine": {**profile.machine, "cpu": "another"}})
    Path("foreign.json").write_text(foreign.model_dump_json())
    run = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--device", "cpu", "--quick")
    run += ("--workload", "mlp-tiny")
    done = scalebench(*run, "--no-report", "--link-profile", "foreign.json", "--out", "r", code=0)
    assert "of another machine (other cpu)" in " ".join(done.stdout.split())
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["model"]["profile_differs"] == ["cpu"]
    judged = json.loads(scalebench("compare", "r", "r", "--json").stdout)
    (error,) = (row for row in judged["rows"] if row["metric"] == "prediction_error")
    assert error["verdict"] == "not comparable" and "another machine" in error["reason"]
