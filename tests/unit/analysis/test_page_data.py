"""What the page shows beyond the summary: what sticks out stays, throttling is marked."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.page_data.rank_steps import shrunk
from scalebench.analysis.page_data.telemetry import device_series_of
from scalebench.records.measured.telemetry import DeviceStates, DeviceTrack, NodeTrack
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.tracing.traced import MS

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
