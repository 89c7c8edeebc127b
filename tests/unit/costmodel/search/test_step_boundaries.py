"""Steps at the boundaries of their formulas: free links, one rank, one layer, two shards."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from scalebench.costmodel.search.choice import Choice, columns_of
from scalebench.costmodel.search.job import Recomputing
from scalebench.costmodel.search.space import Floats, Ints, candidates, joined, meshes
from scalebench.costmodel.search.step.exchanges import _behind_first_chunks
from scalebench.costmodel.search.step.hiding import hidden_behind
from scalebench.costmodel.search.step.hops import exposed_hops, exposed_hops_s
from scalebench.costmodel.search.step.parts import bound_s, step_parts
from scalebench.costmodel.search.step.passes import Passes, filling_passes, passes_of
from tests.unit.costmodel.search.jobs import ROUTED, SMALL, SPEED, job


@dataclass(frozen=True)
class EqualLinks:
    """Every operation of several ranks takes as long, whatever it sends."""

    each_s: float
    ranks_per_node: int = 4
    told: str = "a test"

    def time(self, op: str, ranks: Ints, near: Ints, size_bytes: Floats) -> Floats:
        return np.where(ranks > 1, self.each_s, 0.0)


@pytest.mark.parametrize("model", [SMALL, ROUTED], ids=["dense", "routed"])
def test_the_bound_is_the_step_on_links_that_cost_nothing(model: object) -> None:
    speed = replace(SPEED, split_s=2e-4, axis_s={"pipeline": 3e-4, "shard": 1e-4})
    of = job(8, 16, model=model, links=EqualLinks(0.0), speed=speed)
    every = joined(list(candidates(of, meshes(of))))
    assert bound_s(of, every) == pytest.approx(step_parts(of, every).step_s, rel=1e-12)


def test_without_stages_there_is_no_bubble_and_no_message_between_them() -> None:
    of = columns_of([Choice(data=3, microbatches=m) for m in (1, 5)])
    passes = Passes(*(np.array([1.0, 1.0]) for _ in range(3)))
    assert exposed_hops(of).tolist() == filling_passes(of).tolist() == [0, 0]
    assert exposed_hops_s(of, np.array([7.0, 7.0]), passes).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("p", "v", "m", "each_s", "expected"),
    [
        # A rank between two others sends 4 messages a microbatch: 32 of 5 s behind passes of 24 s.
        (4, 2, 8, 5.0, 32 * 5 - 24 * 31 / 32),
        (3, 1, 6, 5.0, 12 * 5 - 18 * 11 / 12),
        (4, 2, 8, 0.1, 14 * 0.1),  # short ones: when the pipeline fills and empties
        (3, 3, 3, 5.0, 18 * 5 - 9 * 17 / 18),
    ],
)
def test_messages_of_a_rank_between_two_others(
    p: int, v: int, m: int, each_s: float, expected: float
) -> None:
    of = columns_of(
        [Choice(data=1, pipeline=p, schedule="interleaved-1f1b", chunks=v, microbatches=m)]
    )
    passes = Passes(np.array([1.0]), np.array([2.0]), np.array([1.0]))
    assert exposed_hops_s(of, np.array([each_s]), passes)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("parts", "each_s", "window_s", "expected"),
    [
        (1, 3.0, 100.0, 3.0),  # one operation starts at the end
        (2, 3.0, 2.0, 5.0),  # the first starts after 1 s, and both take 6 s
        (2, 3.0, 6.0, 3.0),
        (2, 3.0, 5.9, 6 - 2.95),
        (5, 3.0, 10.0, 7.0),
        (5, 3.0, 100.0, 3.0),
    ],
)
def test_what_is_left_of_operations_behind_a_window(
    parts: int, each_s: float, window_s: float, expected: float
) -> None:
    found = hidden_behind(np.array([parts]), np.array([each_s]), np.array([window_s]))
    assert found[0] == pytest.approx(expected)


@pytest.mark.parametrize(("layers", "zero", "operations"), [
    (1, 1, 1), (1, 2, 2 + 2), (1, 3, 2 + 2 + 2), (3, 2, 4 + 4), (3, 3, 4 + 4 + 4),
])  # fmt: skip
def test_two_shards_of_few_layers_gather_each_and_what_lies_around(
    layers: int, zero: int, operations: int
) -> None:
    of = job(2, 6, model=replace(SMALL, layers=layers), links=EqualLinks(1.0))
    made = columns_of([Choice(data=1, shard=2, zero=zero)])
    assert step_parts(of, made).shard_s[0] == pytest.approx(operations)


def test_two_replicas_reduce_their_gradients_and_one_has_nothing_to_reduce() -> None:
    slow = replace(SPEED, flop_s={"float32": 1.0})  # all buckets but the last hide
    of = job(2, 6, links=EqualLinks(1.0), speed=slow)
    made = [Choice(data=2), Choice(data=1), Choice(data=1, tensor=2), Choice(data=2, bucket_mb=1)]
    assert step_parts(of, columns_of(made)).data_s.tolist() == [1, 0, 0, 1]


def test_only_replicas_alone_have_buckets() -> None:
    """Computing takes no time, so that all buckets of 0.1 MiB are late."""
    fast = replace(SPEED, flop_s={"float32": 1e-30}, pass_s=0.0)
    of = job(4, 8, links=EqualLinks(1.0), speed=fast)
    alone = [Choice(data=4, bucket_mb=0.1), Choice(data=2, shard=2, zero=1, bucket_mb=0.1)]
    number = math.ceil(4 * SMALL.num_parameters / (0.1 * 2**20))
    assert step_parts(of, columns_of(alone)).data_s == pytest.approx([number] * 2)
    others = [
        Choice(data=2, shard=2, zero=zero, bucket_mb=0.1) for zero in (2, 3)
    ] + [
        Choice(data=2, tensor=2, bucket_mb=0.1),
        Choice(data=2, context=2, bucket_mb=0.1),
        Choice(data=2, pipeline=2, schedule="gpipe", microbatches=2, bucket_mb=0.1),
    ]  # fmt: skip
    assert step_parts(of, columns_of(others)).data_s.tolist() == [1] * 5


def test_copies_of_experts_are_reduced_beside_all_else() -> None:
    of = job(4, 8, model=ROUTED, links=EqualLinks(1.0))
    made = [
        Choice(data=2, expert=2, tensor=1, pipeline=2, schedule="gpipe", microbatches=2),
        Choice(data=1, expert=4, pipeline=2, schedule="gpipe", microbatches=2),
        Choice(data=2, expert=1, pipeline=2, schedule="gpipe", microbatches=2),
    ]
    assert step_parts(of, columns_of(made)).data_s.tolist() == [2, 1, 2]


def test_passes_of_a_microbatch_by_hand() -> None:
    """Of 6 samples a second each in forward; half of the layers; 0.6 s of starting, 0.2 s of split.

    Full checkpointing computes 1.5 forward passes and 0.4 s of the whole model again.
    """
    flops = np.array([1e12] * 4)
    speed = replace(SPEED, pass_s=0.6, split_s=0.2, axis_s={"pipeline": 0.3},
                    recomputing={"full": Recomputing(1.5, 0.4)})  # fmt: skip
    of = job(2, 6, model=replace(SMALL, layers=6), speed=speed)
    made = [
        Choice(data=1, pipeline=2, schedule="gpipe"),
        Choice(data=1, pipeline=2, schedule="gpipe", checkpointing="full"),
        Choice(data=1, pipeline=2, schedule="zero-bubble"),
        Choice(data=1, pipeline=2, schedule="zero-bubble", checkpointing="full"),
    ]
    found = passes_of(of, columns_of(made), np.array([3.0] * 4), flops)
    start = 0.6 / 2 + 0.3
    once = 1.5 * 6 + 0.4 / 2
    assert found.forward_s == pytest.approx([6 + start / 3] * 4)
    bare = 12 + 2 * start / 3
    assert found.backward_s == pytest.approx([bare, bare + once, bare + 0.1, bare + 7 * once + 0.1])
    assert found.weights_s == pytest.approx([6, 6, 6.05, 6 + 6 * once + 0.05])


@pytest.mark.parametrize(
    ("v", "p", "m", "blocks", "gather_s", "forward_s", "expected"),
    [
        # Two of five blocks are the first chunk's: the second is late by what half a chunk's pass
        # of 1.75 s does not hide; the others come 0.5 s before they are needed.
        (2, 2, 4, 5, 1.0, 3.5, 2 - 1.75 / 2),
        # Gathers of 2 s: all five are late, two microbatches have passed the first chunk before.
        (2, 2, 4, 5, 2.0, 3.5, 10 - 2 * 1.75 - 1.75 / 2),
        (2, 4, 3, 5, 2.0, 1.0, 10 - 3 * 0.5 - 0.5 / 2),  # three microbatches are all there are
        (2, 3, 9, 5, 2.0, 1.0, 10 - 3 * 0.5 - 0.5 / 2),
        (1, 2, 4, 5, 1.0, 3.5, 5 - 3.5 * 4 / 5),  # one chunk: all blocks are its own
        (4, 2, 4, 3, 1.0, 1.0, 3 - 3 * 2 * 0.25),  # fewer blocks than chunks
        (2, 2, 4, 5, 1.0, 100.0, 1.0),  # the first block is always waited for
    ],
)
def test_gathers_of_a_pipelines_first_rank_by_hand(
    v: int, p: int, m: int, blocks: int, gather_s: float, forward_s: float, expected: float
) -> None:
    of = columns_of([Choice(data=1, pipeline=p, chunks=v, microbatches=m)])
    found = _behind_first_chunks(
        of, np.array([blocks]), np.array([gather_s]), np.array([forward_s])
    )
    assert found[0] == pytest.approx(expected)
