"""Recovery in the gate: a longer stall or restart is found, and decides where the user says so."""

from scalebench.gate.metrics import GateSettings, gate_settings
from tests.builders.gated import gated, gated_run, verdict_of, with_row
from tests.builders.rows.recoveries import recovery
from tests.examples import cases

STALL, RESTART = "async_checkpoint_stall_s", "kill_torchrun_restart_s"
DECIDE = gate_settings(
    {name: {"decides": True} for name in ("checkpoint_stall_s", "restart_s")}, "the test"
)


def run(figures, seed=1):
    return with_row(gated_run(seed=seed), "ddp", 4, recovery=figures)


def judged(base, new, settings=DECIDE):
    return gated(run(base), run(new, seed=2), settings=settings)


@cases(
    "new, stall, restart",
    (recovery(stall_s=0.13), "regressed", "unchanged"),
    (recovery(restart_s=2.6), "unchanged", "regressed"),
    (recovery(restart_s=1.5), "unchanged", "improved"),
    (recovery(stall_s=0.105), "unchanged", "unchanged"),
    (recovery(stall_s=0.12, spread=0.3), "no change seen", "no change seen"),
)
def test_a_longer_stall_or_restart_is_a_regression(new, stall, restart):
    result = judged(recovery(), new)
    found = {name: verdict_of(result, name, world_size=4) for name in (STALL, RESTART)}
    assert (found[STALL].verdict, found[RESTART].verdict) == (stall, restart)
    assert all(verdict.decides for verdict in found.values())
    assert (result.verdict == "regressed") == ("regressed" in (stall, restart))


def test_without_a_setting_they_are_shown_and_do_not_decide():
    for settings in (GateSettings(), DECIDE.only_exact()):
        result = judged(recovery(), recovery(stall_s=0.2), settings)
        found = verdict_of(result, STALL, world_size=4)
        assert (found.verdict, found.decides) == ("regressed", False)
