"""Which rows and metrics of two runs are compared, and which verdict each has without any test."""

import math

import pytest

from scalebench.gate.comparison import Comparison
from scalebench.gate.gate import (
    Results,
    _keys,
    _matters,
    _missing,
    _not_in_baseline,
    _over_runs,
    compare,
)
from scalebench.gate.measured import measured
from scalebench.gate.metrics import METRICS
from scalebench.gate.observation import Observation
from scalebench.gate.result import Mismatch
from scalebench.gate.settings import GateSettings
from scalebench.records.summary import StepSamples
from tests.builders.gated import budget_points, collectives
from tests.builders.summaries import estimate, make_missing, make_row, make_summary

NAMED = {metric.name: metric for metric in METRICS}


def run(number, *rows, **changes):
    return make_summary(list(rows), **{"run_id": f"run-{number}", **changes})


def gate(base_rows, new_rows, **options):
    base = Results("old", (run(1, *base_rows),))
    return compare(base, Results("new", (run(2, *new_rows),)), **options)


def verdicts(result):
    return {row.metric: row.verdict for row in result.rows}


def bare(**changes):
    """A row with an exact number of bytes and nothing else that is compared."""
    nothing = dict.fromkeys(
        ("step_s", "efficiency", "peak_memory_bytes", "loss_last", "wire_bytes", "payload_bytes")
    )
    return make_row().model_copy(update={**nothing, "wire_bytes": 100, **changes})


def test_a_row_is_compared_by_what_either_side_has():
    result = gate([bare(payload_bytes=5)], [bare(wire_bytes=90, predicted_memory_bytes=7)])
    assert verdicts(result) == {
        "wire_bytes": "improved",
        "payload_bytes": "missing",
        "predicted_memory_bytes": "not comparable",
    }
    reasons = {row.metric: row.reason for row in result.rows}
    assert reasons["payload_bytes"] == "the new run has no number"
    assert reasons["predicted_memory_bytes"] == "the baseline has no number"
    told = {"predicted_memory_bytes": "no model"}
    (row, *_) = gate([bare(unavailable=told)], [bare(predicted_memory_bytes=7)]).rows[1:]
    assert row.reason == "the baseline has no number: no model"


def test_the_names_of_both_results_stand_in_the_result():
    base = Results("old", (run(1, bare()), run(3, bare(case="b"))))
    result = compare(base, Results("new", (run(2, bare()),)))
    assert (result.base, result.new, result.base_run_id, result.new_run_id) == (
        "old", "new", "run-1, run-3", "run-2",
    )  # fmt: skip
    assert not result.interleaved and result.confidence == 0.99
    assert compare(base, base, rounds=True).interleaved


def test_rows_stand_in_the_order_of_the_new_run_and_of_a_folder_only_its_suites():
    def row(case, suite="ddp"):
        return bare(case=case, suite=suite)

    base = (run(1, row("a"), row("b"), row("z", "other")),)
    new = Results("new", (run(2, row("c"), row("b")),))
    keys = _keys(Results("old", base), new)
    assert [key[1] for key in keys] == ["c", "b", "a"]
    assert [key[1] for key in _keys(Results("old", base, partial=True), new)] == ["c", "b", "a"]


@pytest.mark.parametrize("number", [1, 3, 4, 6])
def test_three_rows_without_a_baseline_are_named(number):
    told = _not_in_baseline([make_row("row", size) for size in range(2, 2 + number)])
    named = ", ".join(f"row N={size}" for size in range(2, 2 + min(number, 3)))
    more = f" and {number - 3} more" if number > 3 else ""
    assert told.startswith(f"not in the baseline, so not judged: {named}{more}; `scalebench")


