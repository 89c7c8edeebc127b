"""Choices as records and as columns, field by field."""

from dataclasses import fields, replace

import numpy as np
import pytest

from scalebench.costmodel.search.choice import Choice, choice_at, choices, columns_of
from scalebench.costmodel.search.ranking import Found
from scalebench.costmodel.search.space import Candidates
from scalebench.costmodel.search.step.parts import StepParts
from tests.unit.costmodel.search.jobs import SMALL, SPEED, job

ONE = Choice(
    data=5, shard=6, expert=7, context=8, tensor=9, pipeline=10, zero=2, schedule="looped-bfs",
    chunks=4, microbatches=11, checkpointing="selective", precision="bfloat16", bucket_mb=2.5,
    context_method="ring", placement=("data", "pipeline", "tensor", "context", "shard", "expert"),
)  # fmt: skip
OTHER = Choice(
    data=3, tensor=2, context=1, schedule="none", checkpointing="full", bucket_mb=25.0,
    placement=("data", "tensor"),
)  # fmt: skip

COLUMNS = {
    "tensor": (9, 2), "context": (8, 1), "expert": (7, 1), "shard": (6, 1), "data": (5, 3),
    "pipeline": (10, 1),
    # Of 60 ranks a node, five replicas leave room for 12, ten stages two of which share a node.
    "near_tensor": (1, 2), "near_context": (1, 1), "near_expert": (1, 1), "near_shard": (1, 1),
    "near_data": (5, 3), "near_pipeline": (2, 1),
    "order": (1450132, 140), "zero": (2, 0), "schedule": (4, 0), "chunks": (4, 1),
    "microbatches": (11, 1), "checkpointing": (1, 2), "precision": (1, 0),
    "bucket_mb": (2.5, 25.0), "ring": (1, 0),
}  # fmt: skip


def test_choices_as_columns_and_back() -> None:
    made = columns_of([ONE, OTHER], 60)
    found = {f.name: tuple(getattr(made, f.name).tolist()) for f in fields(Candidates)}
    assert found == COLUMNS
    assert [choice_at(made, i) for i in range(2)] == [ONE, OTHER]


@pytest.mark.parametrize(
    ("placement", "room", "near"),
    [
        ((), 1, (1, 1, 1)),
        ((), 4, (4, 1, 1)),
        ((), 6, (2, 1, 1)),  # two of four share a node, and nothing is left
        ((), 12, (4, 3, 1)),
        ((), 24, (4, 3, 2)),
        ((), 48, (4, 3, 2)),
        (("data",), 8, (4, 1, 2)),
        (("shard", "data"), 6, (1, 3, 2)),
        (("shard", "data"), 12, (2, 3, 2)),
    ],
)
def test_axes_fill_a_node_from_the_first_of_their_placement_on(
    placement: tuple[str, ...], room: int, near: tuple[int, int, int]
) -> None:
    made = columns_of([Choice(data=2, shard=3, zero=1, tensor=4, placement=placement)], room)
    assert (made.near_tensor[0], made.near_shard[0], made.near_data[0]) == near
    assert (made.near_context[0], made.near_expert[0], made.near_pipeline[0]) == (1, 1, 1)


def test_without_nodes_no_ranks_share_one() -> None:
    made = columns_of([ONE])
    assert {int(getattr(made, f.name)[0]) for f in fields(made) if "near" in f.name} == {1}
    assert columns_of([Choice(data=2, tensor=2)]).order[0] == 104  # the usual placement


PARTS = StepParts(*(np.array([number, 10.0 * number]) for number in range(1, 10)))
FOUND = Found(columns_of([ONE, OTHER]), PARTS, np.array([70.0, 80.0]))


def test_found_candidates_as_records() -> None:
    """Parts of 1 to 9 s, and ten times that."""
    bfloat16_alone = replace(SPEED, peak_flops={"bfloat16": 1e13})
    of = job(8, 24, speed=bfloat16_alone)
    one, other = choices(of, FOUND)
    parts = dict(zip((f.name for f in fields(StepParts)), range(1, 10), strict=True))
    told = {"step_s": 45.0, "parts_s": parts, "memory_bytes": 70.0}
    mfu = SMALL.flops_per_sample * 24 / 45 / (8 * 1e13)
    assert one == ONE.model_copy(update={**told, "mfu": pytest.approx(mfu)})
    assert other.mfu is None, "the peak of float32 is not known"
    assert (other.step_s, other.memory_bytes, other.parts_s["data_s"]) == (450.0, 80.0, 80.0)


def test_a_mesh_has_its_axes_from_the_outside_in_and_the_stage() -> None:
    assert ONE.mesh == (5, 6, 7, 8, 9, 10, 2)


@pytest.mark.parametrize(
    ("choice", "mesh", "how", "name"),
    [
        (
            ONE,
            "data 5 × shard 6 (ZeRO-2) × expert 7 × context 8 × tensor 9 × pipeline 10",
            "looped-bfs v=4, 11 microbatches, ring, selective checkpointing, bfloat16",
            "d5-s6-e7-c8-t9-p10-z2-looped-bfs-v4-ring-m11-selective-bf16",
        ),
        (
            Choice(data=2, shard=2, expert=2, zero=1, bucket_mb=0.5, microbatches=2),
            "data 2 × shard 2 (ZeRO-1) × expert 2",
            "2 microbatches, float32, buckets 0.5 MiB",
            "d2-s2-e2-z1-m2-b0-5",
        ),
        (
            Choice(data=1, shard=2, zero=2),
            "shard 2 (ZeRO-2)",
            "float32",
            "s2-z2",
        ),
        (
            Choice(data=1, context=2, pipeline=2, schedule="gpipe", chunks=1),
            "context 2 × pipeline 2",
            "gpipe, ulysses, float32",
            "c2-p2-gpipe-ulysses",
        ),
    ],
)
def test_a_configuration_in_words(choice: Choice, mesh: str, how: str, name: str) -> None:
    assert (choice.mesh_words, choice.how_words, choice.name) == (mesh, how, name)


@pytest.mark.parametrize(
    "axes", [("context", "tensor"), ("tensor", "pipeline"), ("context", "pipeline")]
)
def test_with_two_kinds_of_groups_gradients_do_not_go_in_buckets(axes: tuple[str, str]) -> None:
    assert not Choice(data=2, **dict.fromkeys(axes, 2)).replicates_alone


@pytest.mark.parametrize("axis", ["shard", "expert"])
def test_replicas_of_two_kinds_send_their_gradients_in_buckets(axis: str) -> None:
    assert Choice(data=2, zero=axis == "shard", **{axis: 2}).replicates_alone
    assert Choice(data=1, zero=axis == "shard", **{axis: 2}).replicates_alone


def test_a_bare_choice_is_one_rank_that_keeps_everything() -> None:
    assert Choice(data=1) == Choice(
        data=1, shard=1, expert=1, context=1, tensor=1, pipeline=1, zero=0, schedule="none",
        chunks=1, microbatches=1, checkpointing="none", precision="float32", bucket_mb=25.0,
        context_method="ulysses", placement=(), step_s=0.0, parts_s={}, memory_bytes=0.0, mfu=None,
    )  # fmt: skip
