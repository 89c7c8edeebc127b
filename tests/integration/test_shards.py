"""``project --measure-shard``: one rank's share of a job, alone, against the job itself."""

import json
from pathlib import Path

import pytest

from scalebench.records.files import with_checksum
from tests.conftest import Scalebench
from tests.integration.conftest import SHORT, row_of


def test_a_share_alone_has_the_memory_that_the_rank_has_in_the_job(
    scalebench: Scalebench, project: Path
) -> None:
    cases = "zero1 or fsdp-shard"
    done = scalebench("run", "fsdp", "-k", cases, "--gpus", "1,2", *SHORT, "--out", "r")
    assert done.returncode == 0, done.stderr
    done = scalebench("project", "r", "--gpus", "2,8,64", "--measure-shard", "--json")
    assert done.returncode == 0, done.stderr
    rows = {(row["case"], row["world_size"]): row for row in json.loads(done.stdout)["rows"]}
    for case in ("zero1", "fsdp-shard-grad-op"):
        shares = {n: rows[case, n]["share"] for n in (2, 8)}
        really = row_of(project / "r", case, 2)["peak_memory_bytes"]
        assert shares[2]["peak_memory_bytes"] == pytest.approx(really, rel=0.02)
        assert shares[8]["peak_memory_bytes"] < 0.8 * shares[2]["peak_memory_bytes"]
        for n, share in shares.items():
            row = rows[case, n]
            computing = row["step_s"] - row["exposed_transfer_s"]
            assert computing == pytest.approx(share["step_s"])
        assert "no sample for each of 64 ranks" in rows[case, 64]["reason"]


def test_a_share_of_another_machine_is_refused(scalebench: Scalebench, project: Path) -> None:
    done = scalebench("run", "ddp", "-k", "plain", "--gpus", "1", *SHORT, "--out", "r")
    assert done.returncode == 0, done.stderr
    written = project / "r" / "run.json"
    run = json.loads(written.read_text())
    run["environment"]["torch"] = "1.0"
    del run["sha256"]
    written.write_text(with_checksum(json.dumps(run)))
    done = scalebench("project", "r", "--gpus", "8", "--measure-shard")
    assert done.returncode == 5
    assert "was made with a different torch: a shard measured here says nothing" in done.stderr
