import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from scalebench.errors import ExitCode
from scalebench.gate.metrics import GateSettings, gate_settings
from scalebench.gate.result import GateResult, Mismatch, RowVerdict
from scalebench.gate.results import environment_mismatches, row_mismatches
from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Row
from scalebench.stats import estimate_over_launches
from tests.builders.gated import (
    budget_points,
    collectives,
    gated,
    gated_run,
    of_version_0_1,
    verdict_of,
    with_missing,
    with_row,
    without_row,
)
from tests.builders.rows.recoveries import recovery
from tests.builders.summaries import estimate, make_pipeline, make_row
from tests.examples import cases


def settings(**tables):
    return gate_settings(tables, "a file")


def test_two_runs_of_the_same_pass_and_every_row_is_shown_to_be_unchanged():
    result = gated(gated_run(seed=1), gated_run(seed=2))
    assert result.verdict == "passed" and result.exit_code == ExitCode.OK
    assert {row.verdict for row in result.deciding} == {"unchanged"}
    step = verdict_of(result, "step_s")
    assert -step.floor < step.low < step.high < step.floor
    assert step.basis == "launches" and (step.base_launches, step.new_launches) == (5, 5)


def test_a_slower_row_regresses_and_the_others_do_not():
    result = gated(gated_run(seed=1), gated_run({("ddp", 4): 1.05}, seed=2))
    assert result.verdict == "regressed" and result.exit_code == ExitCode.REGRESSION
    found = {(row.case, row.world_size, row.metric) for row in result.of("regressed")}
    assert found == {("ddp", 4, "step_s"), ("ddp", 4, "efficiency")}
    assert {row.metric for row in result.of("regressed") if row.decides} == {"step_s"}
    step = verdict_of(result, "step_s", "ddp", 4)
    assert 0.045 < step.change < 0.055
    assert step.floor < step.low < step.change < step.high
    assert step.p_value < 0.01 and step.rank_p_value == pytest.approx(1 / 252)
    assert step.min_detectable == pytest.approx(step.floor), "less noise than tolerance"
    efficiency = verdict_of(result, "efficiency", "ddp", 4)
    assert efficiency.change == pytest.approx(1 / 1.05 - 1, abs=0.003)
    assert efficiency.high < -efficiency.floor
    assert efficiency.rank_p_value == pytest.approx(1 / 252), "from the rounds, not the interval"


@cases("factor", 1.02, 1.04)
def test_a_change_is_only_called_so_beyond_both_floors(factor):
    base, new = gated_run(seed=1), gated_run({("ddp", 4): factor}, seed=2)
    assert gated(base, new).verdict == "regressed"
    for floors in ({"relative_floor": 0.1}, {"absolute_floor": 0.00125}):  # of a step of 12.5 ms
        result = gated(base, new, settings=settings(step_s=floors))
        step = verdict_of(result, "step_s", world_size=4)
        assert (result.verdict, step.verdict) == ("passed", "unchanged")
        assert step.floor == pytest.approx(0.1, rel=0.01)


def test_one_launch_a_side_shows_the_change_and_decides_nothing():
    result = gated(gated_run(num_launches=1, seed=1), gated_run({("ddp", 2): 1.5}, num_launches=1))
    row = verdict_of(result, "step_s")
    assert row.verdict == "inconclusive"
    assert row.change == pytest.approx(0.5, abs=0.02)
    assert (row.low, row.high, row.p_value, row.min_detectable) == (None,) * 4
    assert "1 launch a side" in row.reason and "--repeats" in row.reason
    assert result.exit_code == ExitCode.INCONCLUSIVE


def test_exact_quantities_regress_by_a_single_byte_and_a_single_collective():
    base = with_row(gated_run(seed=1), "ddp", 2, communication=[collectives(5)])
    for changes, metric in (
        ({"wire_bytes": 1001}, "wire_bytes"),
        ({"communication": [collectives(6)]}, "all_reduce_count"),
        ({"communication": [collectives(5), collectives(1, "broadcast")]}, "broadcast_count"),
    ):
        new = with_row(gated_run(seed=2), "ddp", 2, communication=[collectives(5)])
        result = gated(base, with_row(new, "ddp", 2, **changes))
        assert result.verdict == "regressed"
        (row,) = result.of("regressed")
        assert (row.metric, row.basis) == (metric, "exact")
    fewer = with_row(gated_run(seed=2), "ddp", 2, communication=[collectives(4)])
    assert verdict_of(gated(base, fewer), "all_reduce_count").verdict == "improved"


