"""What a row used, field by field: memory, traffic, energy, arithmetic, each with its reason."""

import pytest

from scalebench.analysis.rows.experts import NO_EXPERTS, NOT_RECORDED
from scalebench.analysis.rows.group_step import NO_SHARD
from scalebench.analysis.rows.memory_axes import NO_MESH
from scalebench.analysis.rows.resources import CATEGORIES, peak_memory_of, use_of_row
from scalebench.costmodel.memory import MeasuredBaseline, predict_memory
from scalebench.records.rank import Memory, Verification
from scalebench.spec import Ddp, Expert, Fsdp, Mesh, Plain, Script, Tensor
from scalebench.spec.presets import PRESETS
from scalebench.spec.script import ScriptTarget
from scalebench.spec.strategies.without_lockstep import LocalSgd
from scalebench.stats import Estimate, estimate_over_launches
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.watched import make_twin, sample, watched

FAILED = "no launch of this row succeeded"
DDP = make_cell("ddp", 3, rank_batch=11)
TARGET = ScriptTarget(name="train", program="train.py")
SCRIPT = make_cell("script", 3, strategy=Script(), workload=TARGET, rank_batch=11)


def of_memories(cell, *memories):
    """A launch whose ranks used this much; the first alone knows the model."""
    ranks = [
        make_record(
            rank,
            memory=Memory(**memory),
            num_parameters=999 if rank == 0 else None,
            facts={"optimizer": "AdamW", "group_elements": [400, 599]} if rank == 0 else {},
        )
        for rank, memory in enumerate(memories)
    ]
    return make_result(cell, ranks=ranks)


def use(cell, good=(), inspection=None, alone=(), throughput=None, **changes):
    launches = dict(enumerate(good, start=4))
    return use_of_row(cell, inspection, launches, alone, throughput, **changes)


def test_the_most_of_all_ranks_and_launches_and_the_parts_of_the_fullest_rank():
    parts = {name: 10 * (i + 1) for i, name in enumerate(CATEGORIES)}
    inspection = of_memories(
        DDP,
        {"allocated_bytes": 500, "data_bytes": 1},
        {"allocated_bytes": 700, "rss_bytes": 20, **parts},
        {"allocated_bytes": 600, "data_bytes": 2},
    )
    first = of_memories(DDP, {"rss_bytes": 30, "reserved_bytes": 5}, {"rss_bytes": 90}, {})
    second = of_memories(DDP, {"rss_bytes": 60}, {"reserved_bytes": 8}, {})
    found = use(DDP, [first, second], inspection).values
    assert found["memory"] == {
        "allocated_bytes": 700,
        "reserved_bytes": 8,
        "device_bytes": None,
        "rss_bytes": 90,
        **parts,
    }
    assert found["peak_memory_bytes"] == 700


def test_without_an_inspection_the_parts_are_not_known():
    fields = use(DDP, [of_memories(DDP, {"rss_bytes": 30}, {}, {})])
    assert fields.values["memory"] == {
        **dict.fromkeys(("allocated_bytes", "reserved_bytes", "device_bytes")),
        "rss_bytes": 30,
        **dict.fromkeys(CATEGORIES),
    }
    assert fields.reasons["peak_memory_bytes"] == ("the inspection launch, which counts it, failed")
    assert use(DDP).reasons["peak_memory_bytes"] == fields.reasons["peak_memory_bytes"]
    scripted = use(SCRIPT, [of_memories(SCRIPT, {}, {}, {})])
    assert scripted.reasons["peak_memory_bytes"].startswith("on CPU the tensors of a user's script")


def test_the_parts_are_of_a_rank_whose_peak_is_known():
    inspection = of_memories(DDP, {"data_bytes": 9}, {"allocated_bytes": 0, "data_bytes": 3}, {})
    assert use(DDP, inspection=inspection).values["memory"]["data_bytes"] == 3
    unknown = of_memories(DDP, {"data_bytes": 9}, {}, {})
    assert use(DDP, inspection=unknown).values["memory"]["data_bytes"] is None


def test_the_peak_of_a_launch_is_that_of_its_fullest_rank():
    launch = of_memories(DDP, *({"allocated_bytes": size} for size in (20, 40, 30)))
    assert peak_memory_of(launch) == 40


ACTIVATIONS = Memory(
    rss_bytes=1,
    gradients_bytes=600,
    activations_bytes=1600,
    activations_peak_bytes=3200,
    data_bytes=70,
)


