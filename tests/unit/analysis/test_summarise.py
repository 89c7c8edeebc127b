import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.summarise import summarise
from scalebench.records.measured.rank import Memory
from scalebench.records.run import skipped_result
from scalebench.records.summary import Summary
from scalebench.spec import Plain
from scalebench.units import bytes_
from tests.builders.runs import make_cell, make_failed, make_inspection, make_result, make_run
from tests.examples import cases

PLAIN, ONE, TWO = make_cell("plain", 1), make_cell("ddp", 1), make_cell("ddp", 2)


def at(cell, repeat):
    return cell.model_copy(update={"repeat": repeat})


def rows_of(results, plan=None, **changes):
    """Rows by case and world size."""
    summary = summarise(make_run(results, plan, **changes))
    return {(row.case, row.world_size): row for row in summary.rows}


def test_a_failed_launch_marks_its_row_and_says_what_the_numbers_are_of():
    both = ((PLAIN, 0.4), (TWO, 0.25))
    results = [make_result(at(cell, i), step_s) for i in range(3) for cell, step_s in both]
    results[3] = make_failed(at(TWO, 1), "rank 1: it broke")
    row = rows_of(results)["ddp", 2]
    assert row.status == "failed"
    assert row.reason.startswith("rank 1: it broke")
    assert "2 of 3 launches" in row.reason
    assert [samples.repeat for samples in row.samples] == [0, 2]
    assert row.num_clean_steps == 8


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


@cases(
    "changes",
    {"strategy": Plain(autocast=True)},
    {"global_batch": 64, "rank_batch": 64},
    {"suite": "other"},
    {"workload": make_cell().workload.model_copy(update={"name": "other"})},
)
def test_a_baseline_that_did_other_work_is_no_baseline(changes):
    other = make_cell(**{"case": "plain", "world_size": 1, **changes})
    row = rows_of([make_result(other, 0.4), make_result(TWO, 0.25)])["ddp", 2]
    assert row.efficiency is None


def test_a_failed_inspection_fails_the_row():
    inspection = make_inspection(TWO, status="failed", reason="gradients deviate by 0.1")
    unmeasured = skipped_result(TWO, "not measured: gradients deviate by 0.1", "now")
    row = rows_of([make_result(PLAIN), inspection, unmeasured])["ddp", 2]
    assert (row.status, row.reason) == ("failed", "gradients deviate by 0.1")


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
        nothing = {"tokens_per_sample": None}
        told = [[rank.model_copy(update=nothing) for rank in one.ranks] for one in results]
        results = [
            one.model_copy(update={"ranks": r}) for one, r in zip(results, told, strict=True)
        ]
    summary = summarise(make_run(results, PLANNED, status="over budget"))
    assert [(row.case, row.world_size) for row in summary.rows] == [
        ("plain", 1),
        ("ddp", 1),
        ("ddp", 2),
    ]
    for row in summary.rows:
        nulls = {name for name, value in row if value is None} - {"reason", "backend"}
        assert nulls <= set(row.unavailable), nulls - set(row.unavailable)
        assert all(row.unavailable.values())
        told = {name for name in row.unavailable if getattr(row, name) is not None}
        assert not told, f"measured and called unavailable: {told}"
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
