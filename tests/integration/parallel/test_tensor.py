"""Ranks that divide layers or tokens: the result of one process, the messages of the law."""

import json

import pytest

from scalebench.costmodel.layers.context_layers import AttendingModel
from scalebench.costmodel.layers.tensor_layers import DividedModel, model_of_preset
from tests.examples import cases
from tests.integration.conftest import row_of
from tests.integration.parallel.tensor_ranks import EVEN, GPT, IN_LINE, ODD, SAMPLES
from tests.integration.parallel.tensor_ranks import cases as of_size
from tests.integration.programs import reports_of

WITHOUT_LAW = ("checkpointing", "bf16")

SIZES = (1, 2, 4, 8)
every_case = cases("world_size, case", *[(n, c) for n in SIZES for c in of_size(n)])


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of(
        "parallel.tensor_ranks", tmp_path_factory.mktemp("tensor"), SIZES, shards=True
    )


@every_case
def test_gradients_losses_and_memory_are_those_of_one_process(reports, world_size, case):
    *ranks, shards = reports[world_size]
    found = [report[case]["verification"] for report in ranks]
    assert {one["status"] for one in found} == {"verified"}
    allowed = 0.05 if "bf16" in case else 5e-6
    assert found[0]["gradient_deviation"] < allowed
    assert found[0]["loss_deviation"] < allowed
    assert (case in shards) == (case not in IN_LINE)
    if case in shards:  # alone it has the memory of every rank
        peak = max(report[case]["peak_bytes"] for report in ranks)
        assert shards[case] == pytest.approx(peak, rel=0.05)


def untimed(facts):
    """Facts without what turns of a ring took."""
    kept = {key: value for key, value in facts.get("context", {}).items() if key != "turns_s"}
    return facts | ({"context": kept} if kept else {})


@every_case
def test_every_message_is_that_of_the_law_to_the_byte(reports, world_size, case):
    for report in reports[world_size][:-1]:
        found = report[case]
        if case in WITHOUT_LAW:
            assert found["predicted"] == []
        else:
            assert found["operations"] == found["predicted"]
            assert (found["operations"] != []) == (world_size > 1)
        shown, facts = (untimed(found[of]) for of in ("inspected_facts", "facts"))
        assert shown == facts != {}  # an inspection shows what training sends


def test_dividing_more_takes_less_memory(reports):
    two, case = reports[2][-1], "gpt, sequence and loss"
    assert reports[4][-1][case] < two[case] < two["gpt"] < reports[1][-1]["gpt"]


def test_a_block_costs_four_all_reduces_of_its_activations(reports):
    activations = 4 * SAMPLES * GPT.context * GPT.width
    kinds = [op[0] for op in reports[2][0]["gpt"]["operations"] if op[1] == activations]
    assert kinds == ["all_reduce"] * (4 * GPT.layers + 2)  # and the embedding, and the output
    divided = [op[0] for op in reports[2][0]["gpt, sequence"]["operations"] if op[1] == activations]
    assert divided.count("reduce_scatter") == divided.count("all_gather") == 4 * GPT.layers + 2


def test_operations_are_attributed_to_the_axis_whose_group_carried_them(reports):
    axes = {one["axis"]: one for one in reports[4][0]["gpt, groups"]["axes"]}
    assert axes.keys() == {"tensor", "data"}
    assert axes["tensor"]["num_ranks"] == axes["data"]["num_ranks"] == 2
    assert axes["data"]["count"] == 1
    for one in axes.values():
        assert one["wire_bytes"] == one["predicted_wire_bytes"] > 0
        assert 0 <= one["exposed_s"] <= one["total_s"]
    in_one_group = reports[4][0]["gpt, sequence and loss"]["axes"]
    assert [(one["axis"], one["num_ranks"]) for one in in_one_group] == [("tensor", 4)]


def test_waits_are_told_from_transfer(reports):
    for report in reports[4][:-1]:
        assert report["gpt, groups"]["not_apart"] is None, report["gpt, groups"]["not_apart"]
        assert all(one["wait_s"] >= 0 for one in report["gpt, groups"]["axes"])


@cases("case, shape", ("gpt", GPT), ("mlp", EVEN), ("mlp, odd", ODD))
def test_the_model_of_a_preset_is_what_a_step_shows(reports, case, shape):
    assert model_of_preset(shape, SAMPLES) == DividedModel.of(reports[1][0][case]["facts"])


TIED = {"pipeline": 2, "pipeline_tied": 2}
MESHES = {
    "pipeline × shard × tensor": {**TIED, "shard": 2, "tensor": 2},
    "data × shard × tensor": {"data": 2, "shard": 2, "tensor": 2},
    "shard × context × tensor, other order": {"shard": 2, "context": 2, "tensor": 2},
    "pipeline × data × context": {**TIED, "data_context": 4, "context": 2},
}


