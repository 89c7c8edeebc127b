"""The suite of the best: what it holds, and what is said of those that it passes over."""

from types import SimpleNamespace

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.search.result import RankedChoice
from scalebench.session.search import write_suite
from scalebench.session.suites.files import load_suite


def way(microbatches, step_s, shard=4):
    runs = microbatches == 1
    return RankedChoice(
        data=4 // shard, shard=shard, zero=3, microbatches=microbatches, step_s=step_s,
        case=f"s{shard}-m{microbatches}", strategy={"kind": "fsdp"} if runs else None,
        cannot_run=None if runs else "no strategy adds them up",
    )  # fmt: skip


def result(best, trained):
    return SimpleNamespace(
        best=best, trained=trained, workload="gpt-tiny", world_size=4, global_batch=16
    )


def test_where_nothing_is_trained_no_suite_is_written(tmp_path):
    with pytest.raises(EnvironmentUnfit, match="No suite was written"):
        write_suite(tmp_path / "best.py", result([way(2, 1.0)], []))
    assert not list(tmp_path.iterdir())


def test_no_name_of_a_workload_becomes_code(tmp_path):
    target, asked = tmp_path / "best.py", result([], [way(1, 2.0)])
    asked.workload = f'a"""\nopen({str(tmp_path / "ran")!r}, "w")\r\u2028"""'
    write_suite(target, asked)
    assert load_suite(str(target)).workload == asked.workload
    assert not (tmp_path / "ran").exists()
