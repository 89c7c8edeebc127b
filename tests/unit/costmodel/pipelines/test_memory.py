"""Predicted memory of pipelines, by hand: eight equal layers, a gradient of 100 B each."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.costmodel.pipelines.memory import predict_pipeline_memory
from scalebench.costmodel.pipelines.stage_split import (
    Layers,
    TiedParameter,
    balanced_split,
    even_split,
    layers_of_stages,
    unbalanced_split,
)
from scalebench.records.rank import Memory
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


def test_gpipe_keeps_all_microbatches_before_the_first_gradient():
    found = predicted(pipeline("gpipe"), 2)
    assert found.activations_bytes == MICROBATCHES * 4 * KEPT
    assert found.gradients_bytes == 0
    assert found.parameters_bytes == 4 * PARAMETERS
    assert found.optimizer_bytes == 2 * 4 * PARAMETERS
    assert found.communication_bytes == MICROBATCHES * OUTPUT
    assert found.data_bytes == DATA


def test_1f1b_keeps_as_many_microbatches_as_ranks_beside_the_gradients():
    four = predicted(pipeline("1f1b"), 4)
    assert four.activations_bytes == 4 * 2 * KEPT  # the first rank's
    assert four.gradients_bytes == 0  # with as many microbatches as ranks, all forwards come first
    more = predicted(pipeline("1f1b", microbatches=8), 4, baseline=alone(per_byte=2))
    assert more.activations_bytes == 4 * 2 * KEPT
    assert more.gradients_bytes == 2 * PARAMETERS


def test_what_layers_of_a_rank_share_is_there_once():
    ends = TiedParameter((0, LAYERS - 1), 60)
    tied = Layers(EIGHT.costs, EIGHT.output_bytes, (ends,), EIGHT.parameter_bytes, EIGHT.kept_bytes)
    assert predicted(pipeline("gpipe"), 1, tied).parameters_bytes == LAYERS * PARAMETERS - 60
    assert predicted(pipeline("gpipe"), 2, tied).parameters_bytes == 4 * PARAMETERS


def test_what_operators_need_besides_comes_from_the_measured_baseline():
    found = predicted(pipeline("gpipe"), 2, baseline=alone(per_byte=1.25))
    assert found.activations_bytes == 1.25 * MICROBATCHES * 4 * KEPT
    half = predicted(pipeline("gpipe"), 2, baseline=alone(batch=BATCH // 2, per_byte=1.25))
    assert half == found


def test_a_pipeline_on_one_rank_is_a_baseline_too():
    """1F1B alone has one microbatch under way: a fourth of what the plain model has."""
    settings = {"checkpointing": True}
    one = alone(strategy=pipeline("1f1b", **settings), peak=2 * LAYERS * KEPT)
    found = predicted(pipeline("1f1b", **settings), 2, baseline=one)
    assert found.activations_bytes == 2 * 2 * 4 * KEPT

    half = alone(strategy=pipeline("1f1b", **settings), batch=BATCH // 2, peak=LAYERS * KEPT)
    assert predicted(pipeline("1f1b", **settings), 2, baseline=half) == found


def test_the_last_stage_keeps_the_output_and_its_loss():
    logits = 500
    ends = replace(EIGHT, output_bytes=(*(OUTPUT,) * (LAYERS - 1), logits))
    whole = LAYERS * KEPT + 2 * logits
    measured = alone(peak=MICROBATCHES * whole)
    found = predicted(pipeline("gpipe"), 2, ends, measured)
    assert found.activations_bytes == MICROBATCHES * (4 * KEPT + 2 * logits)


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


def dearest(costs: list[int], sizes: list[int]) -> float:
    left, found = list(costs), []
    for size in sizes:
        found.append(sum(left[:size]))
        del left[:size]
    return max(found)


@given(costs.flatmap(lambda c: st.tuples(st.just(c), st.integers(1, len(c)))))
def test_no_other_cut_has_a_cheaper_dearest_stage(given: tuple[list[int], int]) -> None:
    layers, stages = given
    sizes = balanced_split(layers, stages)
    assert len(sizes) == stages and sum(sizes) == len(layers) and min(sizes) >= 1
    others = (
        [b - a for a, b in zip((0, *cuts), (*cuts, len(layers)), strict=True)]
        for cuts in combinations(range(1, len(layers)), stages - 1)
    )
    assert dearest(layers, sizes) == min(dearest(layers, other) for other in others)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_every_split_has_all_layers_and_no_empty_stage(given: tuple[int, int]) -> None:
    layers, stages = given
    even, uneven = even_split(layers, stages), unbalanced_split(layers, stages)
    for sizes in (even, uneven):
        assert sum(sizes) == layers and len(sizes) == stages and min(sizes) >= 1
    assert max(even) - min(even) <= 1
    assert uneven[0] == layers - stages + 1


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("balanced", [(0, 1), (1, 5)]),
        ("measured", [(0, 1), (1, 5)]),
        ("even", [(0, 3), (3, 5)]),
        ("unbalanced", [(0, 4), (4, 5)]),
    ],
)
def test_stages_are_from_the_first_layer_to_before_the_last(how, expected) -> None:
    assert layers_of_stages(how, (4.0, 1.0, 1.0, 1.0, 1.0), 2) == expected


def test_there_may_be_as_many_stages_as_layers_and_no_more() -> None:
    assert layers_of_stages("balanced", (1.0, 2.0), 2) == [(0, 1), (1, 2)]
    with pytest.raises(ValueError, match="3 stages need as many layers, and there are 2"):
        layers_of_stages("balanced", (1.0, 2.0), 3)
