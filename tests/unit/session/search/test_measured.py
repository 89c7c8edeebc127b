"""What is trained to prove a search, and what a recorded measurement says of it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.search.result import RankedChoice
from scalebench.session.search import experiment, write_suite
from scalebench.session.suites.files import load_suite

RECORDED = Path(__file__).parents[3] / "recorded" / "search_virtual_hosts.json"


def ranked(case, step_s, runs=True, memory=1e6):
    return RankedChoice(
        data=4, case=case, step_s=step_s, memory_bytes=memory,
        strategy={"kind": "ddp"} if runs else None, cannot_run=None if runs else "no strategy",
    )  # fmt: skip


def result(best, **more):
    more = {"memory_limit_bytes": None} | more
    trained = [one for one in best if one.strategy is not None]
    return SimpleNamespace(
        best=best, trained=trained, front=(), rejected=None, world_size=4, **more
    )


def run(measured, peak=1):
    rows = [
        SimpleNamespace(case=case, world_size=4, status="ok" if step else "oom",
                        reason="out of memory",
                        step_s=SimpleNamespace(value=step) if step else None,
                        peak_memory_bytes=peak if step else None)
        for case, step in measured.items()
    ]  # fmt: skip
    summary = SimpleNamespace(rows=rows)
    return cast(Any, SimpleNamespace(paths=SimpleNamespace(root="r"), summary=summary))


def test_the_recorded_experiment_has_the_regret_that_the_documents_state():
    told = json.loads(RECORDED.read_text())["rows"]
    chosen = [(r["picked"], ranked(r["case"], r["predicted_s"])) for r in told]
    found = experiment(result([]), chosen, run({r["case"]: r["measured_s"] for r in told}))
    assert found.regret == pytest.approx(1.74, abs=0.005)
    assert found.rank_correlation == pytest.approx(-0.4)
    document = (Path(__file__).parents[4] / "benchmarks" / "evidence.md").read_text()
    assert f"Regret {found.regret:.2f}" in document and "rank correlation −0.4" in document


def way(microbatches, step_s, shard=4):
    runs = microbatches == 1
    return RankedChoice(
        data=4 // shard, shard=shard, zero=3, microbatches=microbatches, step_s=step_s,
        case=f"s{shard}-m{microbatches}", strategy={"kind": "fsdp"} if runs else None,
        cannot_run=None if runs else "no strategy adds them up",
    )  # fmt: skip


def listed(best, trained):
    return SimpleNamespace(
        best=best, trained=trained, workload="gpt-tiny", world_size=4, global_batch=16
    )


def test_where_nothing_is_trained_no_suite_is_written(tmp_path):
    with pytest.raises(EnvironmentUnfit, match="No suite was written"):
        write_suite(tmp_path / "best.py", listed([way(2, 1.0)], []))
    assert not list(tmp_path.iterdir())


def test_no_name_of_a_workload_becomes_code(tmp_path):
    target, asked = tmp_path / "best.py", listed([], [way(1, 2.0)])
    asked.workload = f'a"""\nopen({str(tmp_path / "ran")!r}, "w")\r\u2028"""'
    write_suite(target, asked)
    assert load_suite(str(target)).workload == asked.workload
    assert not (tmp_path / "ran").exists()
