"""Every rule of advice: when it speaks, with which number, and that noise silences it."""

from pathlib import Path

import pytest

from scalebench.records.rows.budget import ComputeInflation
from scalebench.records.rows.communication import Straggler
from scalebench.records.rows.script import ScriptFacts, Wrapper
from scalebench.records.summary import Correctness, Row
from scalebench.report.findings import advice
from scalebench.report.findings.advice_rules import FIRST, LAST, RULES
from scalebench.stats import Estimate
from tests.builders.summaries import (
    attributed,
    make_compression,
    make_pipeline,
    make_prediction,
    make_row,
)


def advise(row, of_suite=()):
    """The advice as page and Markdown have it."""
    told = advice.advise(row, of_suite)
    return told and told.whole


SURE = {"efficiency": 0.85, "spread": 0.02}


def row_with(losses=None, doubtful=(), **changes) -> Row:
    """A DDP row on 2 ranks whose budget certainly loses what ``losses`` says."""
    fields = {**SURE, **{k: changes.pop(k) for k in ("efficiency", "spread") if k in changes}}
    row = make_row(**fields)
    return attributed(row, losses=losses or {}, doubtful=doubtful, **{"stragglers": [], **changes})


def predicted(efficiency=0.84, error=0.012, **what_ifs) -> dict:
    """A prediction with changes, as the summary has it: name → (value, efficiency)."""
    same = {"bucket_mb": None, "gradient_bits": None, "times_bandwidth": 1.0}
    told = [
        {**same, name: value, "efficiency": better, "gain": 1 - efficiency / better,
         "change": name, "step_s": 0.02}
        for name, (value, better) in what_ifs.items()
    ]  # fmt: skip
    return {
        "prediction_error": error,
        "prediction": make_prediction(efficiency=efficiency, what_if=told, typical_error=0.01),
    }


def slower_by(field: str) -> Row:
    """A row whose computation is slower by 15 points, 12 of them certainly by one part."""
    row = row_with({"compute_inflation": 15.0})
    assert row.budget is not None
    parts = dict.fromkeys(("smaller_batch_s", "contention_s", "own_operators_s"), (1.0, 2.0))
    in_points = {**parts, field: (12.0, 1.0)}
    found = {
        name: Estimate(value=middle, low=middle - width, high=middle + width, n=3).scaled(
            row.budget.measured_s / 100
        )
        for name, (middle, width) in in_points.items()
    }
    split = row.budget.model_copy(update={"inflation": ComputeInflation(**found)})
    return row.model_copy(update={"budget": split})


DEVIATES = Correctness(status="deviates", gradient_deviation=0.02, tolerance=1e-4)
TRANSFER = {"exposed_transfer": 15.0}
LATE = [Straggler(rank=3, count=97, share=0.97, median_late_s=0.009, longest_run=40)]

COPYING = Wrapper(
    kind="DistributedDataParallel",
    gradient_as_bucket_view=False,
    find_unused_parameters=True,
    unused_bytes=0,
)


def of_script(losses, facts=None, **changes) -> Row:
    """The row of a user's script under DDP."""
    found = ScriptFacts(**facts or {})
    return row_with(losses, wrappers=[COPYING], script=found, **changes)


SPEAKS = {
    "wrong result": (row_with(correctness=DEVIATES), "deviates by 2.0e-02 where 1e-04"),
    "oversubscribed": (row_with(oversubscribed=True), "Measure on 2 cores"),
    "too short": (
        row_with(spread=None, budget=None, stamps=["ended early: after 700 steps"]),
        "at N=2 it ended before steps were traced",
    ),
    "one launch": (row_with(spread=None), "1 launch gives no interval"),
    "interval too wide": (row_with(efficiency=0.8, spread=0.6), "--repeats 6: 32–128 %"),
    "nothing to gain": (row_with(efficiency=0.99, spread=0.01), "at most 2.0 %"),
    "budget open": (row_with({"wait": -40.0}), "the parts leave 55 % of the step unexplained"),
    "other buckets": (
        row_with(TRANSFER, **predicted(bucket_mb=(1.0, 0.91))),
        "Try buckets of 1 MiB: the cost model predicts 91 % instead of 84 %"
        " (the model is off by up to 1.2 % here)",
    ),
    "fewer bits": (
        row_with(TRANSFER, **predicted(bucket_mb=(1.0, 0.842), gradient_bits=(16, 0.9))),
        "gradients of 16 bits: conversion not counted, the cost model predicts 90 %",
    ),
    "faster link": (
        row_with(TRANSFER, **predicted(times_bandwidth=(4.0, 0.95))),
        "with 4 times the bandwidth the cost model predicts 95 %",
    ),
    "send less often": (row_with(TRANSFER), "than 16, or gradient accumulation, divide the 15.0"),
    "late rank": (
        row_with({"wait": 15.0}, stragglers=LATE, **{"spread": 0.02}),
        "Look at rank 3: it is last to enter 97 % of operations, 9 ms late",
    ),
    "uneven ranks": (row_with({"wait": 15.0}), "waiting takes 15.0 % of the step"),
    "small share": (
        row_with({"compute_inflation": 15.0}),
        "more than 16 samples (a larger --batch-size, or --scaling weak): its share takes 15.0",
    ),
    "contention": (
        slower_by("contention_s"),
        "what the ranks share (memory bandwidth, cores): contention 12.0 % of the step",
    ),
    "own operators": (
        slower_by("own_operators_s"),
        "(hooks and its wrapper): extra operators 12.0 % of the step",
    ),
    "more microbatches": (
        row_with({"bubble": 15.0}, pipeline=make_pipeline()),
        "16 microbatches instead of 8: by the schedule's law the bubble shrinks from 27.3 % to"
        " 15.8 %",
    ),
    "other schedule": (row_with({"bubble": 15.0}), "the bubble takes 15.0 %"),
    "cheaper codec": (row_with({"codec": 15.0}), "encoding takes 15.0 %"),
    "copy during computation": (
        row_with({"copies": 15.0}),
        "copies during which nothing else runs take 15.0 %",
    ),
    "more workers": (row_with({"data_stall": 15.0}), "waiting for data takes 15.0 %"),
    "bucket views": (
        of_script({"compute_inflation": 15.0}),
        "copies the gradients of 3.26M parameters into its buckets",
    ),
    "longer steps": (row_with({"other_idle": 15.0}), "idle takes 15.0 %"),
    "more launches": (
        row_with({"wait": 15.0}, vague=["wait"]),
        "--repeats 6 before acting on it: 3 launches are too few to say what takes the time",
    ),
}
"""Rule → a row for which it speaks, and what it says."""


