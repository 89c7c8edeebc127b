import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.search.result import RankedChoice
from scalebench.session.search import experiment, write_suite
from scalebench.session.suites import load_suite

RECORDED = Path(__file__).parents[3] / "recorded" / "search_virtual_hosts.json"


def test_the_recorded_experiment_has_the_regret_that_the_documents_state():
    told = json.loads(RECORDED.read_text())["rows"]
    known = {"data": 4, "memory_bytes": 1e6, "strategy": {"kind": "ddp"}}
    chosen = [
        (r["picked"], RankedChoice(case=r["case"], step_s=r["predicted_s"], **known)) for r in told
    ]
    here = {"world_size": 4, "status": "ok", "peak_memory_bytes": 1}
    rows = [
        SimpleNamespace(case=r["case"], step_s=SimpleNamespace(value=r["measured_s"]), **here)
        for r in told
    ]
    run = SimpleNamespace(paths=SimpleNamespace(root="r"), summary=SimpleNamespace(rows=rows))
    asked = {"best": [], "trained": [], "front": (), "rejected": None, "memory_limit_bytes": None}
    found = experiment(SimpleNamespace(world_size=4, **asked), chosen, run)
    assert found.regret == pytest.approx(1.74, abs=0.005)
    assert found.rank_correlation == pytest.approx(-0.4)
    document = (Path(__file__).parents[4] / "benchmarks" / "evidence.md").read_text()
    assert f"Regret {found.regret:.2f}" in document and "rank correlation −0.4" in document


def listed(**lists):
    """The result of a search among ways of which one is trained, or none."""
    way = {"data": 1, "shard": 4, "zero": 3, "step_s": 1.0, "case": "s4"}
    ways = {name: [RankedChoice(**way, **one)] for name, one in lists.items()}
    asked = {"workload": "gpt-tiny", "world_size": 4, "global_batch": 16}
    return SimpleNamespace(**{"best": [], "trained": []} | ways, **asked)


def test_where_nothing_is_trained_no_suite_is_written(tmp_path):
    with pytest.raises(EnvironmentUnfit, match="No suite was written"):
        write_suite(
            tmp_path / "best.py", listed(best={"microbatches": 2, "cannot_run": "no strategy"})
        )
    assert not list(tmp_path.iterdir())


def test_no_name_of_a_workload_becomes_code(tmp_path):
    target, asked = tmp_path / "best.py", listed(trained={"strategy": {"kind": "fsdp"}})
    asked.workload = f'a"""\nopen({str(tmp_path / "ran")!r}, "w")\r\u2028"""'
    write_suite(target, asked)
    assert load_suite(str(target)).workload == asked.workload
    assert not (tmp_path / "ran").exists()