def alone(batch=7, memory=ACTIVATIONS, **settings):
    cell = make_cell("plain", 1, strategy=Plain(**settings), global_batch=batch, rank_batch=batch)
    return make_result(cell, ranks=[make_record(memory=memory), make_record(1)])


@pytest.mark.parametrize("strategy", [Ddp(), Fsdp(), Plain()])
def test_memory_is_predicted_from_the_first_baseline_that_fits(strategy):
    """The first two launches have other activations, or none; the last fits as well."""
    cell = make_cell("case", 3, strategy=strategy, rank_batch=11)
    ran = [of_memories(cell, {}, {}, {})]
    none = make_result(make_cell("plain", 1), ranks=[])
    others = [none, alone(5, checkpointing=True), alone(5, Memory()), alone(7), alone(9)]
    baseline = MeasuredBaseline(Plain(), 7, ACTIVATIONS)
    expected = predict_memory(strategy, 999, 11, "AdamW", baseline, 3, [400, 599])
    found = use(cell, ran, alone=others)
    assert found.values["predicted_memory_bytes"] == expected.total_bytes
    # A launch of another row tells the size of the model where none of the row's own did.
    found = use(cell, alone=others, reference=ran[0])
    assert found.values["predicted_memory_bytes"] == expected.total_bytes


def test_why_memory_is_not_predicted():
    def reason(cell, *others, **changes):
        launches = [of_memories(cell, *({} for _ in range(cell.world_size)))]
        return use(cell, launches, alone=others, **changes).reasons["predicted_memory_bytes"]

    assert reason(DDP) == "no plain baseline was measured"
    assert reason(DDP, alone(checkpointing=True), alone(5, Memory())) == (
        "the plain baseline has other activations: it differs in checkpointing"
    )
    assert "script divides its memory" in reason(SCRIPT)
    local = make_cell("local", 3, strategy=LocalSgd(), rank_batch=11)
    assert "without lockstep" in reason(local, alone())
    unknown = make_result(DDP, ranks=[make_record(num_parameters=None), make_record(1)])
    for launches in ([], [unknown], [make_result(DDP, ranks=[])]):
        reference = launches[0] if launches else None
        fields = use(DDP, reference=reference, alone=[alone()])
        assert fields.reasons["predicted_memory_bytes"] == FAILED
        assert "predicted_memory_bytes" not in fields.values


def test_of_a_group_the_peak_is_that_of_its_fullest_shard():
    def shard(*peaks):
        cell = make_cell("tensor", 1, strategy=Tensor(), purpose="shard", rank_batch=11)
        return of_memories(cell, *({"allocated_bytes": peak} for peak in peaks))

    cell = make_cell("tensor", 2, strategy=Tensor(), rank_batch=11)
    ran = [of_memories(cell, {}, {})]
    shards = [shard(40, 50), shard(70, None), shard(60)]
    found = use(cell, ran, alone=[alone()], shards=shards)
    assert found.values["predicted_memory_bytes"] == 60
    assert use(cell, ran, alone=[alone()]).reasons["predicted_memory_bytes"] == NO_SHARD
    one = make_cell("tensor", 1, strategy=Tensor(), rank_batch=11)
    expected = predict_memory(
        Tensor(), 999, 11, "AdamW", MeasuredBaseline(Plain(), 7, ACTIVATIONS), 1, [400, 599]
    )
    found = use(one, [of_memories(one, {})], alone=[alone()], shards=shards)
    assert found.values["predicted_memory_bytes"] == expected.total_bytes


def test_what_axes_take_off_is_told_of_a_mesh_alone():
    mesh = make_cell("mesh", 2, strategy=Mesh(shard=2), global_batch=32, rank_batch=16)
    facts = {"optimizer": "AdamW", "parameters": [[999, False]]}
    ranks = [make_record(rank, num_parameters=999, facts=facts) for rank in (0, 1)]
    told = use(mesh, [make_result(mesh, ranks=ranks)], alone=[alone()])
    (saving,) = [one for one in told.values["memory_by_axis"].savings if one.num_ranks > 1]
    assert (saving.axis, saving.num_ranks) == ("shard", 2)
    reasons = use(DDP, [of_memories(DDP, {}, {}, {})], alone=[alone()]).reasons
    assert reasons["memory_by_axis"] == NO_MESH
    assert use(DDP, alone=[alone()]).reasons["memory_by_axis"] == FAILED


