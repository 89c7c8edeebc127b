"""What the page shows beyond the summary: what sticks out stays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.page_data.rank_steps import shrunk

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
