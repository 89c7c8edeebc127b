"""Clocks that are false in a known way, compared by two real ranks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.launch.loopback import loopback_environment
from tests.integration.measuring.clocks import DRIFT, WINDOW_S

pytestmark = pytest.mark.timed


ROOT = Path(__file__).parents[3]
OTHER_CLOCK = ("unshare", "--user", "--time", "--fork", "--kill-child", "--monotonic", "1000")
USEFUL_NS = 20_000_000
"""A bound that is wider says nothing; between two idle processes it is a hundredth of this."""


SCENARIOS = (
    *("true+force", "offset+force", "drift+force", "step+force"),
    *("true", "offset", "behind"),
)


def ranks_compare_clocks(folder, scenarios, prefix_of_rank_1=()):
    """Run both ranks to their end; return what each found, by scenario."""
    environment = {**os.environ, **loopback_environment(), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [
                *(prefix_of_rank_1 if rank == 1 else ()),
                *(sys.executable, "-m", "tests.integration.measuring.clocks", str(rank)),
                *(str(folder / "store"), *scenarios),
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(out) for out, _ in outputs]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What two ranks found of all scenarios."""
    return ranks_compare_clocks(tmp_path_factory.mktemp("clocks"), SCENARIOS)


@pytest.mark.parametrize(("scenario", "drift"), [("true", 0.0), ("offset", 0.0), ("drift", DRIFT)])
def test_a_known_clock_is_recovered_within_the_bound(compared, scenario, drift):
    reference, found = (rank[f"{scenario}+force"] for rank in compared)
    assert reference["alignment"]["offset_ns"] == reference["alignment"]["bound_ns"] == 0
    alignment = found["alignment"]
    assert alignment["method"] == "ping-pong"
    assert alignment["stepped"] is None
    assert 0 < alignment["bound_ns"] < USEFUL_NS
    assert max(map(abs, found["errors_ns"])) <= alignment["bound_ns"]
    assert abs(alignment["drift"] - drift) <= 2 * alignment["bound_ns"] / (WINDOW_S * 1e9)


def test_a_clock_that_stepped_is_told_and_the_bound_covers_it(compared):
    found = compared[1]["step+force"]
    alignment = found["alignment"]
    assert "moved by +5" in alignment["stepped"] or "moved by +4" in alignment["stepped"]
    assert 25_000_000 <= alignment["bound_ns"] < 25_000_000 + USEFUL_NS
    assert max(map(abs, found["errors_ns"])) <= alignment["bound_ns"]


def test_ranks_of_one_machine_share_its_clock(compared):
    for found in compared:
        alignment = found["true"]["alignment"]
        assert alignment["method"] == "shared clock"
        assert alignment["offset_ns"] == alignment["bound_ns"] == alignment["drift"] == 0


@pytest.mark.parametrize("scenario", ["offset", "behind"])
def test_clocks_of_one_name_that_disagree_are_not_taken_for_one(compared, scenario):
    found = compared[1][scenario]
    assert found["alignment"]["method"] == "ping-pong"
    assert max(map(abs, found["errors_ns"])) <= found["alignment"]["bound_ns"] < USEFUL_NS


def test_a_time_namespace_has_a_clock_of_its_own(tmp_path):
    if not shutil.which("unshare") or subprocess.run([*OTHER_CLOCK, "true"]).returncode:
        pytest.skip("no time namespaces here")
    _, found = ranks_compare_clocks(tmp_path, ("true",), prefix_of_rank_1=OTHER_CLOCK)
    alignment = found["true"]["alignment"]
    assert alignment["method"] == "ping-pong"
    assert alignment["stepped"] is None
    assert abs(alignment["offset_ns"] - 1000 * 10**9) <= alignment["bound_ns"] < USEFUL_NS
