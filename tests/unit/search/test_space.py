"""The space is what trying every number finds, written as plain loops."""

from dataclasses import fields, replace
from itertools import permutations, product
from math import gcd, prod

import pytest

from scalebench.search.job import Job
from scalebench.search.space import Candidates, candidates, joined, meshes, refused_meshes
from tests.unit.search.jobs import ROUTED, SMALL, SPEED, job

ONE_SPEED = replace(SPEED, flop_s={"bfloat16": 1e-12})
JOBS = {
    "dense": job(8, 12),
    "odd": job(6, 12, model=replace(SMALL, heads=6, kv_heads=6, context=24, layers=5)),
    "routed": job(8, 8, model=ROUTED, speed=ONE_SPEED, zero_stages=(2,)),
    "some axes": job(8, 16, axes=("shard", "data"), buckets_mb=(2.0,), checkpointing=("full",)),
}
SIZES = range(1, 9)


def all_meshes(of: Job) -> list[tuple[int, ...]]:
    model, found = of.model, []
    for t, c, e, s, d, p in product(SIZES, repeat=6):
        sizes = {"tensor": t, "context": c, "expert": e, "shard": s, "data": d, "pipeline": p}
        split = model.heads % (t * c) == 0 or model.context % (2 * c) == 0
        if (
            t * c * e * s * d * p == of.world_size
            and all(size == 1 or axis in of.axes for axis, size in sizes.items())
            and model.heads % t == 0 == model.vocabulary % t
            and (c == 1 or (model.experts == 1 and model.context % c == 0 and split))
            and (e == 1 or (model.experts > 1 and model.experts % e == 0))
            and p <= model.layers
            and of.batch % (d * s * e) == 0
            and (p == 1 or of.batch // (d * s * e) >= p)
        ):
            found.append((t, c, e, s, d, p))
    return found


def nearest(mesh: tuple[int, ...], node: int) -> set[tuple[int, ...]]:
    """Return how many ranks of each axis can share a node, by every order of the axes."""
    found = set()
    for order in permutations([axis for axis in range(6) if mesh[axis] > 1]):
        near, room = [1] * 6, min(node, prod(mesh))
        for axis in order:
            near[axis] = gcd(mesh[axis], room)
            room = room // near[axis] if near[axis] == mesh[axis] else 1
        found.add(tuple(near))
    return found


SCHEDULES = [(1, 1), (2, 1), (3, 2), (3, 4), (4, 2), (4, 4), (5, 1)]
"""gpipe, 1f1b, interleaved-1f1b, looped-bfs, zero-bubble, with stages on each rank."""


def all_rows(of: Job) -> set[tuple[float, ...]]:
    model, found = of.model, set()
    kept = [("none", "selective", "full").index(name) for name in of.checkpointing]
    precisions = [i for i, n in enumerate(("float32", "bfloat16")) if n in of.speed.flop_s]
    for mesh in all_meshes(of):
        t, c, e, s, d, p = mesh
        batch = of.batch // (d * s * e)
        cuts = [m for m in range(1, batch + 1) if batch % m == 0]
        methods = [0] * (model.heads % (t * c) == 0 or c == 1)
        methods += [1] * (c > 1 and model.context % (2 * c) == 0)
        for near, m, zero, (schedule, v), method in product(
            nearest(mesh, of.links.ranks_per_node), cuts, of.zero_stages if s > 1 else (0,),
            SCHEDULES if p > 1 else [(0, 1)], methods,
        ):  # fmt: skip
            if p > 1 and (m < p or p * v > model.layers or (schedule == 3 and m % p)):
                continue
            alone = t == c == p == 1 and e * s * d > 1
            buckets = of.buckets_mb if alone else (25.0,)
            buckets = [b for b in buckets if zero <= 1 or b == 25]
            for how in product(kept, precisions, buckets):
                if p > 1 and schedule == 5 and how[0] == 1:  # zero-bubble is never selective
                    continue
                found.add((*mesh, *near, zero, schedule, v, m, *how, method))
    return found


@pytest.mark.parametrize("name", JOBS)
def test_the_meshes_are_those_of_plain_loops(name: str) -> None:
    of = JOBS[name]
    assert [tuple(mesh) for mesh in meshes(of)] == sorted(all_meshes(of))


@pytest.mark.parametrize("name", JOBS)
def test_every_candidate_is_there_once_and_no_other(name: str) -> None:
    of = JOBS[name]
    made = joined(list(candidates(of, meshes(of))))
    columns = [getattr(made, f.name) for f in fields(Candidates) if f.name != "order"]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert len(rows) == len(set(rows))
    assert set(rows) == all_rows(of)


def test_refused_meshes_are_counted_by_reason() -> None:
    of = job(4, 2, model=replace(SMALL, layers=1), axes=("tensor", "data", "pipeline"))
    assert refused_meshes(of) == {
        "more stages than layers": 3,
        "data, shard and expert ranks do not divide the batch": 1,
    }
