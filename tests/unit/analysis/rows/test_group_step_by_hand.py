"""A group's step, number by number: shards, turns of a ring, and where messages lie in it."""

import math

import pytest

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.group_step import (
    NO_SHARD,
    ON_A_GPU,
    GroupAtOneRank,
    StepAlone,
    group_at_one_rank,
    step_alone,
    turns_of,
)
from scalebench.costmodel.context_layers import AttendingModel
from scalebench.costmodel.group_steps import group_operations
from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.ring_overlap import Turns, ring_requests
from scalebench.costmodel.step import PredictedStep
from scalebench.costmodel.what_if import WhatIf
from scalebench.spec import Context, Tensor
from tests.builders.runs import make_record, make_result
from tests.unit.analysis.rows.test_group_step import FACTS, GPT, MODEL, cell
from tests.unit.analysis.rows.test_prediction import the_link

RING = Context(method="ring")
ATTENDING = AttendingModel.of_preset(GPT, 8)


def shard(step_s, turns=None, second=None):
    """A launch of a shard alone: its first rank tells the turns; a second one is not asked."""
    facts = {} if turns is None else {"context": {"turns_s": turns}}
    ranks = [make_record(0, clean_s=(step_s,) * 4, facts=facts)]
    if second is not None:
        ranks.append(make_record(1, clean_s=(step_s,) * 4, facts={"context": {"turns_s": second}}))
    return make_result(cell(2, purpose="shard"), ranks=ranks)


def test_a_shard_by_itself_is_the_median_of_its_launches():
    assert step_alone([]) is None
    assert step_alone([shard(0.3)]) == StepAlone(pytest.approx(0.3), 0.0)
    found = step_alone([shard(0.1), shard(0.4), shard(0.2)])
    assert found.step_s == pytest.approx(0.2)
    logs = [math.log(s) for s in (0.1, 0.4, 0.2)]
    variance = sum((x - sum(logs) / 3) ** 2 for x in logs) / 2
    assert found.spread == pytest.approx((variance / 3) ** 0.5)


def test_turns_are_medians_over_the_launches_that_timed_them():
    def turn(forward, backward):
        return {"forward": forward, "backward": backward}

    found = turns_of(
        [
            shard(1.0, turn(0.1, 0.5), second=turn(9, 9)),
            shard(1.0),
            shard(1.0, turn(0.3, 0.6)),
            shard(1.0, turn(0.2, 0.9)),
        ]
    )
    assert found == Turns(0.2, 0.6)
    assert turns_of([shard(1.0)]) is None and turns_of([]) is None


def test_a_group_takes_its_shards_launches():
    bare = GroupAtOneRank(ATTENDING)
    assert bare.with_shards([]) is bare
    assert (bare.spread, bare.num_launches, bare.contention) == (0.0, 1, 1.0)
    told = {"forward": 0.1, "backward": 0.2}
    found = bare.with_shards([shard(0.2, told), shard(0.3, told), shard(0.4, told)])
    assert (found.shard_s, found.num_launches) == (pytest.approx(0.3), 3)
    assert found.spread > 0 and found.turns == Turns(0.1, 0.2)


def link(op, world_size, size_bytes):
    return LinkTime(0.001, 0.0005, 0.002, (world_size,))


def test_messages_of_layers_lie_evenly_in_the_step_and_others_behind_it():
    """The n-th of k messages of layers is asked for when n + 1/2 of k parts are done."""
    strategy = Tensor(sequence=True)
    found = GroupAtOneRank(MODEL, shard_s=0.9).shape_of(cell(2, strategy))
    operations = group_operations(strategy, MODEL, 2, 8)
    layers = [op for op in operations if op.phase in ("forward", "backward")]
    behind = [op for op in operations if op.phase not in ("forward", "backward")]
    assert layers and behind
    expected = [
        CommRequest(op.op, op.num_bytes, at, at, op.num_ranks)
        for n, op in enumerate(layers)
        for at in [0.9 * (n + 0.5) / len(layers)]
    ]
    expected += [CommRequest(op.op, op.num_bytes, 0.9, 0.9, op.num_ranks) for op in behind]
    for one, other in zip(found.requests, expected, strict=True):
        assert (one.op, one.size_bytes, one.num_ranks) == (other.op, other.size_bytes, 2)
        assert (one.ready_s, one.needed_s) == pytest.approx((other.ready_s, other.needed_s))
    assert (found.batch_s, found.fixed_s, found.num_samples) == (0.9, 0.0, 8)


