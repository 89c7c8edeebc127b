"""Which steps of two runs that take turns are compared."""

import json

import pytest

from benchmarks.framework_script_vs_case import WARM_UP, Turn, neighbours, steps_of

MS = 1_000_000


def turns(*ways):
    """One turn of 100 ms after the other."""
    return [Turn(way, 100 * MS * n, 100 * MS * (n + 1)) for n, way in enumerate(ways)]


def steps(*starts_ms, long_ms=20):
    return [(start * MS, (start + long_ms) * MS) for start in starts_ms]


def test_neighbouring_turns_are_pairs_and_no_turn_is_in_two():
    inside = {
        "case": steps(0, 20, 40) + steps(210, 240, 270, long_ms=30),
        "script": steps(100, 125, 150, long_ms=25) + steps(300, 320, 340),
    }
    found = neighbours(turns("case", "script", "case", "script"), inside)
    assert found == [(0.025, 0.020), (0.020, 0.030)]


def test_a_step_that_was_stopped_does_not_count_and_a_turn_needs_several():
    stopped = {"case": [*steps(0, 20, 40), (60 * MS, 260 * MS)], "script": steps(100, 120, 140)}
    assert neighbours(turns("case", "script", "case"), stopped) == [(0.020, 0.020)]
    few = {"case": steps(0, 20), "script": steps(100, 120, 140)}
    assert neighbours(turns("case", "script"), few) == []


def test_only_turns_of_both_are_pairs():
    alone = {"case": steps(0, 20, 40, 100, 120, 140), "script": steps(200, 220, 240)}
    assert neighbours(turns("case", "case", "script"), alone) == [(0.020, 0.020)]


def test_the_first_steps_are_left_out(tmp_path):
    blocks = [
        {"first": 0, "count": WARM_UP, "start_ns": 0},
        {"first": WARM_UP, "count": 2, "start_ns": 5 * 10**9},
    ]
    rank = {"blocks": blocks, "step_s": [0.01] * WARM_UP + [0.02, 0.03]}
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"ranks": [rank]}))
    starts, ends = zip(*steps_of(file), strict=True)
    assert [one / 1e9 for one in starts] == pytest.approx([5.0, 5.02])
    assert [one / 1e9 for one in ends] == pytest.approx([5.02, 5.05])
