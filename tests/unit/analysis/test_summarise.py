import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.summarise import summarise
from scalebench.analysis.validity import failed_rows
from scalebench.records.outcome import skipped_result
from scalebench.records.rank import Memory, Verification
from scalebench.records.summary import Row, Summary
from scalebench.spec import Loader, Plain
from scalebench.units import bytes_
from tests.builders.runs import (
    make_cell,
    make_failed,
    make_inspection,
    make_record,
    make_result,
    make_run,
    make_small_run,
)

PLAIN, ONE, TWO = make_cell("plain", 1), make_cell("ddp", 1), make_cell("ddp", 2)


def at(cell, repeat):
    return cell.model_copy(update={"repeat": repeat})


def rows_of(results, plan=None, **changes):
    """Rows by case and world size."""
    summary = summarise(make_run(results, plan, **changes))
    return {(row.case, row.world_size): row for row in summary.rows}


def drifting(drift):
    """Three rounds; in each, everything is slower by a factor. True efficiency: 0.8."""
    return [
        make_result(at(cell, i), step_s * slower)
        for i, slower in enumerate(drift)
        for cell, step_s in ((PLAIN, 0.4), (TWO, 0.25))
    ]


def test_a_drift_from_round_to_round_cancels_in_the_ratios_but_not_in_the_times():
    row = rows_of(drifting((1.0, 1.5, 2.0)))["ddp", 2]
    assert row.efficiency.value == pytest.approx(0.8)
    assert row.efficiency.half_width == pytest.approx(0, abs=1e-9)
    assert row.step_s.half_width / row.step_s.value > 0.5  # what unpaired ratios would inherit


def test_a_failed_launch_marks_its_row_and_says_what_the_numbers_are_of():
    results = drifting((1.0, 1.0, 1.0))
    results[3] = make_failed(at(TWO, 1), "rank 1: it broke")
    row = rows_of(results)["ddp", 2]
    assert row.status == "failed"
    assert row.reason.startswith("rank 1: it broke")
    assert "2 of 3 launches" in row.reason
    assert [samples.repeat for samples in row.samples] == [0, 2]
    assert row.num_clean_steps == 8


def test_a_row_without_a_good_launch_has_no_numbers_and_every_reason():
    results = [make_result(PLAIN, 0.4), make_failed(TWO, "out of memory", status="oom")]
    row = rows_of(results)["ddp", 2]
    assert (row.status, row.reason) == ("oom", "out of memory")
    assert row.step_s is row.efficiency is row.loss_first is row.launch_s is None
    assert row.loss_last_steps is None
    assert row.samples == []
    assert "no launch of this row succeeded" in row.unavailable["efficiency"]


def test_out_of_memory_stands_beside_what_was_predicted():
    """The row has no launch that knows the model; the plain one does, and its activations."""
    memory = Memory(
        allocated_bytes=9_000_000, activations_bytes=400_000, activations_peak_bytes=2_000_000,
        gradients_bytes=1_000_000, data_bytes=1000,
    )  # fmt: skip
    inspected = make_inspection(PLAIN)
    ranks = [rank.model_copy(update={"memory": memory}) for rank in inspected.ranks]
    facts = [
        rank.model_copy(update={"facts": {"optimizer": "AdamW"}})
        for rank in make_result(PLAIN).ranks
    ]
    results = [
        inspected.model_copy(update={"ranks": ranks}),
        make_result(PLAIN, 0.4, ranks=facts),
        make_failed(TWO, "rank 1: out of memory", status="oom"),
    ]
    row = rows_of(results)["ddp", 2]
    assert row.status == "oom" and row.peak_memory_bytes is None
    assert row.predicted_memory_bytes > 16 * 421_000  # parameters, gradients, two moments
    predicted = bytes_(row.predicted_memory_bytes)
    assert row.reason == f"rank 1: out of memory; predicted for a rank: {predicted}"


def test_without_a_plain_baseline_there_is_no_efficiency_and_it_says_why():
    rows = rows_of([make_result(ONE, 0.5), make_result(TWO, 0.25)])
    row = rows["ddp", 2]
    assert row.speedup is None
    assert row.efficiency is None
    for name in ("speedup", "efficiency"):
        assert row.unavailable[name].startswith("no plain baseline at a batch of ")
    assert row.efficiency_wrapped.value == pytest.approx(1.0)


def test_without_the_strategy_at_one_there_is_no_wrapped_efficiency_and_it_says_why():
    row = rows_of([make_result(PLAIN, 0.4), make_result(TWO, 0.25)])["ddp", 2]
    assert row.efficiency.value == pytest.approx(0.8)
    assert row.efficiency_wrapped is None
    assert "N=1" in row.unavailable["efficiency_wrapped"]


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": Plain(autocast=True)},
        {"global_batch": 64, "rank_batch": 64},
        {"suite": "other"},
        {"workload": make_cell().workload.model_copy(update={"name": "other"})},
    ],
)
def test_a_baseline_that_did_other_work_is_no_baseline(changes):
    other = make_cell(**{"case": "plain", "world_size": 1, **changes})
    row = rows_of([make_result(other, 0.4), make_result(TWO, 0.25)])["ddp", 2]
    assert row.efficiency is None