@pytest.mark.parametrize(
    ("base", "new", "verdict", "failed"),
    [
        ("ok", "failed", "missing", True),
        ("ok", "oom", "missing", True),
        ("ok", "skipped", "missing", False),
        ("ok", None, "missing", False),
        ("failed", "skipped", "missing", False),
        ("skipped", "failed", "missing", True),
        ("skipped", "skipped", None, False),
        ("skipped", None, None, False),
        ("skipped", "ok", None, False),
        (None, "failed", "missing", True),
        (None, "skipped", None, False),
    ],
)
def test_a_row_that_one_side_does_not_have(base, new, verdict, failed):
    def rows(status):
        if status is None:
            return []
        if status == "ok":
            return [bare(case="ddp")]
        return [make_missing("ddp", 2, status, "because")]

    result = gate([*rows(base), bare(case="x")], [*rows(new), bare(case="x")])
    found = [row for row in result.rows if row.case == "ddp"]
    assert [(row.verdict, row.failed) for row in found] == ([(verdict, failed)] if verdict else [])
    noted = any("not in the baseline" in note for note in result.notes)
    assert noted is (base in ("skipped", None) and new in ("ok", "skipped") and verdict is None
                     and (base, new) != ("skipped", "skipped"))  # fmt: skip


def test_every_field_of_a_missing_row():
    base = make_row("a", 3)
    gone = _missing(base, None)
    assert (gone.suite, gone.case, gone.world_size, gone.metric) == ("ddp", "a", 3, "step_s")
    assert (gone.base, gone.new, gone.failed) == (base.step_s.value, None, False)
    assert gone.reason == "not in the new run"
    failed = make_missing("a", 3, "failed", "rank 1 died")
    assert _missing(base, failed).reason == "failed: rank 1 died"
    silent = failed.model_copy(update={"reason": None})
    assert _missing(base, silent).reason == "failed: no reason"
    assert _missing(failed, failed).base is None
    assert _missing(base, base).base is None
    assert _missing(base.model_copy(update={"step_s": None}), None).base is None
    assert _missing(base, failed, "otherwise").reason == "otherwise"


def test_a_baseline_that_failed_is_nothing_to_compare_with():
    result = gate([bare(status="failed")], [bare()])
    (row,) = result.rows
    assert (row.verdict, row.reason) == ("not comparable", "the baseline's row is failed")


def test_another_number_of_steps_leaves_out_what_falls_with_them():
    base = bare(loss_last=5.0, num_clean_steps=7)
    assert "loss_last" in verdicts(gate([base], [bare(loss_last=5.0, num_clean_steps=7)]))
    for steps in (6, 8):
        other = bare(loss_last=5.0, num_clean_steps=steps)
        assert "loss_last" not in verdicts(gate([base], [other]))


def test_counts_of_kinds_that_one_side_does_not_have_are_none_and_of_no_trace_unknown():
    base = bare(communication=[collectives(5)])
    new = bare(communication=[collectives(5), collectives(2, "broadcast")])
    assert verdicts(gate([base], [new])) == {
        "wire_bytes": "unchanged", "all_reduce_count": "unchanged", "broadcast_count": "regressed",
    }  # fmt: skip
    assert verdicts(gate([new], [base]))["broadcast_count"] == "improved"
    assert verdicts(gate([base], [bare()]))["all_reduce_count"] == "missing"
    assert verdicts(gate([bare()], [base]))["all_reduce_count"] == "not comparable"
    shown = GateSettings(
        collectives=GateSettings().collectives.__class__(
            "collectives", "c", "count", "exact", decides=False
        )
    )
    found = gate([base], [new], settings=shown)
    assert [row.metric for row in found.rows if not row.decides] == [
        "all_reduce_count", "broadcast_count",
    ]  # fmt: skip


def test_three_of_what_differs_are_named_and_what_is_allowed_is_not():
    base = bare()
    changes = {"backend": "nccl", "device": "cuda", "workload": "w", "scaling": "weak"}
    new = bare(**changes)
    (row,) = gate([base], [new]).rows
    assert row.verdict == "not comparable"
    assert row.reason.startswith("different: device (") and row.reason.count("→") == 3
    (row,) = gate([base], [new], allowed=["device", "workload"]).rows
    assert "device" not in row.reason and row.reason.count("→") == 2
    (row,) = gate([base], [new], allowed=list(changes)).rows
    assert row.verdict == "unchanged"


