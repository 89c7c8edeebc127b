"""Predicted memory of pipelines, by hand: eight equal layers, a gradient of 100 B each."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.costmodel.pipelines.memory import predict_pipeline_memory
from scalebench.costmodel.pipelines.stage_split import Layers, balanced_split
from scalebench.records.measured.rank import Memory
from scalebench.spec import Pipeline, Plain

LAYERS, PARAMETERS, KEPT, OUTPUT = 8, 100, 1000, 10
BATCH, MICROBATCHES = 16, 4
EIGHT = Layers(
    costs=(1.0,) * LAYERS,
    output_bytes=(*(OUTPUT,) * (LAYERS - 1), 0),
    parameter_bytes=(PARAMETERS,) * LAYERS,
    kept_bytes=(KEPT,) * LAYERS,
)
DATA = 7


def alone(batch=BATCH, per_byte=1.0, strategy=None, peak=None):
    """The whole model on one rank: what it took, for each byte that its layers keep."""
    kept = per_byte * LAYERS * KEPT * MICROBATCHES * batch / BATCH
    memory = Memory(
        gradients_bytes=0,
        activations_bytes=round(kept),
        activations_peak_bytes=round(kept) if peak is None else peak,
        data_bytes=DATA,
    )
    return MeasuredBaseline(strategy or Plain(), batch, memory)


def predicted(strategy, num_ranks, layers=EIGHT, baseline=None, optimizer="AdamW"):
    return predict_pipeline_memory(
        strategy, layers, num_ranks, BATCH, optimizer, baseline or alone()
    )


def pipeline(schedule, **settings):
    return Pipeline(schedule=schedule, **{"microbatches": MICROBATCHES, **settings})


@pytest.mark.parametrize(
    ("strategy", "changes", "why"),
    [
        (pipeline("zbv", chunks=2), {}, "only torch knows the order of zbv"),
        (pipeline("gpipe"), {"layers": Layers(EIGHT.costs, EIGHT.output_bytes)}, "keep for their"),
        (pipeline("gpipe"), {"optimizer": "Adafactor"}, "Adafactor is not known"),
        (pipeline("gpipe", checkpointing=True), {}, "differs in checkpointing"),
    ],
)
def test_what_cannot_be_predicted_says_why(strategy, changes, why):
    with pytest.raises(ValueError, match=why):
        predicted(strategy, 2, **changes)


costs = st.lists(st.integers(0, 50), min_size=1, max_size=9)


def dearest(costs, sizes):
    left, found = list(costs), []
    for size in sizes:
        found.append(sum(left[:size]))
        del left[:size]
    return max(found)


@given(costs.flatmap(lambda c: st.tuples(st.just(c), st.integers(1, len(c)))))
def test_no_other_cut_has_a_cheaper_dearest_stage(given):
    layers, stages = given
    sizes = balanced_split(layers, stages)
    assert len(sizes) == stages and sum(sizes) == len(layers) and min(sizes) >= 1
    others = (
        [b - a for a, b in zip((0, *cuts), (*cuts, len(layers)), strict=True)]
        for cuts in combinations(range(1, len(layers)), stages - 1)
    )
    assert dearest(layers, sizes) == min(dearest(layers, other) for other in others)
