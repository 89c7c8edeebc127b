from math import inf, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench import Case, Ddp, Fsdp, Loader, Pipeline, Race, Suite
from scalebench.errors import UsageError
from scalebench.spec import (
    AXES,
    Accelerate,
    Context,
    Expert,
    Fabric,
    LayerWise,
    Mesh,
    ParameterServer,
    Tensor,
)
from scalebench.spec.presets import PRESETS, CustomTarget, GptShape, divisible, resolve_workload
from scalebench.spec.workload import ContextPlan, TensorPlan
from scalebench.spec.world import (
    MAX_BIT_PER_S,
    MIN_BIT_PER_S,
    Node,
    VirtualHosts,
    World,
    parse_rate,
    rate_text,
)
from tests.examples import cases


def agrees(reason, said):
    return reason is None if said is None else said in reason


@cases("kind", Tensor, Context, Expert)
@given(size=st.integers(1, 9) | st.none(), world_size=st.integers(1, 64))
def test_groups_and_their_ranks_make_up_the_world_or_the_size_is_refused(kind, size, world_size):
    strategy = kind(size=size)
    ranks = strategy.ranks_per_group(world_size)
    assert ranks == (world_size if size is None else min(size, world_size))
    if strategy.why_not("cpu", world_size) is None:
        parts = world_size if kind is Expert else world_size // ranks  # experts: a batch each
        assert world_size % ranks == 0 and strategy.num_shards(world_size) == parts
    else:
        assert size is not None and world_size > size and world_size % size


@cases("strategy", Tensor(size=2), LayerWise(size=2), Expert(size=2))
def test_a_size_that_does_not_divide_the_ranks_is_named(strategy):
    reason = strategy.why_not("cpu", 3)
    assert reason == "3 ranks cannot be divided into groups of 2 (size); choose a multiple of 2"
    assert "(shard_size)" in Fsdp(shard_size=2).why_not("cpu", 3)


def layers(**changes):
    return TensorPlan({"layer": "columns"}, **changes)


def attention(sequence=64):
    return ContextPlan(attention=("mix",), heads=4, sequence=sequence)


ULYSSES, RING = Context(method="ulysses"), Context(method="ring")


@cases(
    "strategy, plan, ranks, said",
    (Tensor(), layers(divisors={"vocabulary": 50257}), 2, "50257 (vocabulary) cannot"),
    (Tensor(sequence=True), layers(sequence=9), 2, "9 (tokens) cannot be divided among 2"),
    (Tensor(), layers(sequence=9), 2, None),
    (Tensor(sequence=True), layers(), 2, "the workload has none"),
    # Ulysses divides heads, the ring two parts for each rank.
    (ULYSSES, attention(), 4, None),
    (ULYSSES, attention(), 8, "4 (heads) cannot be divided among 8 ranks with method='uly"),
    (ULYSSES, attention(63), 2, "63 (tokens) cannot be divided among 2 ranks with"),
    (RING, attention(62), 2, "62 (tokens) cannot be divided among 2 ranks, two parts"),
    (RING, attention(), 3, "64 (tokens) cannot be divided among 3 ranks, two parts for each"),
    (Expert(), None, 8, None),
    (Expert(), None, 3, "gpt-moe-tiny: 8 experts cannot be divided among 3 ranks"),
    (Expert(size=2), None, 16, None),
    (Expert(top_k=9), None, 2, "top_k is 9 and there are 8 experts; choose at most 8"),
    (Expert(top_k=0), None, 2, "a token needs an expert"),
    (Expert(capacity_factor=0), None, 2, "a capacity_factor of 0 lets no token through"),
    (Expert(capacity_factor=1, dropless=True), None, 2, "give one of the two"),
    (Expert(capacity_factor=0.5), None, 2, None),
)
def test_what_a_strategy_cannot_divide_is_refused_with_the_reason(strategy, plan, ranks, said):
    reason = strategy.why_not("cpu", ranks)
    if reason is None:
        experts = divisible(PRESETS["gpt-moe-tiny"])
        ask = strategy.why_not_plan if plan else strategy.why_not_divided
        reason = ask(plan or experts, ranks)
    assert agrees(reason, said)