def traffic(strategy, world_size, num_parameters=999, facts=None):
    cell = make_cell("case", world_size, strategy=strategy, rank_batch=11, workload=TARGET)
    ranks = [make_record(0, num_parameters=num_parameters, facts=facts or {})]
    ranks += [make_record(rank, num_parameters=1) for rank in range(1, world_size)]
    fields = use(cell, [make_result(cell, ranks=ranks)])
    name = "predicted_wire_bytes"
    return fields.values.get(name, fields.reasons.get(name))


def test_traffic_is_that_of_the_law_of_the_strategy():
    assert traffic(Plain(), 1) == 0
    assert traffic(Ddp(), 3) == 5328  # 2 · 2/3 of 4 · 999 bytes
    # Gathered for forward, all but the root for backward, and scattered: 2/3 of it is sent.
    groups = {"group_elements": [400, 599]}
    assert traffic(Fsdp(), 3, facts=groups) == round(2 / 3 * 4 * (999 + 400 + 999))
    assert traffic(Fsdp(), 3) == 3 * 2 / 3 * 4 * 999  # all in one group
    assert traffic(LocalSgd(), 3) == "there is no law for the traffic of local-sgd"
    assert traffic(Ddp(), 3, num_parameters=None) == FAILED
    assert use(DDP).reasons["predicted_wire_bytes"] == FAILED


def test_traffic_of_a_group_needs_what_is_divided():
    assert traffic(Tensor(), 1) == 0
    assert traffic(Tensor(), 2) == "no step has shown what is divided"
    assert "recomputation" in traffic(Tensor(checkpointing=True), 2)


def test_energy_is_estimated_over_the_launches_that_know_it():
    """300 and 450 W; ten steps of 32 samples in each window."""
    node = sample(make_twin())[0]
    four, three = watched(node), watched(node, windows_s=[(1.0, 4.0)])
    short = watched(node, windows_s=[(1.0, 1.5)])
    found = use(four.cell, [short, four, three]).values["energy_j_per_sample"]
    expected = estimate_over_launches([750 * 4 / 320, 750 * 3 / 320])
    assert found.model_dump() == pytest.approx(expected.model_dump())
    reasons = use(four.cell, [short, short]).reasons
    assert "energy_j_per_sample" in reasons and reasons["energy_j_per_sample"] != "not measured"
    bare = use(DDP, [of_memories(DDP, {}, {}, {})]).reasons["energy_j_per_sample"]
    assert bare == "the node was not watched"
    assert use(DDP).reasons["energy_j_per_sample"] == FAILED


def test_experts_are_looked_for_where_there_are_some():
    assert use(DDP).reasons["experts"] == NO_EXPERTS
    cell = make_cell("expert", 2, strategy=Expert())
    assert use(cell, [make_result(cell)]).reasons["experts"] == NOT_RECORDED
    load = {"steps": [1], "ranks": 2, "kept": [[[1, 3]]], "chosen": [[[1, 3]]], "here": [[[4]]]}
    load |= {"row_bytes": 4, "samples": 1}
    facts = {"expert_load": load, "replicated_elements": 5, "expert_elements": 7}
    ranks = [make_record(rank, facts=facts) for rank in (0, 1)]
    assert use(cell, [make_result(cell, ranks=ranks)]).values["experts"].num_experts == 2


A100 = "NVIDIA A100-SXM4-80GB"
THROUGHPUT = Estimate(value=1000.0, low=900.0, high=1200.0, n=3)


def utilisation(flops=6e9, convolutions=0.0, facts=(), throughput=THROUGHPUT, **changes):
    """A row of three ranks on A100s; the second rank of its inspection counted the FLOPs."""
    fields = {"workload": PRESETS["gpt-tiny"], "device": "cuda", "rank_batch": 11}
    cell = make_cell("ddp", 3, **fields | changes)
    own = [{"device_uuid": f"u{rank}"} for rank in range(3)]
    own[0]["device_name"] = A100
    for rank, more in enumerate(facts):
        own[rank] |= more
    good = make_result(cell, ranks=[make_record(rank, facts=own[rank]) for rank in range(3)])
    counted = [
        make_record(0),
        make_record(1, flops_per_sample=flops, convolution_flops_per_sample=convolutions),
        make_record(2, flops_per_sample=1.0, convolution_flops_per_sample=1.0),
    ]
    inspection = make_result(cell, ranks=counted)
    return use(cell, [good], inspection, throughput=throughput)


