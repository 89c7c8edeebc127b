"""What a user may set of the gate, at the limits of each number."""

from dataclasses import replace

import pytest

from scalebench.errors import UsageError
from scalebench.gate.metrics import gate_settings


def named(settings):
    return {m.name: m for m in (*settings.metrics, settings.collectives, *settings.recovery)}


def test_only_what_has_no_noise_decides_where_the_user_says_so():
    settings = gate_settings(
        {"wire_bytes": {"decides": False}, "restart_s": {"decides": True}}, "here"
    )
    found = settings.only_exact()
    assert found.exact is True
    assert [m.name for m in found.metrics if m.decides] == [
        "payload_bytes", "predicted_memory_bytes", "predicted_bubble_ratio",
    ]  # fmt: skip
    assert not any(m.decides for m in found.recovery) and found.collectives.decides
    assert [replace(m, decides=True, decides_over_runs=False) for m in found.metrics] == [
        replace(m, decides=True, decides_over_runs=False) for m in settings.metrics
    ]


def test_a_suite_s_own_settings_are_overruled_number_by_number():
    users = gate_settings({"step_s": {"relative_floor": 0.2}, "loss_last": {"decides": True}}, "u")
    own = {
        "step_s": {"relative_floor": 0.1, "absolute_floor": 3.0},
        "efficiency": {"decides": False},
    }
    found = named(users.of_suite(own, "suite"))
    assert (found["step_s"].relative_floor, found["step_s"].absolute_floor) == (0.2, 3.0)
    assert found["loss_last"].decides and not found["efficiency"].decides
    assert users.of_suite({}, "suite") is users
    assert users.of_suite(own, "suite").exact is False
    shared = users.only_exact().of_suite(own, "suite")
    assert shared.exact and not named(shared)["step_s"].decides
    assert named(shared)["step_s"].absolute_floor == 3.0
    with pytest.raises(UsageError, match="suite"):
        users.of_suite({"step_s": {"relative_floor": 2.0}}, "suite")
