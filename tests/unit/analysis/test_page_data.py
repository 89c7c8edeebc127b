"""What a run's folder holds beyond its summary, by launches whose every number is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.attribution import attribute
from scalebench.analysis.page_data import gather
from scalebench.analysis.page_data.rank_steps import rank_grid, shrunk
from scalebench.analysis.page_data.telemetry import device_series_of
from scalebench.analysis.page_data.timeline import ACTIVITIES, HIDDEN, step_timeline
from scalebench.analysis.rows.against_uncompressed import LossCurve, compare
from scalebench.analysis.summarise import summarise
from scalebench.records.rank import Block
from scalebench.records.telemetry import DeviceStates, DeviceTrack, NodeTrack
from tests.builders.runs import make_cell, make_record, make_result, make_run, make_small_run
from tests.builders.traced import (
    MS,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)


def two_ranks(late_ms=0.0):
    """Both compute 0 to 50 and 60 to 100 ms; the all-reduce lasts to 70, rank 1 may come late."""
    arrive = {0: 40.0, 1: 40.0 + late_ms}
    records = []
    for rank, start in arrive.items():
        compute = [(0, 50 + (late_ms if rank else 0)), (75, 100)]
        trace = make_trace([make_operation(start, 70)], compute)
        records.append(make_traced_record(rank, trace))
    return step_timeline(attribute(make_traced_result(*records)))


def test_a_step_is_shared_out_among_the_activities():
    for rank in two_ranks().ranks:
        assert sum(rank.total_s(kind) for kind in ACTIVITIES) == pytest.approx(0.1)
        assert rank.total_s("compute") == pytest.approx(0.075)
        assert rank.total_s("exposed_transfer") == pytest.approx(0.02)
        assert rank.total_s(HIDDEN) == pytest.approx(0.01)
        assert rank.total_s("other_idle") == pytest.approx(0.005)


def test_who_comes_early_waits_for_who_comes_late():
    early, late = two_ranks(late_ms=15.0).ranks
    assert early.total_s("wait") == pytest.approx(0.005)  # 50 to 55: before, it computed
    assert late.total_s("wait") == 0.0
    assert late.operations[0].start_s == pytest.approx(0.055)


def test_ranks_stand_on_one_clock():
    """Rank 1's trace begins 30 ms later, its step takes the same 100 ms."""
    traces = [make_trace([make_operation(40, 70)], [(0, 50)]),
              make_trace([make_operation(10, 40)], [(0, 20)], origin=30)]  # fmt: skip
    found = step_timeline(
        attribute(make_traced_result(*(make_traced_record(r, t) for r, t in enumerate(traces))))
    )
    assert found.step_s == pytest.approx(0.13)
    assert [rank.operations[0].start_s for rank in found.ranks] == pytest.approx([0.04, 0.04])


def rank_with(step_s, rank=0):
    """Two warm-up steps, then one clean block; its first step counts for nothing."""
    blocks = [
        Block(phase="warmup", first=0, count=2),
        Block(phase="clean", first=2, count=len(step_s) - 2),
    ]
    return make_record(rank, step_s=list(step_s), loss=[1.0] * len(step_s), blocks=blocks)


def launch_of(*ranks):
    records = [rank_with(step_s, rank) for rank, step_s in enumerate(ranks)]
    return make_result(make_cell("ddp", len(ranks)), ranks=records)


def test_the_grid_shows_who_is_slow_and_leaves_out_what_does_not_count():
    grid = rank_grid(launch_of([9, 1, 5, 1, 1, 1], [9, 1, 5, 1.5, 1, 1]))
    assert grid.median_s == 1.0 and grid.steady_from == 2
    assert np.isnan(grid.deviation[:, 2]).all()  # first step of the clean block
    assert grid.deviation[1, 3] == pytest.approx(0.5)
    assert grid.deviation[0, 0] == pytest.approx(8.0)


grids = st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(1, 12), st.integers(1, 20))


