"""A large pipeline's schedule: planned, run dry and drawn.

Target: 64 stages and 512 microbatches in under 2 s.
"""

import pytest

from benchmarks.verdict import against_limit
from scalebench.costmodel.pipelines.dry_run import dry_run, equal_times
from scalebench.costmodel.pipelines.orders import bubble_law, plan_schedule
from scalebench.costmodel.pipelines.schedule import check
from scalebench.report.tables.schedule_text import render_schedule

TARGET_S = 2.0
NUM_STAGES, NUM_MICROBATCHES = 64, 512


def draw(name: str, chunks: int) -> float:
    """Plan, check, run dry and draw; return the bubble."""
    schedule = plan_schedule(name, NUM_STAGES // chunks, NUM_MICROBATCHES, chunks)
    check(schedule)
    timeline = dry_run(schedule, equal_times(NUM_STAGES))
    assert len(render_schedule(timeline, 200, color=True, ascii_only=False)) > 200
    return timeline.bubble_ratio


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2)])
def test_a_schedule_of_64_stages(benchmark, name: str, chunks: int) -> None:
    """1F1B, and interleaved on half as many ranks."""
    bubble = benchmark.pedantic(draw, (name, chunks), rounds=3, warmup_rounds=1)
    law = bubble_law(name, NUM_STAGES // chunks, NUM_MICROBATCHES, chunks)
    assert bubble == pytest.approx(law)
    print(f"\n  median {against_limit(benchmark.stats.stats.median, TARGET_S)}")
