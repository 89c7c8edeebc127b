"""The rules of the space, each on both sides of its boundary."""

from dataclasses import replace

import numpy as np
import pytest

from scalebench.costmodel.pipelines.orders import why_not
from scalebench.costmodel.search.job import SCHEDULES, Job
from scalebench.costmodel.search.space import (
    Mesh,
    _context_methods,
    candidates,
    divisors,
    joined,
    meshes,
    order_names,
    order_number,
    placements,
    refused_meshes,
    why_no_mesh,
    why_not_mesh,
)
from tests.unit.costmodel.search.jobs import ROUTED, SMALL, job

TENSOR = "tensor does not divide heads or vocabulary"
CONTEXT = "context does not divide heads or tokens, or the model has experts"
STAGES = "more stages than layers"
BATCH = "data, shard and expert ranks do not divide the batch"
SAMPLES = "fewer samples than stages, so no schedule fills the pipeline"
EXPERTS = "expert ranks do not divide the experts"


def mesh(**sizes: int) -> Mesh:
    return Mesh(**{**dict.fromkeys(Mesh._fields, 1), **sizes})


@pytest.mark.parametrize(
    ("sizes", "changes", "expected"),
    [
        ({}, {}, None),
        ({"tensor": 3}, {}, None),
        ({"tensor": 4}, {}, TENSOR),  # divides 32 rows and not six heads
        ({"tensor": 3}, {"vocabulary": 32}, TENSOR),
        ({"context": 3}, {"context": 9}, None),  # heads are exchanged
        ({"context": 4}, {"context": 16}, None),  # a ring of two pieces on each rank
        ({"context": 4}, {"context": 12}, CONTEXT),
        ({"context": 2}, {"context": 9}, CONTEXT),
        ({"context": 3, "tensor": 2}, {"context": 9}, None),
        ({"context": 3, "tensor": 3}, {"context": 9}, CONTEXT),
        ({"context": 3, "tensor": 3}, {"context": 18}, None),
        ({"context": 3}, {"context": 9, "experts": 2}, CONTEXT),
        ({"pipeline": 4}, {}, None),
        ({"pipeline": 5}, {}, STAGES),
        ({"data": 2, "shard": 3}, {}, None),
        ({"data": 3, "shard": 3}, {}, BATCH),
        ({"data": 2, "shard": 4}, {}, BATCH),
        ({"data": 2, "shard": 2, "expert": 2}, {"experts": 6}, BATCH),
        ({"data": 2, "shard": 3, "expert": 2}, {"experts": 6}, None),
        ({"pipeline": 4, "data": 3}, {}, None),
        ({"pipeline": 4, "data": 2, "shard": 2}, {}, SAMPLES),
        ({"pipeline": 3, "data": 2, "shard": 2}, {}, None),
        ({"pipeline": 2, "data": 12}, {}, SAMPLES),
        ({"pipeline": 2, "data": 2, "expert": 3}, {"experts": 6}, None),
        ({"pipeline": 3, "data": 2, "expert": 3}, {"experts": 6}, SAMPLES),
        ({"expert": 3}, {"experts": 6}, None),
        ({"expert": 4}, {"experts": 6}, EXPERTS),
    ],
)
def test_what_a_mesh_has_to_divide(
    sizes: dict[str, int], changes: dict[str, int], expected: str | None
) -> None:
    model = {"heads": 6, "context": 18, "vocabulary": 96, "layers": 4} | changes
    of = job(1, 12, model=replace(SMALL, **model))
    assert why_not_mesh(of, mesh(**sizes)) == expected


def test_every_product_is_a_mesh_and_experts_only_of_a_mixture() -> None:
    """Of five ranks one axis has all; of one rank none."""
    wide = {"heads": 5, "vocabulary": 5, "context": 10, "layers": 5}
    five = job(5, 25, model=replace(SMALL, **wide))
    dense = {"tensor", "context", "shard", "data", "pipeline"}
    assert meshes(five) == sorted(mesh(**{axis: 5}) for axis in dense)
    routed = replace(five, model=replace(ROUTED, **wide, experts=5))
    assert meshes(routed) == sorted(mesh(**{axis: 5}) for axis in dense - {"context"} | {"expert"})
    assert meshes(replace(routed, axes=("expert", "shard"))) == [mesh(shard=5), mesh(expert=5)]
    assert meshes(replace(five, axes=("expert", "data"))) == [mesh(data=5)]
    assert meshes(job(1)) == [mesh()]


@pytest.mark.parametrize(("n", "near"), [(7, 5), (6, 5), (4, 1), (2, 1)])
def test_where_no_mesh_has_so_many_ranks_the_nearest_number_below_is_told(n: int, near: int):
    of = job(n, 3, model=replace(SMALL, heads=5, vocabulary=15, context=9), axes=("tensor",))
    assert why_no_mesh(of) == (
        f"--gpus {n}: no mesh divides the job into so many parts: small has 5 heads, 4 layers and "
        f"9 tokens a sample, and the global batch has 3 samples. Give --gpus {near}, or another "
        "--batch-size."
    )


@pytest.mark.parametrize(
    ("tensor", "context", "tokens", "methods"),
    [
        (1, 1, 7, [0]),
        (3, 1, 7, [0]),
        (1, 2, 8, [0, 1]),
        (1, 2, 6, [0]),  # a ring has two pieces on each rank
        (3, 2, 6, [0]),
        (2, 2, 8, [1]),  # six heads are no four groups
        (2, 2, 6, []),
        (1, 2, 7, []),
    ],
)
def test_heads_are_exchanged_or_keys_passed_around(
    tensor: int, context: int, tokens: int, methods: list[int]
) -> None:
    model = replace(SMALL, heads=6, context=tokens)
    assert _context_methods(job(model=model), tensor, context) == methods
    routed = _context_methods(job(model=replace(model, experts=2)), tensor, context)
    assert routed == ([0] if context == 1 else [])