def test_a_workload_without_experts_is_refused():
    own = divisible(CustomTarget(name="m:f", module="m", function="f"))
    for expert, workload, said in (
        (Expert(), divisible(PRESETS["gpt-tiny"]), "gpt-tiny has no experts"),
        (Expert(), own, None),
        (Expert(top_k=1, capacity_factor=1), own, "leave capacity_factor, top_k out"),
        (Expert(dropless=True), own, "leave dropless out"),
    ):
        assert agrees(expert.why_not_divided(workload, 2), said)


@cases(
    "name, said",
    ("gpt-moe+top1", "+top1 is none of"),
    ("gpt+top-1", "gpt has no experts"),
    ("gpt-moe+top-9", "cannot have more experts than there are"),
    ("gpt-mo+top-1", "Did you mean 'gpt-moe'?"),
)
def test_a_name_that_asks_for_what_cannot_be_is_answered(name, said):
    with pytest.raises(UsageError) as error:
        resolve_workload(name, "cpu")
    assert said in str(error.value)


few = st.integers(1, 3)
meshes = st.builds(
    Mesh,
    **dict.fromkeys(("pipeline", "context", "tensor"), few),
    **dict.fromkeys(("data", "shard"), few | st.none()),
    order=st.permutations(AXES),
)


@given(mesh=meshes, world_size=st.integers(2, 24), axes=st.sets(st.sampled_from(AXES)))
def test_a_mesh_has_every_rank_once_and_groups_differ_along_their_axes(mesh, world_size, axes):
    sizes = mesh.axis_sizes(world_size)
    if mesh.why_not("cpu", world_size) is not None:
        return
    assert prod(sizes.values()) == world_size
    for axis in AXES:
        assert getattr(mesh, axis) in (None, sizes[axis])
    places = [mesh.coordinates(rank, world_size) for rank in range(world_size)]
    assert len({tuple(place.values()) for place in places}) == world_size
    assert all(place[axis] < sizes[axis] for place in places for axis in AXES)
    groups = mesh.groups_along(world_size, *axes)
    assert {len(group) for group in groups} == {prod(sizes[axis] for axis in axes)}
    assert sorted(rank for group in groups for rank in group) == [*range(world_size)]
    for group in groups:
        others = {tuple(places[r][axis] for axis in AXES if axis not in axes) for r in group}
        assert len(others) == 1


@cases(
    "mesh, world_size, said",
    (Mesh(data=2, tensor=2), 4, None),
    (Mesh(data=2, tensor=2), 1, None),
    (Mesh(tensor=2), 3, "tensor=2 do not make 3 ranks; choose numbers whose product is that"),
    (Mesh(data=None, shard=2, tensor=2), 8, None),
    (Mesh(data=2, shard=None, pipeline=2, microbatches=2), 6, "pipeline=2 and data=2 do not"),
    (Mesh(microbatches=4), 2, "microbatches=4 needs a pipeline; give pipeline=2"),
    (Mesh(data=4, expert=2), 4, None),
    (Mesh(data=2, expert=4), 2, "data=2 cannot be divided into groups of 4 (expert)"),
    (Mesh(expert=2), 3, "3 ranks cannot be divided into groups of 2"),
    (Mesh(expert=2, tensor=2), 4, "expert and tensor cannot be combined yet"),
    (Mesh(expert=2, pipeline=2), 4, "expert and pipeline cannot be combined yet"),
    (Mesh(expert=2, shard=None), 4, "expert divides what replicas keep, and shard leaves"),
    (Mesh(expert=2, loss=True), 4, "expert cannot be combined with sequence=True"),
    (Mesh(pipeline=2, checkpointing=True), 2, "checkpointing inside the stages"),
    (Mesh(tensor=2, sequence=True, compile=True), 2, "--no-compile"),
    (Mesh(tensor=2, sequence=True, compile=True), 1, "--no-compile"),
)
def test_what_does_not_make_up_the_ranks_is_named(mesh, world_size, said):
    assert agrees(mesh.why_not("cuda" if mesh.compile else "cpu", world_size), said)


