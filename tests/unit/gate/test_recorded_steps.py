"""Rules for calling a step slower, tried on real step times with known slowdowns in them.

`tests/recorded/step_times_*.npz`: see ``benchmarks/record_steps.py``, which made them. A window is
one round there and back over four arms; a pair is the median of an arm's two blocks of a window
beside that of arm A. What is asked: a slowdown of 2 % is found within 80 pairs at least 95 times in
100, and where nothing differs it is found at most once in 100.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

RECORDED = sorted((Path(__file__).parents[2] / "recorded").glob("step_times_*.npz"))
PAIRS = 80
LEVEL = 0.005
"""Of the one-sided test, as the gate's own."""

THRESHOLD = 0.02
"""Of the rule that it stands beside: later against earlier, no pairs, no test."""


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.stem)
def recorded(request):
    return read(request.param)


def read(path):
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def medians(recorded, which):
    """Arm → median of its blocks in every window, seconds; shape [windows]."""
    arms = recorded["arms"].tolist()
    blocks = np.median(recorded[which].astype(float), axis=2)
    return {
        arm: np.mean([blocks[:, i] for i, name in enumerate(arms) if name == arm], axis=0)
        for arm in dict.fromkeys(arms)
    }


def slower(base, new):
    """Whether paired windows show that ``new`` is slower: t of the logarithms, outliers clipped."""
    ratios = np.log(new / base)
    middle = np.median(ratios)
    half_width = 4 * stats.median_abs_deviation(ratios, scale="normal")
    clipped = np.clip(ratios, middle - half_width, middle + half_width)
    return stats.ttest_1samp(clipped, 0, alternative="greater").pvalue < LEVEL


def rate(rule, base, new, starts):
    return np.mean([rule(base[i : i + PAIRS], new[i : i + PAIRS]) for i in starts])


def later_is_slower(base, new):
    """The sequential rule: the second half of the time against the first, by a threshold."""
    half = len(base) // 2
    return np.median(new[half:]) > (1 + THRESHOLD) * np.median(base[:half])


def every_start(arms):
    return range(0, len(arms["a"]) - PAIRS + 1, 2)


def test_interleaved_blocks_find_two_percent(recorded):
    arms = medians(recorded, "quiet_s")
    starts = every_start(arms)
    assert rate(slower, arms["a"], arms["slower-2"], starts) >= 0.95
    assert rate(slower, arms["a"], arms["slower-5"], starts) == 1.0


@pytest.mark.parametrize("which", ["quiet_s", "loaded_s"])
def test_interleaved_blocks_do_not_cry_wolf(recorded, which):
    """Not while other processes keep the cores busy, either: then they find less, that is all."""
    arms = medians(recorded, which)
    starts = every_start(arms)
    assert rate(slower, arms["a"], arms["b"], starts) <= 0.01
    assert rate(slower, arms["b"], arms["a"], starts) <= 0.01


def test_what_was_injected_is_what_is_recovered(recorded):
    """Of the first recording it is only known that it was 2 and 5 % of an earlier median."""
    arms = medians(recorded, "quiet_s")
    known = "quiet_median_s" in recorded
    of = float(recorded["quiet_median_s"]) if known else np.median(arms["a"])
    for arm, part in (("b", 0.0), ("slower-2", 0.02), ("slower-5", 0.05)):
        injected = part * of / np.median(arms["a"])
        found = np.median(arms[arm] / arms["a"]) - 1
        assert found == pytest.approx(injected, abs=0.006 if known else 0.01)


def test_a_sequential_threshold_cries_wolf_where_the_machine_drifts(recorded):
    """What is measured later looks slower though nothing changed: others came in half way."""
    arms = medians(recorded, "loaded_s")
    assert rate(later_is_slower, arms["a"], arms["b"], every_start(arms)) > 0.7


def test_a_sequential_threshold_cries_wolf_on_a_quiet_machine_too():
    """Not in every hour: in one of the recordings the machine drifts by itself."""
    found = [medians(read(path), "quiet_s") for path in RECORDED]
    rates = [rate(later_is_slower, arms["a"], arms["b"], every_start(arms)) for arms in found]
    assert max(rates) > 0.2