@cases(
    "base_steps, new_steps, clean_steps, compared",
    (57, 57, (40, 40), True),
    (57, 57, (40, 41), True),  # of all launches; the loss is the first one's
    (57, 52, (40, 40), False),  # the warm-up was shorter
    (None, 57, (40, 40), False),
    (57, None, (40, 40), False),
    (None, None, (40, 40), True),  # older summaries
    (None, None, (40, 41), False),
)
def test_losses_are_compared_only_after_as_many_steps(base_steps, new_steps, clean_steps, compared):
    base, new = (
        with_row(
            gated_run(seed=1 + k),
            *("ddp", 2),
            loss_last=5.0 + 0.2 * k,
            loss_last_steps=(base_steps, new_steps)[k],
            num_clean_steps=clean_steps[k],
        )
        for k in range(2)
    )
    of_row = [row for row in gated(base, new).rows if (row.case, row.world_size) == ("ddp", 2)]
    assert of_row
    assert ("loss_last" in {row.metric for row in of_row}) == compared


@cases("status", "failed", "oom")
def test_a_row_that_failed_never_passes(status):
    new = with_missing(gated_run(seed=2), "ddp", 2, status, "rank 1 died")
    result = gated(gated_run(seed=1), new)
    assert result.verdict == "failed" and result.exit_code == ExitCode.CELLS_FAILED
    (row,) = result.of("missing")
    assert "rank 1 died" in row.reason and row.failed
    both = gated(new, new)
    assert both.exit_code == ExitCode.CELLS_FAILED
    unknown = without_row(gated_run(seed=1), "ddp", 2)
    assert gated(unknown, new).exit_code == ExitCode.CELLS_FAILED


def test_missing_skipped_and_empty_never_pass():
    base, new = gated_run(seed=1), gated_run(seed=2)
    gone = gated(base, without_row(new, "ddp", 2))
    assert gone.exit_code == ExitCode.INCONCLUSIVE and gone.of("missing")
    skipped = with_missing(new, "ddp", 2, "skipped", "2 ranks asked for, 1 core here")
    assert gated(base, skipped).of("missing")
    empty = base.model_copy(update={"rows": []})
    for pair in ((empty, empty), (base, empty), (empty, new)):
        assert gated(*pair).exit_code == ExitCode.INCONCLUSIVE, pair


def test_a_new_case_is_named_and_does_not_block():
    base = without_row(gated_run(seed=1), "ddp-small", 4)
    result = gated(base, gated_run(seed=2))
    assert result.exit_code == ExitCode.OK
    assert any("ddp-small N=4" in note for note in result.notes)


@cases(
    "name, value",
    *(("torch", "2.14.0"), ("cores", 64), ("devices", [{"name": "H100"}]), ("driver", "550.1")),
)
def test_another_machine_or_software_is_not_comparable_unless_allowed(name, value):
    base = gated_run(seed=1)
    new = gated_run(seed=2, environment={**base.environment, name: value})
    result = gated(base, new)
    assert result.verdict == "not comparable" and result.exit_code == ExitCode.INCONCLUSIVE
    assert [m.name for m in result.mismatches] == [name]
    exact = verdict_of(result, "wire_bytes").verdict
    assert exact == ("not comparable" if name == "torch" else "unchanged")
    allowed = gated(base, new, allowed=[name])
    assert allowed.verdict == "passed" and allowed.mismatches[0].allowed


@cases(
    "changes, name",
    ({"strategy_settings": {"bucket_mb": 1.0, "accumulate": 1}}, "bucket_mb"),
    ({"backend": "nccl"}, "backend"),
    ({"global_batch": 64}, "global_batch"),
    ({"workload": "mine"}, "workload"),
)
def test_another_specification_of_a_row_is_not_comparable_unless_allowed(changes, name):
    base, new = gated_run(seed=1), with_row(gated_run(seed=2), "ddp", 2, **changes)
    result = gated(base, new)
    row = verdict_of(result, "step_s")
    assert row.verdict == "not comparable" and name in row.reason
    assert verdict_of(result, "step_s", "ddp", 4).verdict == "unchanged"
    assert result.exit_code == ExitCode.INCONCLUSIVE
    for allowed in (name, "case"):
        assert verdict_of(gated(base, new, allowed=[allowed]), "step_s").verdict == "unchanged"


