"""Frameworks next to each other: the verdict, the table and the figure."""

from typing import Any

import pytest

from scalebench.records.rows.frameworks import AgainstFastest, FrameworkFacts
from scalebench.records.summary import Row
from scalebench.report.page.frameworks_figure import framework_figure
from scalebench.report.tables import frameworks
from scalebench.report.tables.frameworks import tables
from scalebench.stats import Estimate


def row(case: str, step: tuple[float, float | None, float | None], **changes: Any) -> Row:
    value, low, high = step
    given = {
        "suite": "frameworks",
        "case": case,
        "strategy": "deepspeed",
        "strategy_settings": {},
        "workload": "gpt-tiny",
        "num_parameters": 1,
        "scaling": "strong",
        "device": "cpu",
        "backend": "gloo",
        "world_size": 2,
        "global_batch": 16,
        "rank_batch": 8,
        "status": "ok",
        "reason": None,
        "oversubscribed": False,
        "step_s": Estimate(value=value, low=low, high=high, n=3),
        "memory": {},
        "correctness": None,
        "launch_s": None,
        "num_clean_steps": 30,
        "stamps": [],
        "unavailable": {},
        "samples": [],
        "peak_memory_bytes": 20_000_000,
        "framework": FrameworkFacts(
            versions={"deepspeed": "0.19.8"}, untested=[], settings={"gradient_clipping": 0.0}
        ),
    }
    empty = ("throughput", "tokens_per_s", "speedup", "efficiency", "efficiency_wrapped")
    losses = ("loss_first", "loss_last")
    return Row.model_validate({**dict.fromkeys(empty + losses), **given, **changes})


FAST = row("fast", (0.010, 0.009, 0.011))
NEAR = row("near", (0.0115, 0.0105, 0.0125), peak_memory_bytes=10_000_000)
SLOW = row("slow", (0.020, 0.019, 0.021))


def test_overlapping_intervals_are_not_significantly_different():
    assert frameworks.sentence([SLOW, NEAR, FAST]) == (
        "Shortest step on 2 CPU ranks: fast, 10.0 ± 1.0 ms. Not significantly different: near; the "
        "other is slower. Least memory: near, 10.0 MB per rank."
    )
    told = frameworks.sentence([SLOW, FAST])
    assert told is not None and "All others are significantly slower." in told


def against(value: float, low: float | None, high: float | None) -> AgainstFastest:
    """Return how a row compares with ``fast``."""
    ratio = Estimate(value=value, low=low, high=high, n=3 if low else 1)
    return AgainstFastest(fastest=("frameworks", "fast", 2), step_ratio=ratio)


PAIRED = [
    row("fast", (0.010, 0.009, 0.011), against_fastest=against(1, 1, 1)),
    row("near", (0.0102, 0.0092, 0.0112), against_fastest=against(1.02, 0.99, 1.05)),
    row("behind", (0.0108, 0.0098, 0.0118), against_fastest=against(1.08, 1.05, 1.11)),
    row("slow", (0.020, 0.019, 0.021), against_fastest=against(2.0, 1.9, 2.1)),
]


def test_the_ratio_of_the_same_rounds_decides_where_it_is_known():
    assert (frameworks.sentence(PAIRED) or "").startswith(
        "Shortest step on 2 CPU ranks: fast, 10.0 ± 1.0 ms. Not significantly different: near; the "
        "other 2 are slower, by 8.0 to 100 %."
    )
    all_slower = frameworks.sentence([PAIRED[0], PAIRED[2]])
    assert all_slower is not None
    assert "All others are significantly slower, by 8.0 %." in all_slower


def test_a_ratio_without_interval_decides_nothing():
    one = row("one", (0.02, 0.019, 0.021), against_fastest=against(2.0, None, None))
    told = frameworks.sentence([PAIRED[0], one])
    assert told is not None and "not known: some have no interval" in told
    assert frameworks.slower_by(one) == "100.0"


def test_memory_that_is_not_all_does_not_win():
    facts = FrameworkFacts(versions={"horovod": "0.28.1"}, uncounted_memory="its fusion buffer")
    horovod = row("horovod", (0.012, 0.011, 0.013), peak_memory_bytes=5_000_000, framework=facts)
    told = frameworks.sentence([horovod, FAST])
    assert told is not None and told.endswith(
        "Least memory: fast, 20.0 MB per rank. The memory of horovod leaves out its fusion buffer."
    )
    assert frameworks.memory(horovod) == "5.00 MB and more"
    assert frameworks.memory(FAST) == "20.0 MB"


def test_wrong_results_and_smaller_sizes_are_not_compared():
    wrong = row("wrong", (0.001, 0.0009, 0.0011), correctness={"status": "deviates"})
    alone = row("alone", (0.001, 0.0009, 0.0011), world_size=1)
    found = frameworks.side_by_side([wrong, alone, FAST])
    assert found is not None and [one.case for one in found.rows] == ["fast"]


def test_without_a_framework_there_is_nothing_to_say():
    ddp = row("ddp", (0.01, 0.009, 0.011), framework=None)
    assert frameworks.sentence([ddp]) is None
    assert tables([ddp]) == ()
    assert framework_figure([ddp], {}) is None


def test_a_version_that_is_not_tested_is_named_beside_the_tested_one():
    known = FrameworkFacts(
        versions={"accelerate": "1.15.0", "deepspeed": "9.0"},
        untested=["deepspeed"],
        tested={"accelerate": "1.15.0", "deepspeed": "0.19.8"},
    )
    old = FrameworkFacts(versions={"lightning": None}, untested=["lightning"])
    rows = [
        FAST,
        row("new", (0.012, 0.011, 0.013), framework=known),
        row("newer", (0.013, 0.012, 0.014), framework=known),
        row("old", (0.014, 0.013, 0.015), framework=old),
    ]
    assert (frameworks.sentence(rows) or "").endswith(
        " Version not tested: deepspeed 9.0 (tested: 0.19.8) and lightning unknown (not tested)."
    )
    assert frameworks.versions(rows[1]) == "accelerate 1.15.0, deepspeed 9.0 (tested: 0.19.8)"
    assert "not tested" not in (frameworks.sentence([FAST, NEAR]) or "")


@pytest.mark.parametrize(
    ("high_s", "end_ms"),
    [(0.021, 1.05 * 21), (0.0571, 1.05 * 57.1), (0.0572, 60.0), (9.0, 60.0), (None, 1.05 * 20)],
)
def test_a_wide_interval_does_not_hide_the_bars(high_s, end_ms):
    longest = row("slow", (0.020, high_s and 0.019, high_s))
    figure = framework_figure([FAST, longest], {})
    assert figure is not None
    assert figure.layout.xaxis.range == pytest.approx((0, end_ms))


def verdicts(rows: list[Row]) -> dict[str, tuple[str, ...]]:
    """Return what the figure says of steps: the entry of its key → cases."""
    figure = framework_figure(rows, {})
    assert figure is not None
    return {bars.name: bars.y for bars in figure.data if bars.xaxis == "x"}


def test_the_figure_draws_the_verdict():
    assert verdicts(PAIRED) == {
        "not significantly slower": ("fast", "near"),
        "slower": ("behind", "slow"),
    }
    one = row("one", (0.02, 0.019, 0.021), against_fastest=against(2.0, None, None))
    assert verdicts([PAIRED[0], one])["not known"] == ("one",)
