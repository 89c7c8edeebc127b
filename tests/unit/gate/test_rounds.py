"""Launches that took turns: merged by run, compared within their rounds."""

import json

import pytest

from scalebench.gate.merging import merged
from tests.builders.gated import gated, gated_run, verdict_of


def drifting(seed: int, factor: float, drift: list[float]):
    """One run for each round, all its steps slower by the round's drift."""
    return [
        gated_run(
            {(case, n): factor * level for case in ("ddp", "ddp-small") for n in (2, 4)}
            | {("plain", 1): level},
            num_launches=1, seed=seed + 10 * number, run_id=f"run-{seed}-{number}",
        )
        for number, level in enumerate(drift)
    ]  # fmt: skip


def test_drift_hides_a_change_between_runs_and_not_between_rounds():
    """Three percent, on a machine that gets slower by a fifth meanwhile."""
    drift = [1.0, 1.08, 1.15, 1.2, 1.1]
    base, new = merged(drifting(1, 1.0, drift)), merged(drifting(2, 1.03, drift))
    assert verdict_of(gated(base, new), "step_s").verdict == "no change seen"
    found = verdict_of(gated(base, new, rounds=True), "step_s")
    assert found.verdict == "regressed" and found.change == pytest.approx(0.03, abs=0.005)
    same = gated(base, merged(drifting(3, 1.0, drift)), rounds=True)
    assert verdict_of(same, "step_s").verdict == "unchanged"


def test_rounds_that_have_nothing_in_common_show_nothing_and_do_not_crash():
    """Two rounds, one of them on a machine that stood still: nothing can be detected."""
    base = merged(drifting(1, 1.0, [1.0, 1.0]))
    new = merged([*drifting(2, 1.0, [1.0]), *drifting(3, 1e6, [1.0])])
    result = gated(base, new, rounds=True)
    assert verdict_of(result, "step_s").verdict == "no change seen"
    assert verdict_of(result, "step_s").min_detectable > 1e100
    json.dumps(result.as_json(), allow_nan=False)
