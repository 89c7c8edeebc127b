"""Expert parallel training over real ranks: the result of one process, the messages of the law."""

import pytest

from scalebench.costmodel.layers.expert_layers import ExpertModel
from scalebench.records.rows.strategies import ExpertFigures
from tests.examples import cases
from tests.integration.parallel import expert_ranks as of
from tests.integration.programs import reports_of

SIZES = (1, 2, 4)
TOP_2 = of.TOP_2
every_case = cases("world_size, case", *[(n, c) for n in SIZES for c in of.cases(n)])


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expert")
    found = reports_of("parallel.expert_ranks", folder, SIZES, shards=True)
    return {0: {size: found[size].pop() for size in SIZES}, **found}


@every_case
def test_gradients_losses_and_memory_are_those_of_one_process(reports, world_size, case):
    found = [report[case]["verification"] for report in reports[world_size]]
    assert {one["status"] for one in found} == {"verified"}
    allowed = 0.05 if case == "bf16" else 5e-6
    assert found[0]["gradient_deviation"] < allowed
    assert found[0]["loss_deviation"] < allowed
    # The peaks of a model so small differ with the tokens that come; so does the shard alone.
    peaks = [report[case]["peak_bytes"] for report in reports[world_size]]
    assert 0.95 * min(peaks) <= reports[0][world_size][case] <= 1.05 * max(peaks)


@every_case
def test_tokens_are_routed_as_in_one_process_and_none_is_lost_on_its_way(reports, world_size, case):
    """What the ranks of a group send is what their experts get."""
    loads = [report[case]["facts"]["expert_load"] for report in reports[world_size]]
    for report, load in zip(reports[world_size], loads, strict=True):
        for of_tokens in ("kept", "chosen"):
            alone = [layer[of_tokens] for layer in report[case]["alone"]]
            assert load[of_tokens][0] == alone
    size = loads[0]["ranks"]
    for first in range(0, world_size, size):
        group = loads[first : first + size]
        for step in range(len(group[0]["steps"])):
            for layer in range(len(group[0]["kept"][step])):
                sent = [load["kept"][step][layer] for load in group]
                got = [number for load in group for number in load["here"][step][layer]]
                assert got == [sum(of_expert) for of_expert in zip(*sent, strict=True)]


@every_case
def test_every_all_to_all_is_that_of_the_recorded_tokens_to_the_byte(reports, world_size, case):
    for report in reports[world_size]:
        load = report[case]["facts"]["expert_load"]
        found = [op[1] for op in report[case]["operations"] if op[0] == "all_to_all"]
        if load["ranks"] == 1:
            assert found == []
            continue
        counts, forward, backward = 8 * len(load["kept"][-1][0]), [], []
        for kept, here in zip(load["kept"][-1], load["here"][-1], strict=True):
            there_and_back = [sum(kept) * load["row_bytes"], sum(here) * load["row_bytes"]]
            again = [counts, *there_and_back] if case == "checkpointing" else []
            forward += [counts, *there_and_back]
            backward = [*again, *there_and_back, *backward]
        assert found == [*forward, *backward]


@every_case
def test_the_law_is_that_of_tokens_that_spread_evenly(reports, world_size, case):
    """All ranks together send what the law says where no token is dropped, else less."""
    for axis in ("expert", "data", "replicas"):
        found, predicted = (
            sum(op[1] for report in reports[world_size] for op in report[case][of] if op[2] == axis)
            for of in ("operations", "predicted")
        )
        if axis == "expert" and case in ("top-2", "top-1", "groups", "mesh", "checkpointing"):
            assert 0 < found < predicted or world_size == 1
        else:
            assert found == predicted


def test_a_layer_costs_four_all_to_alls_of_its_tokens(reports):
    predicted = [op for op in reports[4][0]["dropless"]["predicted"] if op[0] == "all_to_all"]
    tokens = of.SAMPLES // 4 * TOP_2.context
    large = [op for op in predicted if op[1] == 4 * TOP_2.width * TOP_2.top_k * tokens]
    assert len(large) == 4 * TOP_2.layers
    assert {op[1] for op in predicted if op not in large} == {8 * TOP_2.experts}


def test_the_model_of_a_preset_is_what_a_step_shows(reports):
    for world_size, case in ((1, "top-2"), (2, "top-2"), (4, "groups")):
        facts = reports[world_size][0][case]["facts"]
        assert ExpertModel.of(facts) == ExpertModel.of_preset(TOP_2, of.SAMPLES // world_size)


def test_operations_are_attributed_to_the_axis_whose_group_carried_them(reports):
    axes = {one["axis"]: one for one in reports[4][0]["groups"]["axes"]}
    ranks = {name: one["num_ranks"] for name, one in axes.items()}
    assert ranks == {"data": 4, "expert": 2, "replicas": 2}
    assert axes["replicas"]["count"] == 1
    assert axes["expert"]["count"] == 5 * TOP_2.layers
    for name in ("data", "replicas"):
        assert axes[name]["wire_bytes"] == axes[name]["predicted_wire_bytes"] > 0
    assert {one["axis"] for one in reports[4][0]["top-2"]["axes"]} == {"data", "expert"}
    for case in ("top-2", "groups"):  # uneven ones are matched over the ranks: waits can be told
        assert {str(report[case]["unmatched"]) for report in reports[4]} == {"[None, 0]"}


def experts_of(rank):
    return range(rank.first_expert, rank.first_expert + rank.num_experts)


def test_a_slow_expert_is_found_by_its_time_and_a_busy_one_by_its_tokens(reports):
    slow, times = ExpertFigures(**reports[2][0]["one slow"]["experts"]).slow_rank
    assert times > 10
    assert of.SLOW_EXPERT in experts_of(slow) and slow.experts_s >= of.SLOW_S
    figures = ExpertFigures(**reports[2][0]["one busy"]["experts"])
    assert (figures.busiest.layer, figures.busiest.expert) == (0, of.BUSY_EXPERT)
    assert figures.imbalance == pytest.approx(figures.busiest.times_mean)
    assert figures.imbalance >= 3 and figures.rank_imbalance > 1.7
    assert of.BUSY_EXPERT in experts_of(max(figures.ranks, key=lambda rank: rank.tokens))


def test_the_rows_figures_are_those_of_the_recorded_tokens(reports):
    for case in ("top-2", "dropless"):
        figures = ExpertFigures(**reports[4][0][case]["experts"])
        loads = [report[case]["facts"]["expert_load"] for report in reports[4]]
        chosen, kept = (
            sum(sum(map(sum, step)) for load in loads for step in load[name])
            for name in ("chosen", "kept")
        )
        assert figures.dropped_share == pytest.approx(1 - kept / chosen)
        assert (figures.dropped_share > 0) == (case == "top-2")
        steps = len(loads[0]["steps"])
        assert sum(map(sum, figures.tokens)) == pytest.approx(kept / steps)
        assert sum(rank.tokens for rank in figures.ranks) == pytest.approx(kept / steps)
        assert [rank.first_expert for rank in figures.ranks] == [0, 1, 2, 3]
        assert 0 < figures.all_to_all_share < 1


def test_a_workload_that_names_no_experts_is_refused(reports):
    assert "names its experts" in reports[2][0]["no experts"]
