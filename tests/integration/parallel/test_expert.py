"""Expert parallel training over real ranks: the result of one process, the messages of the law."""

import pytest

from scalebench.costmodel.layers.expert_layers import ExpertModel
from scalebench.records.rows.strategies import ExpertFigures
from tests.integration.parallel.expert_ranks import (
    BUSY_EXPERT,
    SAMPLES,
    SLOW_EXPERT,
    SLOW_S,
    TOP_2,
    cases,
)
from tests.integration.programs import reports_of

SIZES = (1, 2, 4)
every_case = pytest.mark.parametrize(
    ("world_size", "case"), [(n, c) for n in SIZES for c in cases(n)]
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    found = reports_of(
        "parallel.expert_ranks", tmp_path_factory.mktemp("expert"), SIZES, shards=True
    )
    shards = {size: found[size].pop() for size in SIZES}
    return {0: [shards], **found}


@every_case
def test_gradients_and_losses_are_those_of_one_process(reports, world_size, case):
    found = [report[case]["verification"] for report in reports[world_size]]
    assert {one["status"] for one in found} == {"verified"}
    allowed = 0.05 if case == "bf16" else 5e-6
    assert found[0]["gradient_deviation"] < allowed
    assert found[0]["loss_deviation"] < allowed


@every_case
def test_tokens_are_routed_and_dropped_as_in_one_process(reports, world_size, case):
    for report in reports[world_size]:
        load = report[case]["facts"]["expert_load"]
        alone = report[case]["alone"]
        assert load["kept"][0] == [layer["kept"] for layer in alone]
        assert load["chosen"][0] == [layer["chosen"] for layer in alone]


@every_case
def test_no_token_is_lost_on_its_way(reports, world_size, case):
    size = reports[world_size][0][case]["facts"]["expert_load"]["ranks"]
    for first in range(0, world_size, size):
        loads = [r[case]["facts"]["expert_load"] for r in reports[world_size][first:][:size]]
        for step in range(len(loads[0]["steps"])):
            for layer in range(len(loads[0]["kept"][step])):
                sent = [load["kept"][step][layer] for load in loads]
                got = [number for load in loads for number in load["here"][step][layer]]
                assert got == [sum(of_expert) for of_expert in zip(*sent, strict=True)]


@every_case
def test_every_all_to_all_is_that_of_the_recorded_tokens_to_the_byte(reports, world_size, case):
    for report in reports[world_size]:
        load = report[case]["facts"]["expert_load"]
        found = [op[1] for op in report[case]["operations"] if op[0] == "all_to_all"]
        if load["ranks"] == 1:
            assert found == []
            continue
        row, layers = load["row_bytes"], range(len(load["kept"][-1]))
        sent = [sum(load["kept"][-1][layer]) * row for layer in layers]
        got = [sum(load["here"][-1][layer]) * row for layer in layers]
        counts = 8 * len(load["kept"][-1][0])
        forward = [size for layer in layers for size in (counts, sent[layer], got[layer])]
        backward = [size for layer in reversed(layers) for size in (sent[layer], got[layer])]
        if case == "checkpointing":
            backward = [
                size
                for layer in reversed(layers)
                for size in (counts, sent[layer], got[layer], sent[layer], got[layer])
            ]
        assert found == [*forward, *backward]


@every_case
def test_the_law_is_that_of_tokens_that_spread_evenly(reports, world_size, case):
    """All ranks together send what the law says where no token is dropped, else less."""
    for axis in ("expert", "data", "replicas"):
        of_ranks = [
            (
                sum(op[1] for op in report[case]["operations"] if op[2] == axis),
                sum(op[1] for op in report[case]["predicted"] if op[2] == axis),
            )
            for report in reports[world_size]
        ]
        found, predicted = (sum(numbers) for numbers in zip(*of_ranks, strict=True))
        if axis == "expert" and case in ("top-2", "top-1", "groups", "mesh", "checkpointing"):
            assert 0 < found < predicted or world_size == 1
        else:
            assert found == predicted


def test_a_layer_costs_four_all_to_alls_of_its_tokens(reports):
    predicted = [op for op in reports[4][0]["dropless"]["predicted"] if op[0] == "all_to_all"]
    tokens = SAMPLES // 4 * TOP_2.context
    large = [op for op in predicted if op[1] == 4 * TOP_2.width * TOP_2.top_k * tokens]
    assert len(large) == 4 * TOP_2.layers
    assert {op[1] for op in predicted if op not in large} == {8 * TOP_2.experts}


def test_the_model_of_a_preset_is_what_a_step_shows(reports):
    for world_size, case in ((1, "top-2"), (2, "top-2"), (4, "groups")):
        samples = SAMPLES // world_size
        facts = reports[world_size][0][case]["facts"]
        assert ExpertModel.of(facts) == ExpertModel.of_preset(TOP_2, samples)


def test_operations_are_attributed_to_the_axis_whose_group_carried_them(reports):
    axes = {one["axis"]: one for one in reports[4][0]["groups"]["axes"]}
    assert {name: one["num_ranks"] for name, one in axes.items()} == {
        "data": 4,
        "expert": 2,
        "replicas": 2,
    }
    assert axes["replicas"]["count"] == 1
    assert axes["expert"]["count"] == 5 * TOP_2.layers
    for name in ("data", "replicas"):
        assert axes[name]["wire_bytes"] == axes[name]["predicted_wire_bytes"] > 0
    in_one_group = {one["axis"] for one in reports[4][0]["top-2"]["axes"]}
    assert in_one_group == {"data", "expert"}


def test_uneven_all_to_alls_are_matched_over_the_ranks_so_waits_can_be_told(reports):
    for case in ("top-2", "groups"):
        assert {str(report[case]["unmatched"]) for report in reports[4]} == {"[None, 0]"}


def test_a_slow_expert_is_found_by_its_time_for_a_token(reports):
    figures = ExpertFigures(**reports[2][0]["one slow"]["experts"])
    slow, times = figures.slow_rank
    assert times > 10
    assert SLOW_EXPERT in range(slow.first_expert, slow.first_expert + slow.num_experts)
    assert slow.experts_s is not None and slow.experts_s >= SLOW_S


def test_a_busy_expert_is_found_by_its_tokens(reports):
    figures = ExpertFigures(**reports[2][0]["one busy"]["experts"])
    assert (figures.busiest.layer, figures.busiest.expert) == (0, BUSY_EXPERT)
    assert figures.imbalance == pytest.approx(figures.busiest.times_mean)
    assert figures.imbalance >= 3
    assert figures.rank_imbalance > 1.7
    busiest = max(figures.ranks, key=lambda rank: rank.tokens)
    assert BUSY_EXPERT in range(busiest.first_expert, busiest.first_expert + busiest.num_experts)


def test_the_rows_figures_are_those_of_the_recorded_tokens(reports):
    for case in ("top-2", "dropless"):
        figures = ExpertFigures(**reports[4][0][case]["experts"])
        loads = [report[case]["facts"]["expert_load"] for report in reports[4]]
        chosen = sum(sum(map(sum, step)) for load in loads for step in load["chosen"])
        kept = sum(sum(map(sum, step)) for load in loads for step in load["kept"])
        assert figures.dropped_share == pytest.approx(1 - kept / chosen)
        assert (figures.dropped_share > 0) == (case == "top-2")
        steps = len(loads[0]["steps"])
        assert sum(map(sum, figures.tokens)) == pytest.approx(kept / steps)
        assert sum(rank.tokens for rank in figures.ranks) == pytest.approx(kept / steps)
        assert [rank.first_expert for rank in figures.ranks] == [0, 1, 2, 3]
        assert figures.all_to_all_share is not None and 0 < figures.all_to_all_share < 1


@every_case
def test_a_shard_alone_has_the_memory_of_the_ranks(reports, world_size, case):
    """Those of a model so small differ with the tokens that come; so does the shard."""
    peaks = [report[case]["peak_bytes"] for report in reports[world_size]]
    shard = reports[0][0][world_size][case]
    assert 0.95 * min(peaks) <= shard <= 1.05 * max(peaks)


def test_a_workload_that_names_no_experts_is_refused(reports):
    assert "names its experts" in reports[2][0]["no experts"]