def test_meshes_with_experts_are_not_even_refused_without_a_mixture() -> None:
    assert EXPERTS not in refused_meshes(job(4, 8))
    assert refused_meshes(job(3, 6, model=ROUTED))[EXPERTS] == 1


def test_divisors_and_orders() -> None:
    assert [divisors(n) for n in (1, 2, 7, 12)] == [[1], [1, 2], [1, 7], [1, 2, 3, 4, 6, 12]]
    assert order_number([3, 0, 4]) == 1304 and order_number([]) == 1
    assert order_names(1304) == ["shard", "tensor", "data"] and order_names(1) == []


@pytest.mark.parametrize(
    ("sizes", "node", "expected"),
    [
        # Two tensor ranks leave room for two replicas; three shards do not divide any room.
        ({"tensor": 2, "shard": 3, "data": 2}, 4,
         {(2, 1, 1, 1, 1, 1): (0, 3, 4), (2, 1, 1, 1, 2, 1): (0, 4, 3),
          (1, 1, 1, 1, 1, 1): (3, 0, 4), (1, 1, 1, 1, 2, 1): (4, 3, 0)}),
        ({"data": 3}, 8, {(1, 1, 1, 1, 3, 1): (4,)}),  # a node that they do not fill
        ({"data": 6}, 4, {(1, 1, 1, 1, 2, 1): (4,)}),
        ({"data": 2, "pipeline": 2}, 1, {(1, 1, 1, 1, 1, 1): (4, 5)}),
        ({}, 4, {(1, 1, 1, 1, 1, 1): ()}),
    ],
)  # fmt: skip
def test_placements_that_differ_and_the_most_usual_order_of_each(
    sizes: dict[str, int], node: int, expected: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert list(placements(mesh(**sizes), node)) == list(expected.items())


DEEP = replace(SMALL, layers=9)


@pytest.mark.parametrize(
    "of",
    [job(4, 20), job(4, 28), job(3, 15), job(4, 20, model=DEEP)],
    ids=["20", "28", "15", "deep"],
)
def test_a_cut_is_there_for_each_schedule_that_can_run_it(of: Job) -> None:
    """Batches with factors of 5 and 7: not all of their cuts make equal rounds."""
    every = joined(list(candidates(of, meshes(of))))
    staged = every.take(every.pipeline > 1)
    columns = (staged.schedule, staged.pipeline, staged.microbatches, staged.chunks,
               of.batch // staged.replicas)  # fmt: skip
    found = {tuple(map(int, row)) for row in zip(*columns, strict=True)}
    expected = set()
    for _, p, _, _, batch in found:
        for number, name in enumerate(SCHEDULES[1:], 1):
            for v in (2, 4) if name in ("interleaved-1f1b", "looped-bfs") else (1,):
                for m in divisors(batch):
                    rounds = name != "interleaved-1f1b" or m % p == 0  # as Narayanan et al. have it
                    fine = rounds and m >= p and p * v <= of.model.layers
                    if fine and why_not(name, p, m, v) is None:
                        expected.add((number, p, m, v, batch))
    assert found == expected


def test_a_kind_of_mesh_is_one_chunk_unless_it_is_too_large() -> None:
    """With stages or without, with shards or without, and with neither nor groups, with buckets."""
    of = job(4, 8)
    whole = list(candidates(of, meshes(of)))
    assert len(whole) == 6  # one more without stages, for buckets, with shards and without
    small = list(candidates(of, meshes(of), chunk=1))
    for some in small:
        columns = ("tensor", "context", "shard", "data", "pipeline", "near_tensor", "near_data",
                   "near_shard", "near_pipeline", "near_context", "microbatches")  # fmt: skip
        assert all(len(np.unique(getattr(some, name))) == 1 for name in columns)
    assert sum(map(len, small)) == sum(map(len, whole))
    # With buckets and without stages or shards: three of checkpointing, two precisions, three
    # buckets and two ways to divide a sequence are 36: of one mesh two cuts are a chunk of 100.
    data = [mesh(data=4)]
    assert [len(some) for some in candidates(of, data, chunk=100)] == [18 * 2]
    assert [len(some) for some in candidates(job(4, 24), data, chunk=100)] == [36, 36]
    assert [len(some) for some in candidates(job(4, 24), data, chunk=71)] == [18] * 4


@pytest.mark.parametrize(
    ("axis", "buckets"),
    [
        ("data", {(0, 1.0), (0, 5.0), (0, 25.0)}),
        ("expert", {(0, 1.0), (0, 5.0), (0, 25.0)}),
        ("shard", {(1, 1.0), (1, 5.0), (1, 25.0), (2, 25.0), (3, 25.0)}),
        ("tensor", {(0, 25.0)}),
        ("pipeline", {(0, 25.0)}),
    ],
)
def test_buckets_are_tried_where_whole_replicas_sum_gradients(
    axis: str, buckets: set[tuple[int, float]]
) -> None:
    made = joined(list(candidates(job(4, 8, model=ROUTED), [mesh(**{axis: 4})])))
    assert set(zip(made.zero.tolist(), made.bucket_mb.tolist(), strict=True)) == buckets
