"""Frameworks next to each other: what the sentence says, and what it does not claim."""

from typing import Any

import pytest

from scalebench.records.rows.frameworks import AgainstFastest, FrameworkFacts
from scalebench.records.summary import Row
from scalebench.report.tables import frameworks
from scalebench.stats import Estimate
from tests.builders.summaries import make_row

FACTS = FrameworkFacts(versions={"deepspeed": "0.19.8"}, untested=[], settings={})


def row(case: str, step: tuple[float, float, float], **changes: Any) -> Row:
    value, low, high = step
    fields = {
        "suite": "frameworks",
        "strategy": "deepspeed",
        "correctness": None,
        "peak_memory_bytes": 20_000_000,
        "framework": FACTS,
        **changes,
    }
    return make_row(case, step_s=Estimate(value=value, low=low, high=high, n=3), **fields)


def against(value: float, low: float | None, high: float | None) -> AgainstFastest:
    """Return how a row compares with ``fast``."""
    ratio = Estimate(value=value, low=low, high=high, n=3 if low else 1)
    return AgainstFastest(fastest=("frameworks", "fast", 2), step_ratio=ratio)


FAST = row("fast", (0.010, 0.009, 0.011))
NEAR = row("near", (0.0115, 0.0105, 0.0125), peak_memory_bytes=10_000_000)
SLOW = row("slow", (0.020, 0.019, 0.021))
PAIRED = [
    row("fast", (0.010, 0.009, 0.011), against_fastest=against(1, 1, 1)),
    row("near", (0.0102, 0.0092, 0.0112), against_fastest=against(1.02, 0.99, 1.05)),
    row("behind", (0.0108, 0.0098, 0.0118), against_fastest=against(1.08, 1.05, 1.11)),
    row("slow", (0.020, 0.019, 0.021), against_fastest=against(2.0, 1.9, 2.1)),
]
ONE_LAUNCH = row("one", (0.02, 0.019, 0.021), against_fastest=against(2.0, None, None))
SHORTEST = "Shortest step on 2 CPU ranks: fast, 10.0 ± 1.0 ms. Not significantly different: near; "


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [SLOW, NEAR, FAST],
            f"{SHORTEST}the other is slower. Least memory: near, 10.0 MB per rank.",
        ),
        ([SLOW, FAST], "All others are significantly slower."),
        (PAIRED, f"{SHORTEST}the other 2 are slower, by 8.0 to 100 %."),
        ([PAIRED[0], PAIRED[2]], "All others are significantly slower, by 8.0 %."),
        ([PAIRED[0], ONE_LAUNCH], "not known: some have no interval"),
    ],
)
def test_who_is_slower_is_decided_by_intervals_and_by_the_same_rounds_where_known(rows, told):
    assert told in (frameworks.sentence(rows) or "")


def test_memory_that_is_not_all_does_not_win():
    facts = FrameworkFacts(versions={"horovod": "0.28.1"}, uncounted_memory="its fusion buffer")
    horovod = row("horovod", (0.012, 0.011, 0.013), peak_memory_bytes=5_000_000, framework=facts)
    assert (frameworks.sentence([horovod, FAST]) or "").endswith(
        "Least memory: fast, 20.0 MB per rank. The memory of horovod leaves out its fusion buffer."
    )
    assert frameworks.memory(horovod) == "5.00 MB and more"


def test_wrong_results_and_smaller_sizes_are_not_compared():
    wrong = row("wrong", (0.001, 0.0009, 0.0011), correctness={"status": "deviates"})
    alone = row("alone", (0.001, 0.0009, 0.0011), world_size=1)
    found = frameworks.side_by_side([wrong, alone, FAST])
    assert found is not None and [one.case for one in found.rows] == ["fast"]


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
    assert "not tested" not in (frameworks.sentence([FAST, NEAR]) or "")
