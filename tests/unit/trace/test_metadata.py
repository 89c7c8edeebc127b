"""What arguments of an event tell of an operation, every field."""

import pytest

from scalebench.trace.metadata import Facts, from_annotation, from_metadata, from_request

TOLD = {
    "In msg nelems": "6",
    "Out msg nelems": 24,
    "dtype": "Float",
    "Process Group Name": "7",
    "Group size": 4,
    "Seq": 9,
}


@pytest.mark.parametrize(
    ("name", "kind", "elements"),
    [
        ("allreduce", "all_reduce", 6),
        ("_allgather_base", "all_gather", 24),
        ("_reduce_scatter_base", "reduce_scatter", 6),
        ("recv", "recv", 6),
        ("barrier", "barrier", 0),
    ],
)
def test_metadata_tells_every_fact(name, kind, elements):
    found = from_metadata({"Collective name": name, **TOLD})
    assert found == Facts(kind, 4 * elements, "float32", "7", 4, 9)


def shapes(*dims, types=("double", "float")):
    return {"Input Dims": list(dims), "Input type": list(types)}


@pytest.mark.parametrize(
    ("details", "dtype", "num_bytes"),
    [
        (shapes([2, 3], [5]), None, 2 * 3 * 8 + 5 * 4),
        (shapes([2, 3], types=["float"]), "float32", 24),
        (shapes([], types=["double"]), "float64", 8),
        (shapes([0, 3], types=["float"]), "float32", 0),
        (shapes([2, 3], [5], types=["float", "unheard of"]), None, None),
        (shapes(["a"], types=["float"]), None, None),
        (shapes(), None, None),
        ({"Input Dims": [[2]]}, None, None),
        ({"Input type": ["float"]}, None, None),
    ],
)
def test_an_annotation_has_the_size_of_all_that_is_handed_in(details, dtype, num_bytes):
    assert from_annotation("gloo:all_reduce", details, 3) == Facts("all_reduce", num_bytes, dtype)


def test_an_all_gather_is_as_large_as_all_ranks_parts():
    details = shapes([2, 3], types=["float"])
    assert from_annotation("gloo:all_gather", details, 3).num_bytes == 72
    assert from_annotation("gloo:all_gather", details, None).num_bytes is None
    assert from_annotation("gloo:barrier", details, 3) == Facts("barrier", 0)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("c10d::_allgather_base_", Facts("all_gather", 48, "float64")),
        ("c10d::_reduce_scatter_base_", Facts("reduce_scatter", 20, "float32")),
        ("c10d::alltoall_base_", Facts("all_to_all", 20, "float32")),
        ("c10d::allreduce_", Facts("all_reduce")),
        ("c10d::barrier", Facts("barrier", 0)),
    ],
)
def test_a_request_has_its_full_tensor_at_its_place(name, found):
    assert from_request(name, shapes([2, 3], [5])) == found