@given(grids, st.randoms(use_true_random=False))
def test_a_smaller_grid_keeps_what_sticks_out(shape, random):
    rows, columns, most_rows, most_columns = shape
    grid = np.array([[random.uniform(-1, 1) for _ in range(columns)] for _ in range(rows)])
    peak = (random.randrange(rows), random.randrange(columns))
    grid[peak] = 7.0
    small, first_rows, first_columns = shrunk(grid, most_rows, most_columns)
    assert small.shape == (len(first_rows), len(first_columns))
    assert small.shape[0] <= most_rows and small.shape[1] <= most_columns
    place = (
        np.searchsorted(first_rows, peak[0], "right") - 1,
        (np.searchsorted(first_columns, peak[1], "right") - 1),
    )
    assert small[place] == 7.0 and (small == 7.0).sum() == 1


def watched_launch(bits=(0, 4, 4, 0, 1), unavailable=None):
    times = [i * 1000 * MS for i in range(5)]
    states = DeviceStates(
        time_ns=times,
        power_w=[100.0, 300.0, None, 310.0, 120.0],
        sm_clock_hz=[1_900_000_000] * 5,
        throttle_bits=list(bits),
    )
    track = DeviceTrack(uuid="GPU-1", name="A GPU", index=0, states=states)
    record = make_record(facts={"device_uuid": "GPU-1"})
    node = NodeTrack(devices=[track], unavailable=unavailable or {})
    cell = make_cell("ddp", 1, device="cuda", backend="nccl")
    return make_result(cell, ranks=[record], node=node)


def test_a_device_is_throttled_where_a_reason_that_throttles_was_read():
    (found,) = device_series_of(watched_launch())
    assert [(t.start_s, t.end_s, t.reasons) for t in found.throttled] == [
        (1.0, 3.0, ("power cap",))
    ]
    assert found.series["power_w"] == ((0.0, 100.0), (1.0, 300.0), (3.0, 310.0), (4.0, 120.0))
    assert set(found.series) == {"power_w", "sm_clock_hz"}


def test_the_largest_size_that_does_not_share_cores_is_shown():
    crowded = make_cell("ddp", 4, oversubscribed=True)
    run = make_run([*make_small_run(), make_result(crowded)])
    found = gather(run, summarise(run))
    assert [(grid.case, grid.world_size) for grid in found.grids] == [("ddp", 2)]
    assert found.timelines == ()
    assert found.extrapolation.as_measured is None and found.extrapolation.reason


def test_a_run_without_a_result_has_no_evidence():
    run = make_run([], [make_cell()])
    found = gather(run, summarise(run))
    assert (found.grids, found.devices) == ((), ())
    assert found.extrapolation.reason == "nothing was measured on more than one rank"


def falling(num_steps, by=0.1):
    return [10 - by * k for k in range(num_steps)]


def test_equal_steps_equal_seconds_and_target():
    exact = LossCurve(falling(20), step_s=2.0)
    quick = LossCurve(falling(40, by=0.05), step_s=0.5)
    told = compare({"quick": quick, "none": exact}, exact)["quick"]
    assert told.equal_steps == 20
    assert told.loss_after_steps == pytest.approx(10 - 0.05 * 17)  # the middle of 15 to 19
    assert told.loss_of_none_after_steps == pytest.approx(10 - 0.1 * 17)
    assert told.equal_s == 20  # the quick one's 40 steps; the exact one takes 10 in it
    assert told.loss_after_s == pytest.approx(10 - 0.05 * 37)
    assert told.loss_of_none_after_s == pytest.approx(10 - 0.1 * 7)
    assert told.target_loss == told.loss_of_none_after_steps
    assert told.steps_to_target == 37
    assert told.time_to_target_s == pytest.approx(18.5)
    assert told.time_of_none_to_target_s == pytest.approx(40)


def test_a_target_that_was_not_reached_has_no_time():
    exact = LossCurve(falling(20), step_s=1.0)
    told = compare({"stuck": LossCurve([10.0] * 30, 0.1)}, exact)["stuck"]
    assert told.steps_to_target is None and told.time_to_target_s is None
