"""The search's closed forms agree with the cost models that they stand for."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from scalebench.costmodel.links.laws import law_terms
from scalebench.costmodel.memory import zero_state
from scalebench.costmodel.pipelines.dry_run import dry_run, equal_times
from scalebench.costmodel.pipelines.orders import plan_schedule
from scalebench.costmodel.pipelines.stage_split import layers_of_stages
from scalebench.costmodel.replay import CommRequest, replay
from scalebench.search.choice import Choice, columns_of
from scalebench.search.job import Job, Recomputing
from scalebench.search.links import NominalLinks
from scalebench.search.memory import (
    activation_bytes,
    gathered_bytes,
    hop_bytes,
    memory_bytes,
    stage_table,
    state_bytes,
)
from scalebench.search.model import SearchModel
from scalebench.search.space import Floats, Ints
from scalebench.search.step import (
    Passes,
    bubble_s,
    exposed_hops,
    exposed_hops_s,
    hidden_behind,
    step_parts,
    tensor_messages,
    times_again,
)
from scalebench.spec.presets import PRESETS, GptShape, MoeShape
from tests.unit.search.jobs import ROUTED, SMALL, SPEED, TWO_LEVELS, job

SCHEDULES = [
    ("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("looped-bfs", 2), ("looped-bfs", 4),
    ("zero-bubble", 1),
]  # fmt: skip


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 16)])
@pytest.mark.parametrize(("name", "v"), SCHEDULES)
def test_bubble_and_messages_of_schedules_are_those_of_a_dry_run(
    name: str, v: int, p: int, m: int
) -> None:
    schedule = plan_schedule(name, p, m, v)
    seconds = equal_times(p * v, 1.0 / v, 2.0 / v)
    bare, sent = dry_run(schedule, seconds), dry_run(schedule, seconds, transfer_s=0.01)
    of = columns_of([Choice(data=1, pipeline=p, schedule=name, chunks=v, microbatches=m)])
    passes = Passes(np.array([1.0]), np.array([2.0]), np.array([1.0]))
    assert 3 * m + bubble_s(of, passes, np.zeros(1))[0] == pytest.approx(bare.step_s)
    assert 0.01 * exposed_hops(of)[0] == pytest.approx(sent.step_s - bare.step_s)


@pytest.mark.parametrize(
    ("name", "p", "v", "m", "each_s", "expected"),
    [
        # Forward 1 s, backward 2 s. Messages of 5 s reach the second rank after 6, 11 and 16 s; its
        # passes end after 17, 19, 21 and 23 s; gradients arrive after 24, 29 and 34 s: 36 s in all,
        # 12 s of them passes and bubble.
        ("gpipe", 2, 1, 3, 5.0, 24.0),
        ("gpipe", 2, 1, 3, 1.5, 4.0),  # behind a forward pass 0.5 s are left, behind backward none
        ("gpipe", 4, 1, 3, 5.0, 2 * 3 * 5 + 2 * (4 + 3)),  # three links to the last rank and back
        ("looped-bfs", 2, 2, 2, 5.0, 2 * 5 + 3 * (4.5 + 4)),  # passes of a chunk: 0.5 s, 1 s
        ("1f1b", 2, 1, 4, 5.0, 20.0),  # its round trips are longer than what the link carries
        ("zero-bubble", 2, 1, 4, 5.0, 20.0),  # 4·5 s of messages and 9 s of passes: the hops count
        ("zero-bubble", 2, 1, 4, 20.0, 80.0),
        ("interleaved-1f1b", 2, 2, 4, 5.0, 60 - 12 * 11 / 12),  # 12 messages of a rank
        ("interleaved-1f1b", 2, 2, 4, 0.01, 0.06),  # short ones: those of the dry run
    ],
)
def test_a_link_carries_one_message_after_another(
    name: str, p: int, v: int, m: int, each_s: float, expected: float
) -> None:
    of = columns_of([Choice(data=1, pipeline=p, schedule=name, chunks=v, microbatches=m)])
    passes = Passes(np.array([1.0]), np.array([2.0]), np.array([1.0]))
    assert exposed_hops_s(of, np.array([each_s]), passes)[0] == pytest.approx(expected)


@pytest.mark.parametrize("num", [1, 2, 7])
@pytest.mark.parametrize("each_s", [0.01, 0.3, 2.0])
def test_what_buckets_hide_is_what_a_replay_shows(num: int, each_s: float) -> None:
    window = 1.0
    asked = [CommRequest("all_reduce", 1, (i + 1) * window / num, window, None) for i in range(num)]
    stalled = replay(asked, [each_s] * num, window).stalled_s
    found = hidden_behind(np.array([num]), np.array([each_s]), np.array([window]))
    assert found[0] == pytest.approx(stalled)


@pytest.mark.parametrize("stages", [2, 3, 5, 8])
@pytest.mark.parametrize("vocabulary", [256, 50_000])
def test_the_fullest_stage_is_that_of_the_balanced_split(stages: int, vocabulary: int) -> None:
    model = SearchModel(
        name="m", layers=16, heads=4, width=128, context=64, vocabulary=vocabulary, kv_heads=4,
        inner=512,
    )  # fmt: skip
    costs = [*[model.block_flops] * model.layers]
    costs[-1] += model.head_flops
    split = layers_of_stages("balanced", costs, stages)
    dearest = max(sum(costs[begin:end]) for begin, end in split)
    # The split may leave the last stage the logits alone; costs here keep a layer with them.
    assert model.fullest_stage(stages)[1] <= dearest * (1 + 1e-12)
    if vocabulary == 256:
        assert model.fullest_stage(stages)[1] == pytest.approx(dearest)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 4"):
        SMALL.fullest_stage(5)


@pytest.mark.parametrize(
    "name", [n for n, s in PRESETS.items() if isinstance(s, GptShape | MoeShape)]
)
def test_parameters_are_those_of_the_presets_without_small_vectors(name: str) -> None:
    shape = PRESETS[name]
    assert isinstance(shape, GptShape | MoeShape)
    model = SearchModel.of_preset(shape)
    places = shape.context * shape.width
    assert model.num_parameters + places == pytest.approx(shape.num_parameters, rel=0.02)


def test_state_is_that_of_zero() -> None:
    of = job()
    for stage in range(4):
        shards = 8 if stage else 1
        made = columns_of([Choice(data=8 // shards, shard=shards, zero=stage)])
        layers, _ = stage_table(of, made)
        expected = zero_state(stage, SMALL.num_parameters, shards).total
        assert state_bytes(of, made, layers)[0] == pytest.approx(expected)


def test_memory_falls_with_what_divides_it() -> None:
    of = job(8, 64)
    base = Choice(data=8)
    less = [
        Choice(data=1, shard=8, zero=3),
        Choice(data=1, shard=8, zero=1),
        Choice(data=2, tensor=4),
        Choice(data=8, checkpointing="full"),
        Choice(data=8, checkpointing="selective"),
        Choice(data=8, microbatches=4),
        Choice(data=8, precision="bfloat16"),
    ]
    whole, *others = memory_bytes(of, columns_of([base, *less]))
    assert all(other < whole for other in others)


def activations(of: Job, *made: Choice) -> list[float]:
    columns = columns_of(made)
    layers, _ = stage_table(of, columns)
    return list(activation_bytes(of, columns, layers))


def test_activations_are_those_of_korthikanti_without_dropout() -> None:
    bare = replace(SMALL, vocabulary=0)  # no logits
    unit = bare.context * bare.width * 2 * bare.layers  # of 16 bits, for each of its 32 bytes
    whole, parted = activations(job(4, 4, model=bare), Choice(data=4), Choice(data=1, tensor=4))
    assert whole == pytest.approx(32 * unit)
    assert parted == pytest.approx(4 * 32 / 4 * unit)  # four samples
    undivided = job(4, 4, model=bare, sequence=False)
    assert activations(undivided, Choice(data=1, tensor=4))[0] == pytest.approx(4 * 14 * unit)


def test_grouped_queries_keep_fewer_keys_and_values_and_a_gate_keeps_more() -> None:
    bare = replace(SMALL, vocabulary=0)
    unit = bare.context * bare.width * 2 * bare.layers
    for model, expected in (
        (replace(bare, kv_heads=1), 32 - 4 * 3 / 4),
        (replace(bare, gated=True), 32 + 2 * 4),
        (replace(bare, experts=4, top_k=2), 32 + 4 * 4),
    ):
        assert activations(job(4, 4, model=model), Choice(data=4))[0] == pytest.approx(
            expected * unit
        )


def test_ranks_of_a_tensor_group_pass_their_parts_to_the_next_stage() -> None:
    choice = Choice(data=1, tensor=4, pipeline=2, schedule="1f1b", microbatches=4)
    divided, whole = (
        hop_bytes(job(8, 16, sequence=sequence), columns_of([choice]))[0]
        for sequence in (True, False)
    )
    assert whole == 4 * divided == 4 * SMALL.context * SMALL.width * 4


def staged(m: int, v: int = 1, zero: int = 2) -> Choice:
    name = "interleaved-1f1b" if v > 1 else "1f1b"
    return Choice(data=1, shard=4, zero=zero, pipeline=2, schedule=name, chunks=v, microbatches=m)


def test_with_stages_gathers_and_scatters_happen_once_a_step() -> None:
    of = job(8, 64)  # on CPU: nothing hides, so that the sums are exact
    few, many = step_parts(of, columns_of([staged(2), staged(16)])).shard_s
    assert few == pytest.approx(many)
    alone = [Choice(data=2, shard=4, zero=2, microbatches=m) for m in (1, 2)]
    once, twice = step_parts(of, columns_of(alone)).shard_s
    assert twice == pytest.approx(1.5 * once)  # without stages only the gather is once


def test_with_stages_gradients_stay_whole() -> None:
    of = job(8, 64)
    made = columns_of([staged(2), Choice(data=1, shard=4, zero=2, tensor=2)])
    layers, _ = stage_table(of, made)
    kept, scattered = gathered_bytes(of, made, layers)
    assert kept - scattered > 0.7 * 4 * SMALL.num_parameters / 2


@dataclass(frozen=True)
class OneSecondEach:
    """Links on which every operation of several ranks takes a second: what is sent is counted."""

    ranks_per_node: int = 4
    told: str = "a test"

    def time(self, op: str, ranks: Ints, near: Ints, size_bytes: Floats) -> Floats:
        return np.where(ranks > 1, 1.0, 0.0)


@pytest.mark.parametrize(
    ("zero", "operations"),
    [
        (1, 1),  # parameters, after the optimizer
        (2, 5 + 3 * 5),  # one gather of four layers and the rest, a scatter for each microbatch
        (3, 3 * (5 + 5 + 5)),  # gathered for both passes of each microbatch, and scattered
    ],
)
def test_gathers_and_scatters_by_stage(zero: int, operations: int) -> None:
    of = job(8, 48, links=OneSecondEach())  # on CPU: nothing hides
    made = columns_of([Choice(data=2, shard=4, zero=zero, microbatches=3)])
    assert step_parts(of, made).shard_s[0] == pytest.approx(operations)


def test_a_forward_pass_that_is_computed_again_sends_again() -> None:
    """A layer sends how many tokens come, and the tokens there and back; backward, these again."""
    of = job(8, 16, model=ROUTED, links=OneSecondEach())
    made = [Choice(data=4, expert=2), Choice(data=4, expert=2, checkpointing="full")]
    once, again = step_parts(of, columns_of(made)).expert_s
    assert once == pytest.approx(4 * (3 + 2))
    assert again == pytest.approx(4 * (3 + 2) + 4 * 3)


def test_a_ring_hides_behind_the_mixing_of_all_turns_but_the_last() -> None:
    """Four ranks send 3 times in forward and 6 times in backward of each of four layers."""
    slow = replace(SPEED, flop_s={"float32": 1e-9})
    of = job(8, 16, speed=slow, links=OneSecondEach())
    made = columns_of([Choice(data=2, context=4, context_method="ring")])
    layer_flops = 3 * 4 * 128**2 * 256 * 8  # both passes, 4·s²·h, eight samples
    hidden_s = 4 * layer_flops / 4 * 1e-9 * 3 / 4
    assert hidden_s > 0.3
    assert step_parts(of, made).context_s[0] == pytest.approx(4 * (3 + 6) - hidden_s)


def test_gathers_of_later_chunks_hide_behind_the_microbatches_of_earlier_ones() -> None:
    of = job(8, 64, device="cuda")
    one, two = step_parts(of, columns_of([staged(8), staged(8, v=2)])).shard_s
    assert two < one


def test_parameters_gathered_in_16_bits_take_half_the_time_and_room() -> None:
    whole, half = job(8, 64), job(8, 64, gathered_bytes_each=2)
    made = columns_of([Choice(data=2, shard=4, zero=3)])
    layers, _ = stage_table(whole, made)
    assert gathered_bytes(half, made, layers)[0] < 0.7 * gathered_bytes(whole, made, layers)[0]
    assert step_parts(half, made).shard_s[0] < 0.8 * step_parts(whole, made).shard_s[0]


def test_experts_are_divided_with_their_state() -> None:
    of = job(8, 64, model=ROUTED)
    whole, divided = memory_bytes(of, columns_of([Choice(data=8), Choice(data=2, expert=4)]))
    assert whole - divided > 16 * 0.7 * ROUTED.layers * ROUTED.expert_parameters * 3 / 4


def test_plain_data_parallel_is_computation_buckets_and_the_optimizer() -> None:
    of = job(4, 16)
    made = columns_of([Choice(data=4, bucket_mb=1000)], 4)
    parts = step_parts(of, made)
    compute = 4 * SMALL.flops_per_sample * SPEED.flop_s["float32"] + SPEED.pass_s
    size = 4 * SMALL.num_parameters
    link = TWO_LEVELS.inside
    reduced = law_terms("all_reduce", "ring", 4).time_s(
        size, link.latency_s, link.bandwidth_byte_per_s
    )
    assert parts.compute_s[0] == pytest.approx(compute)
    assert parts.data_s[0] == pytest.approx(reduced)
    assert parts.update_s[0] == SPEED.update_s
    assert parts.step_s[0] == pytest.approx(compute + reduced + SPEED.update_s)


def test_full_recomputation_costs_a_forward_pass() -> None:
    of = job(4, 16)
    without, with_ = (
        step_parts(of, columns_of([Choice(data=4), Choice(data=4, checkpointing="full")])).compute_s
        - SPEED.pass_s
    )
    assert with_ / without == pytest.approx(4 / 3)


def test_zero_bubble_computes_a_block_again_for_inputs_and_for_each_group_of_weights() -> None:
    made = [
        Choice(data=1, pipeline=4, schedule=name, microbatches=8, checkpointing=how)
        for name, how in (("1f1b", "full"), ("zero-bubble", "full"), ("zero-bubble", "none"))
    ]
    of, bare = columns_of(made), replace(SPEED, pass_s=0.0)
    assert times_again(of).tolist() == [1, 7, 0]
    one, split, kept = step_parts(job(4, 8, speed=bare), of).compute_s
    assert one / kept == pytest.approx(4 / 3)
    assert split / kept == pytest.approx(10 / 3)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16)])
def test_the_bubble_with_long_passes_of_weights_is_that_of_a_dry_run(p: int, m: int) -> None:
    schedule = plan_schedule("zero-bubble", p, m)
    seconds = {(kind, stage): s for kind, s in (("F", 1.0), ("I", 2.0), ("W", 7.0))
               for stage in range(p)}  # fmt: skip
    of = columns_of([Choice(data=1, pipeline=p, schedule="zero-bubble", microbatches=m)])
    passes = Passes(np.array([1.0]), np.array([9.0]), np.array([7.0]))
    found = 10 * m + bubble_s(of, passes, np.zeros(1))[0]
    assert found == pytest.approx(dry_run(schedule, seconds).step_s)


def test_what_is_recomputed_is_sent_again() -> None:
    of = job(4, 16)
    kept = ("none", "selective", "full")
    made = [Choice(data=1, tensor=4, checkpointing=how) for how in kept]
    none, selective, full = step_parts(of, columns_of(made)).tensor_s
    assert selective == full > 1.2 * none  # torch keeps no message in either
    keeps = replace(of, selective_sends_again=False)
    assert list(step_parts(keeps, columns_of(made)).tensor_s) == [none, none, full]


def test_selective_recomputation_takes_what_was_measured_and_nothing_where_nothing_was() -> None:
    made = [Choice(data=4), Choice(data=4, checkpointing="selective")]
    plain, assumed = step_parts(job(4, 16), columns_of(made)).compute_s
    assert plain == assumed
    known = replace(SPEED, recomputing={"selective": Recomputing(0.25, 3e-3)})
    plain, measured = step_parts(job(4, 16, speed=known), columns_of(made)).compute_s
    forward = (plain - SPEED.pass_s) / 3
    assert measured - plain == pytest.approx(0.25 * forward + 3e-3)


def test_a_scattered_message_is_sent_in_parts_and_gathered_inside_the_node() -> None:
    """Four ranks a node and stage, so a message crosses between nodes."""
    made = [Choice(data=1, tensor=4, pipeline=2, schedule="gpipe", microbatches=4)]
    slow = replace(SPEED, flop_s={"float32": 1e-9})  # passes are longer than messages
    of = job(8, 16, sequence=False, speed=slow)
    parts = replace(of, scatters_messages=True)
    size = 4 * 4.0 * SMALL.context * SMALL.width
    across, inside = TWO_LEVELS.across, TWO_LEVELS.inside
    rate = across.bandwidth_byte_per_s / 4  # of one of four ranks that send at once
    whole = across.latency_s + size / rate
    gather = 3 * inside.latency_s + 0.75 * size / inside.bandwidth_byte_per_s
    part = across.latency_s + size / 4 / rate + gather
    found = [step_parts(one, columns_of(made, 4)).pipeline_s[0] for one in (of, parts)]
    assert found == pytest.approx([2 * whole, 2 * part])
    divided = replace(parts, sequence=True)
    bare = replace(of, sequence=True)
    assert (
        step_parts(divided, columns_of(made, 4)).pipeline_s
        == step_parts(bare, columns_of(made, 4)).pipeline_s
    )


def test_a_tensor_group_sends_four_times_the_activations_of_a_block() -> None:
    _, both = tensor_messages(SMALL, 2, False)
    per_block = 4 * 4 * SMALL.context * SMALL.width  # Shoeybi et al. 2019, §3: four all-reduces
    sent = {size: times for op, size, times in both if op == "all_reduce"}
    assert sent[per_block / 4] >= 4 * SMALL.layers


def test_a_group_on_one_node_is_faster_than_one_across_nodes() -> None:
    links = NominalLinks(TWO_LEVELS, "")
    ranks, size = np.array([4, 4, 4]), np.full(3, 1e8)
    inside, mixed, across = links.time("all_reduce", ranks, np.array([4, 2, 1]), size)
    assert inside < mixed < across


def test_groups_of_one_rank_send_nothing() -> None:
    links = NominalLinks(TWO_LEVELS, "")
    for op in ("all_reduce", "all_gather", "all_to_all", "send_recv_ring"):
        assert links.time(op, np.array([1]), np.array([1]), np.array([1e6]))[0] == 0


def test_a_full_node_has_the_times_of_its_topology() -> None:
    links = NominalLinks(TWO_LEVELS, "")
    for op in ("all_reduce", "all_gather", "all_to_all"):
        found = links.time(op, np.array([4]), np.array([4]), np.array([1e6]))[0]
        assert found == pytest.approx(TWO_LEVELS.time(op, 4, 10**6).time_s)
    both = links.time("all_reduce", np.array([8]), np.array([4]), np.array([1e6]))[0]
    flat, levels = (TWO_LEVELS.time("all_reduce", 8, 10**6, h).time_s for h in (False, True))
    assert both == pytest.approx(min(flat, levels))