def test_a_shape_is_of_a_rank_that_has_the_machine_to_itself():
    crowded = GroupAtOneRank(MODEL, shard_s=0.9, contention=1.5)
    assert crowded.shape_of(cell(2)).computing_s == 0.9
    assert crowded.predict(cell(2), link).computing_s == pytest.approx(1.35)
    assert crowded.predict(cell(2), link, shard_s=0.4).computing_s == pytest.approx(0.6)
    assert GroupAtOneRank(MODEL).predict(cell(2), link, shard_s=0.4).computing_s == 0.4
    for ask in (lambda one: one.shape_of(cell(2)), lambda one: one.predict(cell(2), link)):
        with pytest.raises(NoFit, match=NO_SHARD):
            ask(GroupAtOneRank(MODEL))
    with pytest.raises(NoFit, match="recomputation"):
        crowded.shape_of(cell(2, Tensor(checkpointing=True)))


def test_a_change_is_made_to_the_messages():
    bare = GroupAtOneRank(MODEL, shard_s=0.9)
    whole, half = (
        bare.predict(cell(2), link, what_if).requests for what_if in (WhatIf(), WhatIf(1.0, 16))
    )
    assert [2 * one.size_bytes for one in half] == [one.size_bytes for one in whole]


def test_a_rings_messages_hide_behind_its_turns_beside_others():
    turns = Turns(0.01, 0.02)
    found = GroupAtOneRank(ATTENDING, shard_s=0.9, contention=1.5, turns=turns)
    asked = found.predict(cell(2, RING), link).requests
    handed_on = [one for one in asked if one.op == "send_recv_ring"]
    expected = ring_requests(ATTENDING, 2, 8, turns.slowed(1.5), 1.5 * 0.9)
    assert handed_on == sorted(expected, key=lambda one: one.ready_s)
    assert [one.ready_s for one in asked] == sorted(one.ready_s for one in asked)
    rest = [op for op in group_operations(RING, ATTENDING, 2, 8) if op.op != "send_recv_ring"]
    assert len(asked) == len(expected) + len(rest)
    # Without turns each is waited for where it lies, and counts as any other message.
    waiting = GroupAtOneRank(ATTENDING, shard_s=0.9).predict(cell(2, RING), link).requests
    assert len(waiting) == len(group_operations(RING, ATTENDING, 2, 8))


def test_the_textbook_counts_each_message_in_its_own_group():
    fields = dict.fromkeys(("step_s", "low_s", "high_s", "stalled_s"), 9.0)
    asked = (
        CommRequest("all_reduce", 1_000_000, 0, 0, 2),
        CommRequest("all_reduce", 2_000_000, 0, 0),
    )
    told = PredictedStep(**fields, computing_s=0.7, requests=asked, times=(), world_sizes=())
    links = the_link(2)
    terms = [
        links.bandwidth_term("all_reduce", n, size) for n, size in ((2, 1_000_000), (4, 2_000_000))
    ]
    shard_known = GroupAtOneRank(MODEL, shard_s=0.3)
    assert shard_known.textbook_s(cell(4), told, links) == pytest.approx(0.3 + sum(terms))
    unknown = GroupAtOneRank(MODEL)
    assert unknown.textbook_s(cell(4), told, links) == pytest.approx(0.7 + sum(terms))


def test_the_model_of_a_group_is_told_by_the_first_rank():
    def told(device="cpu", facts=(FACTS, {})):
        ranks = [make_record(rank, facts=own) for rank, own in enumerate(facts)]
        return group_at_one_rank(make_result(cell(2, device=device), ranks=ranks))

    found = told()
    assert (found.model, found.shard_s, found.turns) == (MODEL, None, None)
    with pytest.raises(Unavailable, match=ON_A_GPU):
        told("cuda")
    with pytest.raises(Unavailable):
        told(facts=({}, FACTS))
