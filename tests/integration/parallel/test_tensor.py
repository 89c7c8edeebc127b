"""Ranks that divide layers or tokens: the result of one process, the messages of the law.

Run as a program, this file is the ranks.
"""

import json

import pytest
import torch
from torch import nn

from scalebench import Workload
from scalebench.analysis.budget import exposed_by_axis
from scalebench.costmodel.context_layers import AttendingModel
from scalebench.costmodel.tensor_layers import DividedModel, model_of_preset
from scalebench.spec import Context, Mesh, Tensor
from scalebench.spec.presets import CustomTarget, GptShape, MlpShape
from scalebench.spec.workload import ContextPlan, TensorPlan
from scalebench.worker.inspection.verify import train_watched
from tests.examples import cases
from tests.integration.conftest import row_of
from tests.integration.programs import inspecting, looked_at, main, of_shards, reports_of, verified
from tests.integration.traced_steps import by_law

SAMPLES = 8
"""Of a step, all groups together."""

GPT = GptShape(name="g", layers=2, heads=4, width=32, context=16, batch_size=SAMPLES)
EVEN = MlpShape(name="even", layers=2, width=16, features=6, batch_size=SAMPLES)
ODD = MlpShape(name="odd", layers=3, width=16, features=6, batch_size=SAMPLES)
HERE = "tests.integration.parallel.test_tensor"
OWN = CustomTarget(name="own", module=HERE, function="own")
BADLY_NAMED = CustomTarget(name="badly", module=HERE, function="badly_named")

CASES = {
    "gpt": (Tensor(), GPT),
    "gpt, sequence": (Tensor(sequence=True), GPT),
    "gpt, sequence and loss": (Tensor(sequence=True, loss=True), GPT),
    "gpt, groups": (Tensor(size=2), GPT),
    "mlp": (Tensor(), EVEN),
    "mlp, odd": (Tensor(), ODD),
    "mlp, groups": (Tensor(size=2), ODD),
    "own, sequence and loss": (Tensor(sequence=True, loss=True), OWN),
    "checkpointing": (Tensor(checkpointing=True), GPT),
    "bf16": (Tensor(autocast=True), GPT),
    "mesh, groups of replicas": (Mesh(data=2, tensor=2, sequence=True, loss=True), GPT),
    "mesh, shards": (Mesh(shard=None, sequence=True, loss=True), GPT),
    "mesh": (Mesh(shard=None, tensor=2), GPT),
    "mesh, groups of shards, all": (Mesh(shard=None, tensor=2, sequence=True, loss=True), GPT),
    "ulysses": (Context(method="ulysses"), GPT),
    "ring": (Context(method="ring"), GPT),
    "ring, groups": (Context(size=2, method="ring"), GPT),
    "ring, own": (Context(method="ring"), OWN),
    "ring, checkpointing": (Context(method="ring", checkpointing=True), GPT),
    "ring, selective checkpointing": (Context(method="ring", checkpointing="selective"), GPT),
}

ALL = {"sequence": True, "loss": True}
LAST_FIRST = ("tensor", "data", "context", "pipeline", "shard")
PIPES = {"pipeline": 2, "microbatches": 2}
MESH_OF = {
    "pipeline × shard × tensor": Mesh(**PIPES, shard=2, tensor=2, **ALL),
    "data × shard × tensor": Mesh(data=2, shard=2, tensor=2, **ALL),
    "shard × context × tensor, other order": Mesh(shard=2, context=2, tensor=2, order=LAST_FIRST),
    "pipeline × data × context": Mesh(
        **PIPES, data=2, context=2, chunks=2, schedule="interleaved-1f1b"
    ),
}
OF_EIGHT = {name: (mesh, GPT) for name, mesh in MESH_OF.items()}
IN_LINE = ("pipeline × shard × tensor", "pipeline × data × context")
"""Stages wait for what others send: none can be run alone."""

ALONE = ("mesh", "gpt", "gpt, sequence and loss", "mlp", "mlp, odd", "ulysses", "ring")