@cases(
    "mesh, n, said",
    (Mesh(tensor=2, context=2), 4, None),
    (Mesh(tensor=2, context=4), 8, "2 (heads) cannot be divided among 4 ranks"),
    (Mesh(tensor=2, context=4, method="ring"), 8, None),
    (Mesh(tensor=3), 3, "4 (heads) cannot be divided among 3 ranks"),
    (Mesh(context=2, tensor=4, sequence=True), 8, "2 (tokens) cannot be divided among 4 ranks"),
    (Mesh(pipeline=5, microbatches=5), 5, "4 layers, with the embedding and the output, for 5"),
    (Mesh(pipeline=2, chunks=3, schedule="interleaved-1f1b"), 2, "for 6 stages"),
)
def test_dimensions_that_do_not_divide_a_model_are_named(mesh, n, said):
    context = 4 if mesh.sequence else 16
    shape = GptShape(name="g", layers=2, heads=4, width=32, context=context, batch_size=8)
    assert agrees(mesh.why_not_divided(divisible(shape), n), said)


AT_ONCE = {"staleness_bound": 0}
EARLY = {"pushes": "backward"}
BY_PRIORITY = {"pushes": "priority", **AT_ONCE}
LINK = {"link_bit_per_s": (50_000_000,)}
RACE = Race(samples=400, evaluate_every=100)
ASKED, DDP = {"name": "r", "question": "?"}, (Case(name="x", strategy=Ddp()),)


@cases(
    "kind, fields, told",
    (Mesh, {"order": ("data", "tensor")}, "order names data, tensor; name each of pipeline"),
    (Mesh, {"pipeline": 2, "chunks": 2}, "1f1b has 1 stage per rank"),
    (Fabric, {"as_shipped": True}, "give bucket_mb=None"),
    (Accelerate, {"plugin": "deepspeed"}, "stage is for the DeepSpeed plug-in"),
    (Accelerate, {"plugin": "ddp", "stage": 2}, "stage is for the DeepSpeed plug-in"),
    (Ddp, {"static_graph": True, "accumulate": 2}, "static_graph=True with accumulate=2: tor"),
    (ParameterServer, {"backup_workers": 1}, "needs staleness_bound=0"),
    (ParameterServer, {"backup_workers": 1, **AT_ONCE, "servers": 2}, "needs servers=1"),
    (ParameterServer, {"staleness_aware": True, **AT_ONCE}, "no gradient is stale"),
    (ParameterServer, {"pushes": "priority"}, "needs staleness_bound=0"),
    (ParameterServer, {**EARLY, "staleness_bound": 2}, "needs staleness_bound=0"),
    (ParameterServer, {**BY_PRIORITY, "backup_workers": 1}, "=0 and backup_workers=0"),
    (ParameterServer, {**BY_PRIORITY, "compile": True}, "needs compile=False"),
    (ParameterServer, {**EARLY, **AT_ONCE, "chunk_mb": 1}, 'needs pushes="priority"'),
    (ParameterServer, {"chunk_mb": 1}, 'chunk_mb=1 needs pushes="priority"'),
    (ParameterServer, {**BY_PRIORITY, "chunk_mb": 0}, "greater than 0"),
    (Pipeline, {"schedule": "gpipe", "chunks": 2}, "gpipe has 1 per rank: give chunks=1"),
    (Pipeline, {"schedule": "zbv"}, "zbv has 2 per rank: give chunks=2"),
    (Pipeline, {"schedule": "2f2b"}, "schedule"),
    (Pipeline, {"microbatches": 0}, "microbatches"),
    (Loader, {"num_workers": -1}, "num_workers"),
    (Loader, {"prefetch_factor": 2}, "prefetch_factor is for worker processes.*num_workers"),
    (Loader, {"persistent_workers": True}, "persistent_workers is for worker pro.*num_workers"),
    (Loader, {"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor"),
    (Loader, {"workers": 1}, "workers"),
    (Race, {"samples": 250, "evaluate_every": 100}, r"samples \(250\) must be a multiple"),
    (Suite, {**ASKED, "cases": DDP, "race": RACE}, r"give a case with Plain\(\)"),
    (Suite, ASKED, "give cases to train, or collectives to time"),
    *(
        (VirtualHosts, {**LINK, **fields}, "VirtualHosts")
        for fields in (
            *({"hosts_per_rack": 2}, {"inter_bit_per_s": 10**8}, {"ranks_per_host": 0}),
            *({"cpus_per_rank": 0}, {"cpus_per_rank": inf}, {"cpu_shares": (0.5, 0)}),
            {"cpus_per_rank": 0.5, "cpu_shares": (0.5, 0.2)},
            *({"unknown": 1}, {"link_bit_per_s": ()}),
        )
    ),
)
def test_fields_that_contradict_one_another_are_refused(kind, fields, told):
    with pytest.raises(ValidationError, match=told):
        kind(**fields)


def test_what_seems_to_contradict_itself_and_does_not():
    assert Fabric(as_shipped=True, bucket_mb=None).as_shipped
    assert Accelerate(plugin="deepspeed", stage=0).zero_stage == 0
    assert Ddp(static_graph=True, balance="measured").static_graph


def world(*ranks_per_node, cores=8, gpus=0):
    nodes, first = [], 0
    for number, count in enumerate(ranks_per_node):
        ranks = tuple(range(first, first + count))
        nodes.append(Node(host=f"n{number}", ranks=ranks, num_cores=cores, num_gpus=gpus))
        first += count
    return World(launcher="torchrun", nodes=tuple(nodes))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 4))