def test_skipped_and_unfinished_rows_are_rows_with_a_reason():
    never = make_cell("ddp", 8, skip_reason="8 ranks need 8 GPUs")
    plan = [PLAIN, TWO, never]
    results = [make_result(PLAIN), skipped_result(never, never.skip_reason, "now")]
    rows = rows_of(results, plan, status="interrupted")
    assert (rows["ddp", 8].status, rows["ddp", 8].reason) == ("skipped", "8 ranks need 8 GPUs")
    assert rows["ddp", 2].status == "skipped"
    assert "interrupted" in rows["ddp", 2].reason
    assert failed_rows(rows.values()) == []


def test_a_failed_inspection_fails_the_row():
    inspection = make_inspection(TWO, status="failed", reason="gradients deviate by 0.1")
    unmeasured = skipped_result(TWO, "not measured: gradients deviate by 0.1", "now")
    row = rows_of([make_result(PLAIN), inspection, unmeasured])["ddp", 2]
    assert (row.status, row.reason) == ("failed", "gradients deviate by 0.1")


def test_the_loader_of_a_case_decides_its_baseline():
    loader = Loader(num_workers=1)
    loaded = make_cell("ddp-loader", 2, loader=loader)
    plain_loaded = make_cell("plain-loader", 1, loader=loader)
    resident = [make_result(PLAIN, 0.1), make_result(loaded, 0.1)]
    assert rows_of(resident)["ddp-loader", 2].speedup.value == pytest.approx(1.0)
    both = [*resident, make_result(plain_loaded, 0.3)]
    assert rows_of(both)["ddp-loader", 2].speedup.value == pytest.approx(3.0)
    both = [*both, make_result(TWO, 0.1)]
    assert rows_of(both)["ddp", 2].speedup.value == pytest.approx(1.0)


def test_stamps():
    assert rows_of(make_small_run())["ddp", 2].stamps == []
    over = make_cell("ddp", 8, oversubscribed=True, pinned=False)
    unsteady = [make_record(rank, steady=False) for rank in range(2)]
    doubtful = [
        make_record(rank, verification=Verification(status="unverified", reason="BatchNorm"))
        for rank in range(2)
    ]
    rows = rows_of(
        [
            make_result(over),
            make_inspection(TWO, ranks=doubtful),
            make_result(TWO),
            make_result(at(TWO, 1), ranks=unsteady),
        ]
    )
    assert rows["ddp", 8].stamps == ["oversubscribed"]
    assert rows["ddp", 8].oversubscribed
    assert (rows["ddp", 8].pinned, rows["ddp", 2].pinned) == (False, True)
    assert set(rows["ddp", 2].stamps) == {"unsteady", "unverified"}
    assert rows["ddp", 2].correctness.reason == "BatchNorm"


NOT_MEASUREMENTS = {"reason", "backend"}


def check_every_null_has_its_reason(row: Row):
    nulls = {name for name, value in row if value is None} - NOT_MEASUREMENTS
    assert nulls <= set(row.unavailable), nulls - set(row.unavailable)
    assert all(row.unavailable.values())
    told = {name for name in row.unavailable if getattr(row, name) is not None}
    assert not told, f"measured and called unavailable: {told}"


PLANNED = [
    *(make_inspection(cell).cell for cell in (PLAIN, ONE, TWO)),
    *(at(cell, repeat) for repeat in range(2) for cell in (PLAIN, ONE, TWO)),
]
FATES = st.sampled_from(["ok", "failed", "oom", "skipped", "never run"])


def fated(cell, fate):
    if fate == "ok":
        return make_inspection(cell) if cell.purpose == "inspect" else make_result(cell)
    return make_failed(cell, "it had to be", status=fate)


@given(st.lists(FATES, min_size=len(PLANNED), max_size=len(PLANNED)), st.booleans())
def test_whatever_fails_every_row_is_there_and_every_null_has_a_reason(fates, has_tokens):
    results = [
        fated(cell, fate) for cell, fate in zip(PLANNED, fates, strict=True) if fate != "never run"
    ]
    if not has_tokens:
        results = [
            r.model_copy(
                update={
                    "ranks": [k.model_copy(update={"tokens_per_sample": None}) for k in r.ranks]
                }
            )
            for r in results
        ]
    summary = summarise(make_run(results, PLANNED, status="over budget"))
    assert [(row.case, row.world_size) for row in summary.rows] == [
        ("plain", 1),
        ("ddp", 1),
        ("ddp", 2),
    ]
    for row in summary.rows:
        check_every_null_has_its_reason(row)
        assert (row.reason is None) is (row.status == "ok")
        assert row.num_clean_steps == sum(len(s.step_s) for s in row.samples)
    assert Summary.model_validate_json(summary.model_dump_json()) == summary


@given(
    st.lists(st.floats(min_value=1e-6, max_value=100), min_size=3, max_size=3),
    st.lists(st.floats(min_value=1e-6, max_value=100), min_size=3, max_size=3),
)
def test_speedup_is_efficiency_times_n_and_the_ratio_of_the_throughputs(base, wrapped):
    results = [make_result(at(PLAIN, i), s) for i, s in enumerate(base)]
    results += [make_result(at(TWO, i), s) for i, s in enumerate(wrapped)]
    rows = rows_of(results)
    plain, two = rows["plain", 1], rows["ddp", 2]
    assert two.speedup.value == pytest.approx(2 * two.efficiency.value)
    assert two.speedup.value == pytest.approx(two.throughput.value / plain.throughput.value)
    assert two.throughput.value == pytest.approx(32 / two.step_s.value)
    assert two.efficiency.low <= two.efficiency.value <= two.efficiency.high
    assert math.isclose(plain.efficiency.value, 1.0)