def test_utilisation_is_what_was_computed_over_the_peak_of_all_devices():
    """1000 samples of 6 GFLOP a second on three devices of 19.5 TFLOP/s."""
    fields = utilisation()
    assert fields.values["flops_per_sample"] == 6e9
    found = fields.values["mfu"]
    assert found.value == pytest.approx(6e12 / (3 * 19.5e12))
    assert (found.low, found.high) == pytest.approx((0.9 * found.value, 1.2 * found.value))


def test_ranks_that_share_a_device_or_have_one_of_the_same_name_elsewhere():
    shared = utilisation(facts=({}, {"device_uuid": "u0"}, {})).values["mfu"].value
    assert shared == pytest.approx(6e12 / (2 * 19.5e12))
    unknown = utilisation(facts=[{"device_uuid": None}] * 3).values["mfu"].value
    assert unknown == pytest.approx(6e12 / (3 * 19.5e12))


def test_the_peak_is_mixed_from_the_formats_of_convolutions_and_matrix_products():
    """A third of the FLOPs are convolutions, in TF32."""
    tf32 = ({"convolution_tf32": True, "matmul_tf32": False},)
    found = utilisation(convolutions=2e9, facts=tf32).values["mfu"].value
    seconds = 2e9 / 156e12 + 4e9 / 19.5e12  # of a sample on one device
    assert found == pytest.approx(1000 * seconds / 3)
    swapped = ({"convolution_tf32": False, "matmul_tf32": True},)
    found = utilisation(convolutions=2e9, facts=swapped).values["mfu"].value
    assert found == pytest.approx(1000 * (2e9 / 19.5e12 + 4e9 / 156e12) / 3)
    both = ({"convolution_tf32": True, "matmul_tf32": True},)
    found = utilisation(convolutions=2e9, facts=both).values["mfu"].value
    assert found == pytest.approx(1000 * 6e9 / 156e12 / 3)


def test_without_a_count_of_convolutions_the_kind_of_model_decides():
    """The third rank's count is of another sample; the second's is asked first, and has none."""
    tf32 = ({"convolution_tf32": True, "matmul_tf32": False},)
    found = utilisation(convolutions=None, facts=tf32).values["mfu"].value
    assert found == pytest.approx(1000 * 6e9 / 156e12 / 3)  # the third one's: all of it


def test_why_there_is_no_utilisation():
    def reasons(**changes):
        return utilisation(**changes).reasons

    assert reasons(throughput=None)["mfu"] == FAILED
    assert use(DDP, throughput=THROUGHPUT).reasons["mfu"] == FAILED
    assert reasons(device="cpu", facts=[{"device_name": "cpu"}])["mfu"] != "not known"
    scripted = use(SCRIPT, [of_memories(SCRIPT, {}, {}, {})], throughput=THROUGHPUT).reasons
    nothing = "only the inspection launch counts FLOPs, and there was none"
    assert scripted["mfu"] == scripted["flops_per_sample"] == nothing
    inspected = of_memories(DDP, {}, {}, {})
    known = utilisation(flops=6e9, strategy=Script(), workload=TARGET)
    assert known.reasons["mfu"] == "not known"
    uncounted = use(DDP, [inspected], inspected, throughput=THROUGHPUT).reasons
    assert uncounted["flops_per_sample"] == "torch's FLOP counter knows no operator of the model"
    gpu = make_cell("ddp", 1, device="cuda")
    ran = make_result(gpu, ranks=[make_record(facts={"device_name": A100})])
    assert use(gpu, [ran], ran, throughput=THROUGHPUT).reasons["mfu"] == (
        "torch's FLOP counter knows no operator of the model"
    )


@pytest.mark.parametrize(
    ("status", "why", "told"),
    [
        ("unverified", "no reference ran", "no reference ran"),
        ("unverified", None, "torch's FLOP counter knows no operator of the model"),
        ("verified", "beside", "torch's FLOP counter knows no operator of the model"),
    ],
)
def test_flops_are_not_counted_where_no_reference_ran(status, why, told):
    ranks = [make_record(verification=Verification(status=status, reason=why)), make_record(1)]
    inspection = make_result(make_cell("ddp", 2), ranks=ranks)
    assert use(DDP, inspection=inspection).reasons["flops_per_sample"] == told
