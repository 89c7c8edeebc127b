"""Meshes as data: which products make up the ranks, and why others do not."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench.spec import AXES, Mesh
from scalebench.spec.presets import GptShape, divisible

few = st.integers(1, 3)
outer = few | st.none()


@st.composite
def meshes(draw):
    return Mesh(
        pipeline=draw(few),
        data=draw(outer),
        shard=draw(outer),
        context=draw(few),
        tensor=draw(few),
        order=draw(st.permutations(AXES)),
    )


@given(mesh=meshes(), world_size=st.integers(2, 24))
def test_a_mesh_has_every_rank_once_or_is_refused(mesh, world_size):
    sizes = mesh.axis_sizes(world_size)
    if mesh.why_not("cpu", world_size) is not None:
        return
    assert prod(sizes.values()) == world_size
    for axis in AXES:
        assert getattr(mesh, axis) in (None, sizes[axis])
    places = [mesh.coordinates(rank, world_size) for rank in range(world_size)]
    assert len({tuple(place.values()) for place in places}) == world_size
    assert all(place[axis] < sizes[axis] for place in places for axis in AXES)


@given(mesh=meshes(), world_size=st.integers(2, 24), axes=st.sets(st.sampled_from(AXES)))
def test_ranks_of_a_group_differ_along_its_dimensions_alone(mesh, world_size, axes):
    if mesh.why_not("cpu", world_size) is not None:
        return
    groups = mesh.groups_along(world_size, *axes)
    sizes = mesh.axis_sizes(world_size)
    assert {len(group) for group in groups} == {prod(sizes[axis] for axis in axes)}
    assert sorted(rank for group in groups for rank in group) == [*range(world_size)]
    for group in groups:
        places = [mesh.coordinates(rank, world_size) for rank in group]
        others = {tuple(place[axis] for axis in AXES if axis not in axes) for place in places}
        assert len(others) == 1


@pytest.mark.parametrize(
    ("mesh", "world_size", "said"),
    [
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
    ],
)
def test_what_does_not_make_up_the_ranks_is_named(mesh, world_size, said):
    reason = mesh.why_not("cpu", world_size)
    assert reason is None if said is None else said in reason


def test_compiled_blocks_with_a_divided_sequence_are_refused_as_in_tensor_groups():
    assert "--no-compile" in Mesh(tensor=2, sequence=True, compile=True).why_not("cuda", 2)
    assert "--no-compile" in Mesh(tensor=2, sequence=True, compile=True).why_not("cuda", 1)


@pytest.mark.parametrize(
    ("mesh", "n", "said"),
    [
        (Mesh(tensor=2, context=2), 4, None),
        (Mesh(tensor=2, context=4), 8, "2 (heads) cannot be divided among 4 ranks"),
        (Mesh(tensor=2, context=4, method="ring"), 8, None),
        (Mesh(tensor=3), 3, "4 (heads) cannot be divided among 3 ranks"),
        (Mesh(context=2, tensor=4, sequence=True), 8, "2 (tokens) cannot be divided among 4 ranks"),
        (Mesh(pipeline=5, microbatches=5), 5, "4 layers, with the embedding and the output, for 5"),
        (Mesh(pipeline=2, chunks=3, schedule="interleaved-1f1b"), 2, "for 6 stages"),
    ],
)
def test_dimensions_that_do_not_divide_a_model_are_named(mesh, n, said):
    context = 4 if mesh.sequence else 16
    shape = GptShape(name="g", layers=2, heads=4, width=32, context=context, batch_size=8)
    reason = mesh.why_not_divided(divisible(shape), n)
    assert reason is None if said is None else said in (reason or "")


def test_an_order_names_every_dimension_once():
    with pytest.raises(ValidationError, match="order names data, tensor; name each of pipeline"):
        Mesh(order=("data", "tensor"))
    with pytest.raises(ValidationError, match="1f1b has 1 stage per rank"):
        Mesh(pipeline=2, chunks=2)
