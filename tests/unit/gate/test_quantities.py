import numpy as np
import pytest

from tests.builders.gated import gated, gated_run, verdict_of, with_row

MB = 1_000_000


def with_peaks(run, peaks):
    """The run with the peaks of one row's launches; the row's own is the largest."""
    row = next(r for r in run.rows if (r.case, r.world_size) == ("ddp", 2))
    samples = [
        sample.model_copy(update={"peak_memory_bytes": peak})
        for sample, peak in zip(row.samples, peaks, strict=True)
    ]
    return with_row(run, "ddp", 2, samples=samples, peak_memory_bytes=max(peaks))


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