def test_sizes_fill_one_node_after_the_other_each_rank_with_a_core_to_itself(counts, cores, gpus):
    there = world(*counts, cores=cores, gpus=gpus)
    assert sorted(there.order) == list(range(there.size))
    for size in range(1, there.size + 1):
        placed = there.placed(size)
        assert sum(placed) == size
        assert placed[:-1] == counts[: len(placed) - 1]
        assert 0 < placed[-1] <= counts[len(placed) - 1]
    with pytest.raises(ValueError):
        there.placed(there.size + 1)
    for on_gpus, each in ((False, cores), (True, gpus)):
        fits = [n for n in range(1, there.size + 1) if max(there.placed(n)) <= each]
        assert there.capacity(on_gpus) == max(fits, default=0)


RATES = {
    "50mbit": 50_000_000,
    "1gbit": 10**9,
    "1.5Gbit": 1_500_000_000,
    " 2500 kbit ": 2_500_000,
    "10mbit/s": 10_000_000,
}


def test_rates_as_people_write_them():
    assert {text: parse_rate(text) for text in RATES} == RATES
    for text in ("", "50", "mbit", "50 mb", "50mbps", "-1mbit", "1e3mbit", "∞mbit"):
        with pytest.raises(UsageError, match="50mbit"):
            parse_rate(text)


@given(st.integers(MIN_BIT_PER_S // 1000, MAX_BIT_PER_S // 1000))
def test_a_rate_in_whole_kilobits_is_read_as_it_is_written(kilobits):
    assert parse_rate(rate_text(kilobits * 1000)) == pytest.approx(kilobits * 1000, rel=1e-5)


def test_ranks_may_have_different_shares():
    slow = VirtualHosts(**LINK, cpu_shares=(1, 0.6, 0.33))
    assert (slow.threads, slow.cpu) == (1, "1,0.6,0.33")
    assert (slow.shares(1), slow.shares(3)) == ((1,), (1, 0.6, 0.33))
    assert VirtualHosts(**LINK, cpus_per_rank=0.2).shares(2) == (0.2, 0.2)
    assert VirtualHosts(**LINK).shares(2) is None


@cases(
    "fields, sizes, said",
    ({"cpu_shares": (1, 0.6, 0.33)}, [1, 3], None),
    ({"cpu_shares": (1, 0.6, 0.33)}, [1, 4], "3 shares and N=4 has 4 ranks. Give 4 shares, or"),
    ({"cpu_shares": (1, 3)}, [2], "--cpus-per-rank 3 is more CPU than there is"),
    ({"cpus_per_rank": 2}, [1], None),
    ({"cpus_per_rank": 2.5}, [1], "2.5 is more CPU than there is: 2 core"),
    ({}, [251], "at most 250"),
)
def test_no_more_cpu_than_there_is_and_no_more_hosts_than_addresses(fields, sizes, said):
    try:
        VirtualHosts(**LINK, **fields).check(sizes, num_cores=2)
    except UsageError as error:
        assert said and said in str(error)
    else:
        assert said is None
