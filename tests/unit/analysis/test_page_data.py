"""What a run's folder holds beyond its summary, by launches whose every number is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.attribution import attribute
from scalebench.analysis.page_data import gather
from scalebench.analysis.page_data.rank_steps import extremes, rank_grid, shrunk
from scalebench.analysis.page_data.telemetry import device_series_of
from scalebench.analysis.page_data.timeline import ACTIVITIES, HIDDEN, evenly, step_timeline
from scalebench.analysis.summarise import summarise
from scalebench.records.rank import Block
from scalebench.records.telemetry import DeviceStates, DeviceTrack, NodeTrack
from scalebench.trace.breakdown import closed
from scalebench.trace.intervals import intervals, length
from tests.builders.runs import make_cell, make_record, make_result, make_run, make_small_run
from tests.builders.traced import (
    MS,
    flat,
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


def test_copies_of_a_gpu_are_an_activity():
    """The all-reduce lasts to 70; copies run from 45 to 55, beside both, and from 68 to 72."""
    trace = make_trace(
        [make_operation(40, 70)], [(0, 50), (75, 100)], copies=flat([(45, 55), (68, 72)])
    )
    (rank,) = step_timeline(attribute(make_traced_result(make_traced_record(0, trace)))).ranks
    assert rank.total_s("copies") == pytest.approx(0.002)
    assert rank.total_s("other_idle") == pytest.approx(0.003)
    assert rank.total_s("exposed_transfer") == pytest.approx(0.020)
    assert sum(rank.total_s(kind) for kind in ACTIVITIES) == pytest.approx(0.1)


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


def test_of_many_ranks_few_are_shown_first_and_last_among_them():
    assert evenly(range(1000), 16)[0] == 0 and evenly(range(1000), 16)[-1] == 999
    assert len(set(evenly(range(1000), 16))) == 16
    assert evenly([3, 5], 16) == [3, 5]


spans = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 50)), min_size=1, max_size=20)


@given(spans, st.integers(0, 30))
def test_closing_gaps_only_closes_small_ones(pairs, gap):
    from scalebench.trace.intervals import union

    tidy = union(intervals([(start, start + size) for start, size in pairs]))
    found = closed(tidy, gap)
    assert (found[1:, 0] - found[:-1, 1] > gap).all()
    assert length(tidy) <= length(found) <= length(tidy) + gap * (len(tidy) - 1)
    assert found[0, 0] == tidy[0, 0] and found[-1, 1] == tidy[-1, 1]


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


def test_a_step_is_drawn_against_the_median_of_the_clean_ones():
    grid = rank_grid(launch_of([9, 2, 5, 3, 2, 2, 1]))
    assert grid.median_s == 2.0
    assert grid.deviation[0, 3:] == pytest.approx([0.5, 0.0, 0.0, -0.5])


def test_what_runs_after_the_clean_window_is_not_drawn():
    """Rounds follow, in which some steps are trained without synchronisation."""
    trained = rank_with([9, 1, 5, 1, 1, 1])
    rounds = Block(phase="paired", first=6, count=3)
    longer = trained.model_copy(
        update={
            "step_s": [*trained.step_s, 7, 7, 7],
            "loss": [*trained.loss, 1.0, 1.0, 1.0],
            "blocks": [*trained.blocks, rounds],
        }
    )
    grid, alone = (
        rank_grid(make_result(make_cell("ddp", 1), ranks=[rank])) for rank in (longer, trained)
    )
    assert grid.deviation.shape == (1, 6)
    assert np.array_equal(grid.deviation, alone.deviation, equal_nan=True)


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


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=300), st.integers(1, 40))
def test_a_shorter_course_keeps_its_extremes(values, most):
    series = np.array(values)
    kept = extremes(series, most)
    assert len(kept) <= 2 * most + 2
    assert series[kept].max() == series.max() and series[kept].min() == series.min()
    assert list(kept) == sorted(set(kept)) and kept[0] == 0 and kept[-1] == len(series) - 1


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


@pytest.mark.parametrize(
    ("bits", "stretches"),
    [
        ((4, 0, 4, 4, 0), [(0.0, 1.0, 1), (2.0, 4.0, 1)]),
        ((4, 12, 8, 8, 12), [(0.0, 1.0, 1), (1.0, 2.0, 2), (2.0, 4.0, 1), (4.0, 4.0, 2)]),
        ((0, None, 1, 2, 0), []),
        ((0, 0, 0, 5, None), [(3.0, 4.0, 1)]),
    ],
)
def test_stretches_of_other_reasons_or_with_a_gap_are_several(bits, stretches):
    (found,) = device_series_of(watched_launch(bits))
    assert [(t.start_s, t.end_s, len(t.reasons)) for t in found.throttled] == stretches


def test_devices_of_a_launch_share_the_moment_of_its_first_reading():
    """Read from 2 s and from 3 s on; both ranks' clean steps lie between 4 and 9 s."""
    seconds = {0: (3, 5), 1: (2, 6)}
    tracks, ranks = [], []
    for rank, times in seconds.items():
        states = DeviceStates(time_ns=[t * 1000 * MS for t in times], power_w=[100.0, 200.0])
        tracks.append(DeviceTrack(uuid=f"GPU-{rank}", name="A GPU", index=rank, states=states))
        clean = Block(phase="clean", first=0, count=6, start_ns=4000 * MS, end_ns=9000 * MS)
        facts = {"device_uuid": f"GPU-{rank}"}
        ranks.append(make_record(rank, blocks=[clean], facts=facts))
    cell = make_cell("ddp", 2, device="cuda", backend="nccl")
    found = device_series_of(make_result(cell, ranks=ranks, node=NodeTrack(devices=tracks)))
    assert [one.series["power_w"] for one in found] == [
        ((1.0, 100.0), (3.0, 200.0)),
        ((0.0, 100.0), (4.0, 200.0)),
    ]
    assert [one.windows for one in found] == [((2.0, 7.0),)] * 2


def test_a_row_on_the_processor_has_no_device():
    assert device_series_of(launch_of([9, 1, 5, 1, 1])) == []


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
