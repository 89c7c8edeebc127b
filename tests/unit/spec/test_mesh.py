"""Meshes as data: which products make up the ranks, and why others do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec import Mesh

outer = st.integers(1, 4) | st.none()


@given(data=outer, shard=outer, tensor=st.integers(1, 4), world_size=st.integers(2, 16))
def test_a_mesh_has_every_rank_once_or_is_refused(data, shard, tensor, world_size):
    mesh = Mesh(data=data, shard=shard, tensor=tensor)
    if mesh.why_not("cpu", world_size) is None:
        groups = mesh.num_shards(world_size)
        assert groups * mesh.ranks_per_group(world_size) == world_size
        assert mesh.ranks_per_shard_group(world_size) == (1 if shard == 1 else groups)
        assert (shard if shard != 1 else data) in (None, groups)


@pytest.mark.parametrize(
    ("mesh", "world_size", "said"),
    [
        (Mesh(tensor=2), 4, None),
        (Mesh(data=2, tensor=2), 4, None),
        (Mesh(shard=None, tensor=2), 2, None),
        (Mesh(data=2, tensor=2), 1, None),
        (Mesh(tensor=2), 3, "tensor=2 do not make 3 ranks; choose numbers whose product is that"),
        (Mesh(data=2, tensor=2), 8, "data=2 and tensor=2 do not make 8 ranks"),
        (Mesh(shard=4, tensor=2), 4, "shard=4 and tensor=2 do not make 4 ranks"),
        (Mesh(data=2, shard=2), 4, "data and shard cannot be combined yet"),
    ],
)
def test_what_does_not_make_up_the_ranks_is_named(mesh, world_size, said):
    reason = mesh.why_not("cpu", world_size)
    assert reason is None if said is None else said in reason


def test_compiled_blocks_with_a_divided_sequence_are_refused_as_in_tensor_groups():
    assert "--no-compile" in Mesh(tensor=2, sequence=True, compile=True).why_not("cuda", 2)
    assert "--no-compile" in Mesh(tensor=2, sequence=True, compile=True).why_not("cuda", 1)


def test_a_mesh_on_one_rank_is_a_single_group():
    mesh = Mesh(shard=None, tensor=4)
    assert (mesh.ranks_per_group(1), mesh.num_shards(1), mesh.ranks_per_shard_group(1)) == (1, 1, 1)