def test_the_accepted_runs_of_a_comparison_are_put_together():
    def observed(value):
        return Observation(value, measured([math.log(value)] * 3))

    row = make_row()
    one = Comparison(NAMED["step_s"], row, row, observed(2.0), observed(3.0))
    over = _over_runs(one, [observed(8.0), None, Observation(5.0)])
    assert over.base.value == pytest.approx(4.0) and over.base_runs == (
        measured([math.log(2.0)] * 3), measured([math.log(8.0)] * 3),
    )  # fmt: skip
    assert over.base.launches.num_launches == 6 and over.new == one.new
    signed = Comparison(
        NAMED["exposed_comm_s"], row, row,
        Observation(2.0, measured([2.0] * 3)), Observation(3.0, measured([3.0] * 3)),
    )  # fmt: skip
    over = _over_runs(signed, [Observation(8.0, measured([8.0] * 3))])
    assert over.base.value == pytest.approx(5.0)
    assert _over_runs(one, []) == _over_runs(one, [None, Observation(5.0)]) == one
    single = Comparison(NAMED["loss_last"], row, row, Observation(2.0), Observation(3.0))
    assert _over_runs(single, [observed(8.0)]) == single
    none = Comparison(NAMED["step_s"], row, row, None, observed(3.0))
    assert _over_runs(none, [observed(8.0)]) == none


def test_explanations_are_those_of_the_metric_and_of_what_changed():
    def row(efficiency, step_s, count, **parts):
        made = make_row(efficiency=efficiency)
        step = made.step_s.model_copy(update={"value": step_s, "low": None, "high": None, "n": 1})
        share = made.efficiency.model_copy(update={"low": None, "high": None, "n": 1})
        return made.model_copy(
            update={
                "step_s": step, "efficiency": share, "samples": [],
                "budget": budget_points(efficiency, **parts),
                "communication": [collectives(count)],
            }
        )  # fmt: skip

    result = gate([row(0.8, 0.010, 5, wait=0.2)], [row(0.7, 0.012, 6, wait=0.3)])
    told = {found.metric: found.explanation for found in result.rows if found.explanation}
    counted = "all-reduce count per step went from 5 to 6"
    assert told == {
        "step_s": ("the step is 2.00 ms longer: 1.00 ms in waiting", counted),
        "efficiency": (
            "efficiency at N=2 fell 10.0 points, from 80.0 % to 70.0 %; "
            "waiting explains 10.0 of them",
            counted,
        ),
    }


@pytest.mark.parametrize(
    ("what", "metric", "matters"),
    [
        ("link_profile", "prediction_error", True),
        ("link_profile", "step_s", False),
        ("link_profile", "wire_bytes", False),
        ("torch", "wire_bytes", True),
        ("torch", "step_s", True),
        ("cores", "wire_bytes", False),
        ("cores", "step_s", True),
        ("cores", "prediction_error", True),
    ],
)
def test_what_forbids_to_judge_a_metric(what, metric, matters):
    assert _matters(Mismatch(what, "a", "b"), NAMED[metric]) is matters


def test_rounds_are_judged_by_their_differences_and_runs_by_their_spread():
    """Launches that drift together by 10 % a round, and are 5 % slower in each."""

    def row(factor):
        samples = [
            StepSamples(repeat=i, step_s=[s], pace_s=[s])
            for i, s in enumerate(factor * 1.1**k for k in range(4))
        ]
        return bare(samples=samples, step_s=estimate(factor, n=4))

    base, new = row(1.0), row(1.05)
    (apart, _), (paired, _) = (gate([base], [new], rounds=told).rows for told in (False, True))
    assert apart.verdict == "no change seen" and apart.rank_p_value is not None
    assert paired.verdict == "regressed" and paired.rank_p_value is None
    assert paired.low == pytest.approx(0.05) and paired.high == pytest.approx(0.05)
    (half, _) = gate([base], [new], error_budget=0.5).rows
    assert half.low < apart.low < apart.high < half.high
    (whole, _) = gate([base], [new], error_budget=1.0).rows
    assert (whole.low, whole.high) == (apart.low, apart.high)