def of_size(world_size):
    if world_size == 8:
        return OF_EIGHT
    if world_size == 1:
        return {name: CASES[name] for name in ALONE}
    if world_size == 2:
        return {
            name: case for name, case in CASES.items() if "groups" not in name and name != "mesh"
        }
    wanted = ("gpt, sequence and loss", "ulysses", "ring")
    return {name: case for name, case in CASES.items() if "groups" in name or name in wanted}


class OwnAttention(nn.Module):
    """The part of a user's model that sees more than one token."""

    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.before = nn.LayerNorm(16)
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.mix = OwnAttention()
        self.joined = nn.Linear(16, 16, bias=False)
        self.after = nn.LayerNorm(16)
        self.head = nn.Linear(16, 40)

    def forward(self, words):
        x = self.words(words)
        seen = self.before(x)
        q, k, v = (
            one(seen).unflatten(-1, (-1, 4)).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        mixed = self.mix(q, k, v)
        x = x + self.joined(mixed.transpose(1, 2).flatten(2))
        return self.head(self.after(x))


DIVIDED = {"words": "vocabulary", "before": "tokens", "[qkv]": "columns", "joined": "rows"}
OWN_PLAN = TensorPlan(
    modules={**DIVIDED, "after": "tokens", "head": "output"},
    divisors={"heads": 4, "vocabulary": 40},
    divides_logits=True,
    sequence=8,
)


def own(shard):
    """Gradient descent does not blow up rounding as Adam does."""
    data = torch.Generator().manual_seed(100 + shard.rank)
    words = [torch.randint(40, (shard.batch_size, 9), generator=data) for _ in range(4)]
    return Workload(
        module=Own(),
        batches=[(some[:, :-1], some[:, 1:]) for some in words],
        loss=next_word,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        tensor_plan=OWN_PLAN,
        context_plan=ContextPlan(attention=("mix",), heads=4, sequence=8),
    )


def badly_named(shard):
    workload = own(shard)
    plan = TensorPlan({"words": "vocabulary", "haed": "output"})
    return Workload(workload.module, workload.batches, workload.loss, tensor_plan=plan)


def next_word(module, batch):
    words, following = batch
    return nn.functional.cross_entropy(module(words).flatten(0, 1), following.flatten())


def look(context):
    inspection, launch, found = by_law(context)
    parts = launch.breakdowns[context.rank]
    exposed = exposed_by_axis(launch, context.rank).items()
    return found | {
        "peak_bytes": inspection.memory.allocated_bytes,
        "exposed": {str(axis): [one.transfer_s, one.wait_s] for axis, one in exposed},
        "whole": [parts.exposed_transfer_s, parts.wait_s],
        "not_apart": launch.not_apart,
        "inspected_facts": inspection.facts,
    }


def cells_of(world_size, **more):
    given = of_size(world_size) | more
    return {name: inspecting(*case, world_size, SAMPLES) for name, case in given.items()}


def run_rank(folder, rank, world_size):
    more = {"badly named": (Tensor(), BADLY_NAMED)}
    return looked_at(folder, rank, cells_of(world_size, **more), look)


def run_shards(folder, rank, world_size):
    cells = {n: cell for n, cell in cells_of(world_size).items() if n not in IN_LINE}
    return of_shards(cells, lambda own: train_watched(own).allocated_bytes)


WITHOUT_LAW = ("checkpointing", "bf16")

SIZES = (1, 2, 4, 8)
every_case = cases("world_size, case", *[(n, c) for n in SIZES for c in of_size(n)])


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of("parallel.test_tensor", tmp_path_factory.mktemp("tensor"), SIZES, shards=True)


@every_case
def test_gradients_losses_and_memory_are_those_of_one_process(reports, world_size, case):
    *ranks, shards = reports[world_size]
    verified(ranks, case, 0.05 if "bf16" in case else 5e-6)
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
            assert sorted(found["operations"]) == sorted(found["predicted"])
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
    found = sorted(reports[4][0]["ulysses"]["operations"])
    assert found == sorted([gradients, *ulysses * GPT.layers])
    passed_on = [["send", 2 * queries, "context", 4]] * (3 * 3)
    found = sorted(reports[4][0]["ring"]["operations"])
    assert found == [gradients, *passed_on * GPT.layers]


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


if __name__ == "__main__":
    main(run_rank, run_shards)
