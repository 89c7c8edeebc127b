"""The gate's own verdicts on real step times with known slowdowns in them.

`tests/recorded/step_times_*.npz`: see ``benchmarks/record_steps.py``, which made them, and
``benchmarks/gate_recorded.py``, which asks the gate and writes the table of docs/gate.md.
"""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gate_recorded import MARKS, PAIRS, RECORDED, gate_finding, rates, read_arms, text_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "gate.md"


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.stem)
def path(request):
    return request.param


def test_there_are_two_recordings():
    assert len(RECORDED) == 2


def test_interleaved_pairs_find_a_slower_step_and_report_nothing_else(path):
    found = rates(read_arms(path, "quiet_s"))
    assert found.num_stretches == 121
    assert found.slower_5 == 1.0
    assert found.slower_2 > 0.8, "the whole interval has to lie beyond the floor of 1 %"
    assert found.false_alarm == 0.0


def test_interleaved_pairs_report_nothing_where_other_processes_come_in(path):
    """They find less then, that is all; a threshold takes it for a slower step."""
    found = rates(read_arms(path, "loaded_s"))
    assert found.false_alarm == 0.0
    assert found.threshold > 0.7


def test_a_sequential_threshold_reports_drift_on_a_quiet_machine_too():
    """Not in every hour: in one of the recordings the machine drifts by itself."""
    found = [rates(read_arms(path, "quiet_s")).threshold for path in RECORDED]
    assert max(found) > 0.2


def test_a_verdict_has_its_direction(path):
    arms = read_arms(path, "quiet_s")
    slower, base = arms["slower-5"][:PAIRS], arms["a"][:PAIRS]
    assert gate_finding(base, slower) == "regressed"
    assert gate_finding(slower, base) == "improved"
    assert gate_finding(base, base) == "unchanged"


def test_what_was_injected_is_what_is_recovered(path):
    """Of the first recording it is only known that it was 2 and 5 % of an earlier median."""
    arms = read_arms(path, "quiet_s")
    with np.load(path) as stored:
        known = "quiet_median_s" in stored
        of = float(stored["quiet_median_s"]) if known else np.median(arms["a"])
    for arm, part in (("b", 0.0), ("slower-2", 0.02), ("slower-5", 0.05)):
        injected = part * of / np.median(arms["a"])
        found = np.median(arms[arm] / arms["a"]) - 1
        assert found == pytest.approx(injected, abs=0.006 if known else 0.01)


def test_the_documented_table_is_what_the_gate_says():
    generated = DOCUMENT.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert generated.strip() == text_of()
