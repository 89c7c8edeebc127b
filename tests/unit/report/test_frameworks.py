"""Frameworks next to each other: the verdict, the table and the figure."""

from typing import Any

import pytest

from scalebench.records.rows.frameworks import FrameworkFacts
from scalebench.records.summary import Row
from scalebench.report.page.frameworks_figure import framework_figure
from scalebench.report.tables.frameworks import tables
from scalebench.report.words import frameworks
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


def test_memory_that_is_not_all_does_not_win():
    facts = FrameworkFacts(versions={"horovod": "0.28.1"}, uncounted_memory="its fusion buffer")
    horovod = row("horovod", (0.012, 0.011, 0.013), peak_memory_bytes=5_000_000, framework=facts)
    told = frameworks.sentence([horovod, FAST])
    assert told is not None and told.endswith(
        "Least memory: fast, 20.0 MB per rank. The memory of horovod leaves out its fusion buffer."
    )
    assert frameworks.memory(horovod) == "5.00 MB and more"
    assert frameworks.memory(FAST) == "20.0 MB"


def test_without_intervals_nothing_is_claimed():
    told = frameworks.sentence([row("one", (0.01, None, None)), SLOW])
    assert told is not None and "not known: some have no interval" in told


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


def test_torch_alone_is_compared_with_the_frameworks():
    ddp = row("ddp", (0.005, 0.0049, 0.0051), framework=None)
    assert (frameworks.sentence([ddp, FAST]) or "").startswith("Shortest step on 2 CPU ranks: ddp")


def test_the_table_names_version_and_settings():
    facts = FrameworkFacts(
        versions={"deepspeed": "9.0"},
        untested=["deepspeed"],
        settings={"reduce_bucket_size": 6553600, "overlap_comm": False},
    )
    (found,) = tables([row("new", (0.01, 0.009, 0.011), framework=facts)])
    assert found.lines[0][-2:] == (
        "deepspeed 9.0 (not tested)",
        "reduce_bucket_size 6,553,600, overlap_comm off",
    )


def test_the_figure_has_both_in_the_order_of_step_time():
    class Look:
        color = "#000000"

    looks: Any = {("frameworks", name): Look() for name in ("fast", "near", "slow")}
    figure = framework_figure([SLOW, NEAR, FAST], looks)
    assert figure is not None
    steps, memory = figure.data
    assert list(steps.y) == list(memory.y) == ["fast", "near", "slow"]
    assert list(steps.x) == pytest.approx([10, 11.5, 20])
    assert list(steps.error_x.array) == pytest.approx([1, 1, 1])
    assert list(memory.x) == pytest.approx([20, 10, 20])
    (band,) = figure.layout.shapes
    assert (band.x0, band.x1, band.xref) == (pytest.approx(9), pytest.approx(11), "x")


def test_without_an_interval_nothing_is_shaded():
    class Look:
        color = "#000000"

    looks: Any = {("frameworks", "one"): Look()}
    figure = framework_figure([row("one", (0.01, None, None))], looks)
    assert figure is not None and not figure.layout.shapes
