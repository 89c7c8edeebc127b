"""The gate on runs of real ranks: what has no noise is judged from one launch."""

import json
import shutil
from pathlib import Path

SUITE = Path(__file__).parent / "gated_suite.py"
RUN = ("run", "./gated_suite.py", "--gpus", "1,2", "--batch-size", "8", "--no-report", "--quick")


def test_a_changed_bucket_size_is_seen_and_explained(scalebench, project, monkeypatch):
    shutil.copy(SUITE, project)
    for name, bucket_mb in (("base", "25"), ("buckets", "0.1")):
        monkeypatch.setenv("BUCKET_MB", bucket_mb)
        scalebench(*RUN, "--out", name, code=0)

    scalebench("gate", "--baseline", "base", "base/summary.json", "--exact-only", code=0)
    noisy = scalebench("gate", "--baseline", "base", "base", "--json")
    assert noisy.returncode == 3, "one launch a side decides nothing about times"
    told = {r["reason"] for r in json.loads(noisy.stdout)["rows"] if r["verdict"] == "inconclusive"}
    assert any("--repeats" in reason for reason in told)

    let_pass = scalebench("gate", "--baseline", "base", "base", "--on-inconclusive", "warn")
    assert let_pass.returncode == 0 and "inconclusive" in let_pass.stdout
    assert let_pass.stderr.startswith("scalebench: warning: inconclusive")

    refused = scalebench(
        "gate", "--baseline", "base", "buckets", "--exact-only", "--on-inconclusive", "warn", code=3
    )
    assert "--allow-mismatch bucket_mb" in " ".join(refused.stdout.split())
    flags = ("--exact-only", "--allow-mismatch", "bucket_mb", "--json")
    caught = scalebench("gate", "--baseline", "base", "buckets", *flags, code=1)
    rows = json.loads(caught.stdout)["rows"]
    (count,) = [
        r for r in rows if r["metric"] == "all_reduce_count" and r["verdict"] == "regressed"
        and r["world_size"] == 2
    ]  # fmt: skip
    assert count["base"] == 1 and count["new"] > 1
    lines = [line for r in rows if r["world_size"] == 2 for line in r["explanation"]]
    assert f"all-reduce count per step went from 1 to {count['new']:g}" in lines
    assert "bucket_mb went from 25.0 to 0.1" in lines
