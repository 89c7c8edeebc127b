"""Peak memory is judged by the launches, where each of them counted it."""

import numpy as np
import pytest

from scalebench.errors import UsageError
from scalebench.gate.baselines import read_summary
from scalebench.records.files import write_model
from scalebench.records.summary import Summary
from tests.builders.gated import gated, gated_run, verdict_of, with_row

MB = 1_000_000


def with_peaks(run: Summary, peaks, case="ddp", world_size=2):
    """The run with the peaks of one row's launches; the row's own is the largest."""
    row = next(r for r in run.rows if (r.case, r.world_size) == (case, world_size))
    samples = [
        sample.model_copy(update={"peak_memory_bytes": peak})
        for sample, peak in zip(row.samples, peaks, strict=True)
    ]
    known = [peak for peak in peaks if peak is not None]
    return with_row(
        run, case, world_size, samples=samples, peak_memory_bytes=max(known, default=160 * MB)
    )


def judged(base, new):
    return verdict_of(
        gated(with_peaks(gated_run(seed=1), base), with_peaks(gated_run(seed=2), new)),
        "peak_memory_bytes",
    )


def test_one_launch_with_a_larger_peak_is_no_regression():
    """Its peak is the row's, 5 % larger; four launches of five are as they were."""
    base, new = [100 * MB] * 5, [100 * MB] * 4 + [105 * MB]
    found = judged(base, new)
    assert found.verdict == "no change seen" and found.basis == "launches"
    assert found.low < 0 < found.high


def test_a_larger_peak_of_every_launch_is_one():
    generator = np.random.default_rng(0)
    noise = generator.integers(-1000, 1000, 10)
    found = judged([100 * MB + int(n) for n in noise[:5]], [101 * MB + int(n) for n in noise[5:]])
    assert found.verdict == "regressed" and found.base_launches == found.new_launches == 5
    assert found.change == pytest.approx(0.01, rel=0.01)
    assert found.base == pytest.approx(100 * MB, rel=1e-4)


@pytest.mark.parametrize("missing", [[None] * 5, [100 * MB] * 4 + [None]])
def test_where_a_side_has_no_peaks_of_its_launches_the_row_s_are_compared(missing):
    """As a summary of version 0.1 has it, or a run on CPU."""
    base = with_peaks(gated_run(seed=1), missing)
    new = with_row(with_peaks(gated_run(seed=2), [100 * MB] * 5), "ddp", 2,
                   peak_memory_bytes=base.rows[1].peak_memory_bytes)  # fmt: skip
    found = verdict_of(gated(base, new), "peak_memory_bytes")
    assert (found.verdict, found.basis, found.low) == ("unchanged", "single", None)


def test_a_peak_that_cannot_be_is_refused(tmp_path):
    path = tmp_path / "summary.json"
    write_model(path, with_peaks(gated_run(), [-1] * 5))
    with pytest.raises(UsageError, match="peak_memory_bytes: not between"):
        read_summary(path)