@examples(max_examples=20)
@given(factor=st.floats(0.5, 2.0), scale=st.floats(0.05, 20.0), seed=st.integers(0, 50))
def test_sides_and_units_are_symmetrical(factor, scale, seed):
    """What is slower one way is faster the other way, and nothing depends on the clock's unit."""
    base, new = gated_run(seed=seed), gated_run({("ddp", 2): factor}, seed=seed + 100)
    there = verdict_of(gated(base, new), "step_s")
    back = verdict_of(gated(new, base), "step_s")
    assert (1 + there.change) * (1 + back.change) == pytest.approx(1)
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1)
    opposite = {"regressed": "improved", "improved": "regressed"}
    if abs(math.log(factor)) > 0.03 or abs(math.log(factor)) < 0.001:
        assert opposite.get(there.verdict, there.verdict) == back.verdict
    free = settings(step_s={"absolute_floor": 0})
    slow = [_scaled(run, scale) for run in (base, new)]
    scaled = verdict_of(gated(*slow, settings=free), "step_s")
    assert scaled.change == pytest.approx(there.change)
    assert scaled.verdict == verdict_of(gated(base, new, settings=free), "step_s").verdict


def test_runs_of_two_versions_are_judged_by_steps_that_both_have():
    # The old version's steps are 3 % longer: another definition, and no change of the job.
    base, new = gated_run(seed=1), gated_run(seed=2)
    slower = gated_run({("ddp", 4): 1.05}, seed=3)
    old = of_version_0_1(base)
    assert old.rows[1].step_s.value > 1.02 * base.rows[1].step_s.value
    for one, other in ((old, new), (of_version_0_1(new), base)):
        found = gated(one, other)
        assert verdict_of(found, "step_s").verdict == "unchanged"
        assert verdict_of(found, "efficiency").verdict == "unchanged"
    found = verdict_of(gated(old, slower), "step_s", world_size=4)
    assert found.verdict == "regressed"
    assert found.new == pytest.approx(1.05 * found.base, rel=0.02)  # both printed numbers alike


def _scaled(summary, factor):
    rows = [
        row.model_copy(
            update={
                "step_s": row.step_s.scaled(factor),
                "samples": [
                    s.model_copy(update={"pace_s": [x * factor for x in s.pace_s]})
                    for s in row.samples
                ],
            }
        )
        for row in summary.rows
    ]
    return summary.model_copy(update={"rows": rows})


def test_a_faster_plain_model_is_named_where_efficiency_falls_by_it():
    result = gated(gated_run(seed=1), gated_run({("plain", 1): 0.9}, seed=2))
    told = verdict_of(result, "efficiency", "ddp", 4)
    assert told.verdict == "regressed" and told.change == pytest.approx(-0.1, abs=0.003)
    assert told.explanation[-1].startswith("the plain model in one process is 10.0 % faster")
    steady = gated(gated_run(seed=1), gated_run({("ddp", 4): 1.05}, seed=2))
    said = " ".join(verdict_of(steady, "efficiency", "ddp", 4).explanation)
    assert "the plain model" not in said


def test_what_may_be_zero_changes_by_its_part_of_the_base():
    runs = [
        with_row(gated_run(seed=n), "ddp", 2, exposed_comm_s=estimate_over_launches(values))
        for n, values in ((1, [0.0100, 0.0101, 0.0099]), (2, [0.0130, 0.0131, 0.0129]))
    ]
    told = verdict_of(gated(*runs), "exposed_comm_s", "ddp", 2)
    assert told.verdict == "regressed" and told.change == pytest.approx(0.3, rel=1e-3)
    assert 0.05 < told.low < told.change < told.high < 0.6
    assert told.floor == pytest.approx(0.05) and told.floor < told.min_detectable < 0.1


def test_what_differs_in_the_environment_and_whether_it_is_allowed():
    base = {"torch": "2.1", "cores": 4, "devices": [{"name": "A"}, {"name": "A"}, {"name": "B"}]}
    new = {"torch": "2.2", "cores": 4, "devices": [{"name": "A"}], "host": "other"}
    assert environment_mismatches(base, new, ["torch"]) == [
        Mismatch("devices", "2 x A, B", "A"),
        Mismatch("torch", "2.1", "2.2", allowed=True),
    ]
    assert environment_mismatches(base, dict(base), []) == []
    assert environment_mismatches(base, {**base, "devices": ["A", "A", "B"]}, []) == []
    (found,) = environment_mismatches({"devices": "x"}, {"devices": [{"name": "A"}]}, [])
    assert (found.base, found.new, found.allowed) == ("", "A", False)


