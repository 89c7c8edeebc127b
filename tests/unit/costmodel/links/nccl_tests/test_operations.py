"""What nccl-tests measures: the shape of each operation's rows, and names in a text."""

import pytest

from scalebench.costmodel.links.nccl_tests.operations import (
    DTYPES,
    OPERATIONS,
    Operation,
    busbw_factor,
    ops_named_in,
)

BOTH, BUSBW = (False, True), (True,)

SHAPES = {
    "all_reduce": ("all_reduce", True, False, False, True, (False,)),
    "all_gather": ("all_gather", False, False, True, True, BOTH),
    "reduce_scatter": ("reduce_scatter", True, False, True, True, BOTH),
    "broadcast": ("broadcast", False, True, False, True, (False,)),
    "reduce": ("reduce", True, True, False, True, (False,)),
    "all_to_all": ("alltoall", False, False, True, False, (False,)),
    "send_recv": ("sendrecv", None, False, False, False, (False,)),
    "gather": ("gather", False, True, True, True, (False,)),
    "scatter": ("scatter", False, True, True, True, (False,)),
    "hypercube": ("hypercube", False, False, True, True, BUSBW),
}
"""Program, reduces, has a root, counts shares, checks in place, what the algbw column holds."""


def test_the_shape_of_every_operations_rows():
    assert {name: Operation(*shape) for name, shape in SHAPES.items()} == dict(OPERATIONS)


@pytest.mark.parametrize("op", SHAPES)
def test_a_factor_needs_the_number_of_ranks_where_it_depends_on_it(op):
    share = SHAPES[op][3]
    expected = 2 * 2 / 3 if op == "all_reduce" else 2 / 3 if share else 1.0
    assert busbw_factor(op, 3) == pytest.approx(expected)
    assert busbw_factor(op, None) == (1.0 if expected == 1 else None)


def test_the_length_of_every_element():
    lengths = {name: itemsize for name, (_, itemsize) in DTYPES.items()}
    assert {name for name, n in lengths.items() if n == 1} == {
        *("int8", "char", "uint8", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2")
    }
    assert {name for name, n in lengths.items() if n == 2} == {"half", "bfloat16"}
    assert {name for name, n in lengths.items() if n == 4} == {"int32", "int", "uint32", "float"}
    assert {name for name, n in lengths.items() if n == 8} == {"int64", "uint64", "double"}


@pytest.mark.parametrize(
    ("text", "ops"),
    [
        ("./build/all_reduce_perf -b 8", {"all_reduce"}),
        ("nccl_alltoall_perf sendrecv_perf", {"all_to_all", "send_recv"}),
        ("my_all_reduce_perf all_reduce_perf2 all_reduce", set()),
        ("reduce_perf.sh", {"reduce"}),
    ],
)
def test_programs_are_found_as_whole_words(text, ops):
    assert ops_named_in(text) == ops