@cases("case", "pipeline × shard × tensor", "data × shard × tensor")
def test_exposed_communication_is_divided_among_the_dimensions_and_none_is_lost(reports, case):
    for report in reports[8][:-1]:
        told = report[case]["exposed"]
        assert told.keys() <= MESHES[case].keys()
        sums = [sum(part) for part in zip(*told.values(), strict=True)]
        assert sums == pytest.approx(report[case]["whole"], rel=1e-9, abs=1e-12)


@cases("case", *MESHES)
def test_a_mesh_of_eight_tells_its_dimensions_apart(reports, case):
    first_and_last_rank = reports[8][0], reports[8][-2]  # a stage in the middle shares nothing
    for report in first_and_last_rank:
        axes = {one["axis"]: one for one in report[case]["axes"]}
        assert {name: one["num_ranks"] for name, one in axes.items()} == MESHES[case]
        for one in axes.values():
            assert one["wire_bytes"] == one["predicted_wire_bytes"] > 0


def test_the_order_of_the_dimensions_says_which_ranks_are_neighbours(reports):
    def groups_of(case):
        return {one["axis"]: one["groups"] for one in reports[8][0][case]["axes"]}

    assert groups_of("data × shard × tensor") == {
        "tensor": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "shard": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "data": [[0, 4], [1, 5], [2, 6], [3, 7]],
    }
    assert groups_of("shard × context × tensor, other order") == {
        "shard": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "context": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "tensor": [[0, 4], [1, 5], [2, 6], [3, 7]],
    }


def test_attention_is_all_that_sends_in_forward_and_backward(reports):
    queries = 4 * SAMPLES * GPT.context * GPT.width // 4
    gradients = ["all_reduce", 4 * GPT.num_parameters, "context", 4]
    ulysses = [["all_to_all", times * queries, "context", 4] for times in (1, 1, 3, 3)]
    assert reports[4][0]["ulysses"]["operations"] == sorted([gradients, *ulysses * GPT.layers])
    passed_on = [["send", 2 * queries, "context", 4]] * (3 * 3)
    assert reports[4][0]["ring"]["operations"] == [gradients, *passed_on * GPT.layers]


def test_groups_average_their_gradients_over_all_ranks(reports):
    axes = {one["axis"]: one for one in reports[4][0]["ring, groups"]["axes"]}
    assert (axes["context"]["num_ranks"], axes["data_context"]["num_ranks"]) == (2, 4)
    for one in axes.values():
        assert one["wire_bytes"] == one["predicted_wire_bytes"] > 0


def test_a_divided_sequence_takes_less_memory(reports):
    for case in ("ulysses", "ring"):
        assert reports[4][-1][case] < reports[2][-1][case] < reports[1][-1][case]


@cases("case", "ulysses", "ring")
def test_the_attention_of_a_preset_is_what_a_step_shows(reports, case):
    for size in (1, 2, 4):
        told = AttendingModel.of(reports[size][0][case]["facts"])
        assert told == AttendingModel.of_preset(GPT, SAMPLES)
        turns_s = reports[size][0][case]["facts"]["context"].get("turns_s")
        assert (turns_s is not None) == (case == "ring")
        assert turns_s is None or min(turns_s["forward"], turns_s["backward"]) > 0


def test_a_plan_for_a_layer_that_is_not_there_is_refused(reports):
    assert reports[2][0]["badly named"] == "tensor_plan: the module has no layer named haed"


def test_a_run_predicts_traffic_memory_and_step_and_is_projected(scalebench, project):
    cases = "tensor-loss or (ring and not groups and not ring-)"
    words = ("--workload", "gpt-tiny", "--gpus", "1,2", "--quick", "--steps", "4", "--no-report")
    scalebench("run", "tensor", "context", "-k", cases, *words, "--out", "r", code=0)
    tensor, ring = (row_of(project / "r", case, 2) for case in ("tensor-loss", "ring"))
    assert tensor["global_batch"] == tensor["rank_batch"] == 16
    assert tensor["throughput"]["value"] == pytest.approx(16 / tensor["step_s"]["value"])
    (axis,) = tensor["axes"]
    assert (axis["axis"], axis["num_ranks"]) == ("tensor", 2)
    for row in (tensor, ring):
        assert (row["status"], row["correctness"]["status"]) == ("ok", "verified")
        assert row["wire_bytes"] == row["predicted_wire_bytes"] > 0
        assert row["predicted_step_s"] > row["prediction"]["computing_s"] > 0
        # Within 5 %; gloo's threads may hold up to two activations longer than the computation.
        held = 2 * 16 * 64 * 128 * 4  # samples, tokens, width, bytes
        predicted, peak = row["predicted_memory_bytes"], row["peak_memory_bytes"]
        assert 0.95 * peak - held <= predicted <= 1.05 * peak, (predicted, peak)
    done = scalebench("project", "r", "--gpus", "4,8", "--measure-shard", "--json", code=0)
    projected = {(one["case"], one["world_size"]): one for one in json.loads(done.stdout)["rows"]}
    for one in (projected["ring", 8], projected["tensor-loss", 4]):
        assert one["step_s"] > one["share"]["step_s"]
    reason = projected["tensor-loss", 8]["reason"]
    assert "4 (heads) cannot be divided among 8 ranks" in reason