@pytest.mark.parametrize("name", SPEAKS)
def test_the_rule_speaks(name):
    row, expected = SPEAKS[name]
    said = advise(row)
    assert said is not None
    assert expected.replace("9 ms", "9.00 ms") in said or expected in said
    brief = advice.advise(row).next_step
    assert len(brief) <= 75 and not brief.endswith("."), "it fits its line"


def test_a_faster_neighbour_is_named_with_its_number():
    own = row_with(TRANSFER)
    better = make_row("ddp-1mb", efficiency=0.95, spread=0.02)
    said = advise(own, [own, better])
    assert said == (
        "Use the settings of ddp-1mb, which was measured at 95.0 ± 1.9 % on the same ranks."
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"efficiency": 0.87, "spread": 0.02},
        {"efficiency": 0.95, "spread": None},
        {"strategy": "fsdp"},
        {"world_size": 4},
        {"workload": "cnn"},
        {"correctness": DEVIATES},
        {"oversubscribed": True},
        {"compression": make_compression("noop")},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_no_neighbour_is_named_that_is_not_better_for_certain_on_the_same_terms(changes):
    own = row_with(TRANSFER)
    fields = {"efficiency": 0.95, "spread": 0.02, **changes}
    assert "Use the settings" not in (advise(own, [own, make_row("other", **fields)]) or "")


def test_a_gain_within_the_models_own_error_is_no_advice():
    row = row_with(TRANSFER, **predicted(error=0.09, bucket_mb=(1.0, 0.91)))
    assert "buckets" not in (advise(row) or "")
    unscored = {**predicted(bucket_mb=(1.0, 0.91)), "prediction_error": None}
    assert "buckets" not in (advise(row_with(TRANSFER, **unscored)) or "")


def test_the_largest_certain_loss_decides():
    row = row_with({"wait": 10.0, "data_stall": 5.0})
    assert "waiting takes 10.0" in (advise(row) or "")
    likely = row_with({"wait": 10.0, "data_stall": 5.0}, doubtful=["wait"])
    said = advise(likely)
    assert said.startswith("Probably, not certain: Close other") and "waiting takes 10.0" in said
    vague = row_with({"wait": 10.0, "data_stall": 5.0}, vague=["wait"])
    assert "launches are too few" in advise(vague)
    smaller = row_with({"wait": 4.0, "data_stall": 11.0}, vague=["wait"])
    assert "waiting for data takes 11.0" in advise(smaller)


@pytest.mark.parametrize(
    ("strategy", "settings", "words"),
    [
        ("ddp", {}, ("accumulation",)),
        ("ddp", {"accumulate": 4}, ("accumulation", "microbatches")),
        ("fsdp", {}, ()),
        ("tensor", {}, ()),
        ("context", {}, ()),
    ],
)
def test_no_rule_speaks_of_what_a_strategy_does_not_have(strategy, settings, words):
    """Who cuts layers sends activations: more of them with a larger batch."""
    fields = {"strategy": strategy, "strategy_settings": settings}
    sent = advise(row_with(TRANSFER, **fields))
    added = advise(slower_by("own_operators_s").model_copy(update=fields))
    for word in ("accumulation", "microbatches"):
        assert (word in sent + added) == (word in words)
    assert ("samples per rank" in sent) == (strategy in ("ddp", "fsdp"))
    assert ("hooks" in added) == (strategy == "ddp")


def test_every_rule_is_documented():

    text = (Path(__file__).parents[4] / "docs" / "report.md").read_text(encoding="utf-8")
    named = [n.strip() for line in text.splitlines() if line.startswith("| ")
             for n in line.split("|")[1].split(",")]  # fmt: skip
    assert {rule.name for rule in (*FIRST, *RULES, *LAST)} <= set(named)