def test_a_row_whose_ranks_were_pinned_is_not_compared_with_one_whose_ranks_were_not():
    """Rows of before the option were pinned, and say nothing of it."""
    old = Row.model_validate({k: v for k, v in make_row().model_dump().items() if k != "pinned"})
    left = make_row().model_copy(update={"pinned": False})
    assert row_mismatches(old, make_row(), []) == []
    assert row_mismatches(old, left, []) == [
        Mismatch("pinned", "True", "False", where="ddp-25mb, N=2")
    ]


def test_exact_quantities_of_a_pipeline_decide_only_where_both_sides_report_the_same_rank():
    def run(rank, **changes):
        fields = {"communication": [collectives(5)], "budget": budget_points(0.8, rank), **changes}
        return with_row(gated_run(seed=1), "ddp", 2, pipeline=make_pipeline(), **fields)

    more = {"wire_bytes": 1200, "communication": [collectives(6)]}
    for rank, verdict in ((0, "regressed"), (1, "inconclusive")):
        result = gated(run(0), run(rank, **more))
        for metric in ("wire_bytes", "all_reduce_count"):
            assert verdict_of(result, metric).verdict == verdict
    assert "report different ranks" in verdict_of(result, "wire_bytes").reason


def row(verdict, **changes):
    return RowVerdict("ddp", "small", 3, "step_s", "s", verdict, **changes)


def result(*rows, **changes):
    return GateResult("base", "new", "run-1", "run-2", tuple(rows), **changes)


GOOD, SHOWN = row("unchanged"), row("regressed", decides=False)
FAILED = row("missing", failed=True)


@cases(
    "rows, verdict, code",
    ((GOOD,), "passed", ExitCode.OK),
    ((GOOD, row("improved")), "passed", ExitCode.OK),
    ((GOOD, SHOWN), "passed", ExitCode.OK),
    ((SHOWN,), "not comparable", ExitCode.INCONCLUSIVE),
    ((), "not comparable", ExitCode.INCONCLUSIVE),
    ((GOOD, row("inconclusive")), "inconclusive", ExitCode.INCONCLUSIVE),
    ((GOOD, row("no change seen"), row("not worse")), "passed", ExitCode.OK),
    ((GOOD, row("probably regressed")), "regressed", ExitCode.REGRESSION),
    ((GOOD, row("inconclusive", decides=False)), "passed", ExitCode.OK),
    ((row("no change seen"), row("inconclusive")), "inconclusive", ExitCode.INCONCLUSIVE),
    ((GOOD, row("missing")), "not comparable", ExitCode.INCONCLUSIVE),
    ((GOOD, row("not comparable")), "not comparable", ExitCode.INCONCLUSIVE),
    ((row("inconclusive"), row("missing")), "not comparable", ExitCode.INCONCLUSIVE),
    ((row("missing"), FAILED), "failed", ExitCode.CELLS_FAILED),
    ((GOOD, replace(FAILED, decides=False)), "passed", ExitCode.OK),
    ((FAILED, row("regressed")), "regressed", ExitCode.REGRESSION),
)
def test_the_worst_that_holds(rows, verdict, code):
    for order in (rows, rows[::-1]):
        found = result(*order)
        assert (found.verdict, found.exit_code) == (verdict, code)


@cases(
    "verdict, seen, code",
    ("no change seen", 0.031, 3),
    ("no change seen", None, 3),
    ("no change seen", 0.03, 0),
    ("unchanged", 0.5, 0),
    ("probably regressed", 0.5, 1),
)
def test_what_is_needed_has_to_have_been_visible(verdict, seen, code):
    unseen = result(row(verdict, min_detectable=seen), need=0.03)
    assert unseen.exit_code == code
    assert result(*unseen.rows).exit_code == (code if code == 1 else 0)
    assert replace(unseen, let_pass=("inconclusive",)).exit_code == (code if code == 1 else 0)


def test_the_machine_interface_of_a_call():
    mismatch = Mismatch("torch", "1", "2")
    told = result(GOOD, mismatches=(mismatch,), notes=("a note",)).as_json()
    assert list(told)[:4] == ["format", "verdict", "exit_code", "covers"]
    rows = told.pop("rows")
    assert told == {
        "format": "scalebench.gate/1", "verdict": "passed", "exit_code": 0, "covers": None,
        "base": "base", "new": "new", "base_run_id": "run-1", "new_run_id": "run-2",
        "mismatches": (
            {"name": "torch", "base": "1", "new": "2", "where": "", "allowed": False},
        ),
        "notes": ("a note",), "confidence": 0.99, "false_alarm_rate": 0.01,
        "interleaved": False, "need": None, "let_pass": (),
    }  # fmt: skip
    assert len(rows) == 1 and rows[0]["verdict"] == "unchanged"


def raced(time_s, reached=5, spread=0.01):
    arrival = estimate(time_s, spread, 5) if reached == 5 else None
    told = {"target_loss": 2.5, "target_from": "given", "baseline": ("plain", 1), "samples": 4096}
    return RaceFigures(num_seeds=5, num_reached=reached, time_to_target_s=arrival, **told)


def judged(base, new):
    runs = (
        with_row(gated_run(seed=seed), "ddp", 4, race=race) for seed, race in ((1, base), (2, new))
    )
    return verdict_of(gated(*runs), "time_to_target_s", world_size=4)


@cases(
    "base, new, verdict",
    (raced(10), raced(12), "regressed"),
    (raced(12), raced(10), "improved"),
    (raced(10), raced(10.05), "unchanged"),
    (raced(10, spread=0.2), raced(11, spread=0.2), "no change seen"),
)
def test_a_longer_time_to_the_loss_is_a_regression(base, new, verdict):
    found = judged(base, new)
    assert (found.verdict, found.decides) == (verdict, True)
    assert found.low is not None and found.high is not None


@cases(
    "was, is_, verdict, basis",
    (5, 4, "regressed", "single"),
    (4, 5, "improved", "single"),
    (4, 4, "inconclusive", "none"),
    (0, 4, "inconclusive", "none"),
    (4, 0, "inconclusive", "none"),
)
def test_a_target_counts_as_reached_where_every_seed_reaches_it(was, is_, verdict, basis):
    found = judged(raced(10, reached=was), raced(10, reached=is_))
    assert (found.verdict, found.basis) == (verdict, basis)
    if verdict == "regressed":
        assert found.reason == "1 of 5 seeds no longer reach the target"


STALL, RESTART = "async_checkpoint_stall_s", "kill_torchrun_restart_s"
DECIDE = gate_settings(
    {name: {"decides": True} for name in ("checkpoint_stall_s", "restart_s")}, "the test"
)


def run(figures, seed=1):
    return with_row(gated_run(seed=seed), "ddp", 4, recovery=figures)


def recovery_judged(base, new, settings=DECIDE):
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
    result = recovery_judged(recovery(), new)
    found = {name: verdict_of(result, name, world_size=4) for name in (STALL, RESTART)}
    assert (found[STALL].verdict, found[RESTART].verdict) == (stall, restart)
    assert all(verdict.decides for verdict in found.values())
    assert (result.verdict == "regressed") == ("regressed" in (stall, restart))


def test_without_a_setting_they_are_shown_and_do_not_decide():
    for settings in (GateSettings(), DECIDE.only_exact()):
        result = recovery_judged(recovery(), recovery(stall_s=0.2), settings)
        found = verdict_of(result, STALL, world_size=4)
        assert (found.verdict, found.decides) == ("regressed", False)


MB = 1_000_000


def with_peaks(run, peaks):
    """The run with the peaks of one row's launches; the row's own is the largest."""
    row = next(r for r in run.rows if (r.case, r.world_size) == ("ddp", 2))
    samples = [
        sample.model_copy(update={"peak_memory_bytes": peak})
        for sample, peak in zip(row.samples, peaks, strict=True)
    ]
    return with_row(run, "ddp", 2, samples=samples, peak_memory_bytes=max(peaks))


def judged_by_peaks(base, new):
    return verdict_of(
        gated(with_peaks(gated_run(seed=1), base), with_peaks(gated_run(seed=2), new)),
        "peak_memory_bytes",
    )


def test_one_launch_with_a_larger_peak_is_no_regression():
    """Its peak is the row's, 5 % larger; four launches of five are as they were."""
    base, new = [100 * MB] * 5, [100 * MB] * 4 + [105 * MB]
    found = judged_by_peaks(base, new)
    assert found.verdict == "no change seen" and found.basis == "launches"
    assert found.low < 0 < found.high


def test_a_larger_peak_of_every_launch_is_one():
    generator = np.random.default_rng(0)
    noise = generator.integers(-1000, 1000, 10)
    found = judged_by_peaks(
        [100 * MB + int(n) for n in noise[:5]], [101 * MB + int(n) for n in noise[5:]]
    )
    assert found.verdict == "regressed" and found.base_launches == found.new_launches == 5
    assert found.change == pytest.approx(0.01, rel=0.01)
    assert found.base == pytest.approx(100 * MB, rel=1e-4)
