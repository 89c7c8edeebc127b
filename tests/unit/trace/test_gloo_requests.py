"""The k-th operation of a kind belongs to the k-th request for it."""

import numpy as np
import pytest

from scalebench.trace.gloo_requests import match_requests
from tests.builders.traces import annotation, events, op


def matched(requests, operations):
    """Return the place among the requests of each operation's; -1: none."""
    made = events(
        *(op(f"c10d::{name}", begin, begin + 1) for name, begin in requests),
        *(annotation(f"gloo:{name}", begin, begin + 5) for name, begin in operations),
    )
    asked = np.arange(len(requests))
    carried_out = np.arange(len(requests), len(requests) + len(operations))
    return match_requests(made, carried_out, asked).tolist()


AR, RS, AG = "allreduce_", "reduce_scatter_", "_allgather_base_"


@pytest.mark.parametrize(
    ("requests", "operations", "found"),
    [
        ([(AR, 10), (AG, 20), (AR, 30)],
         [("all_reduce", 12), ("all_reduce", 31), ("all_gather", 32)], [0, 2, 1]),
        ([(AR, 2000)], [("all_reduce", 12), ("all_reduce", 2001)], [-1, 0]),
        ([(AR, 1500)], [("all_reduce", 500)], [0]),
        ([(AR, 1501)], [("all_reduce", 500)], [-1]),
        ([(AR, 10)], [("broadcast", 12)], [-1]),
        ([], [("all_reduce", 12)], [-1]),
        ([(AR, 10)], [("all_reduce", 12), ("all_reduce", 14)], [0, -1]),
        # One all-reduce for each of three ranks, and one that was asked for as such.
        ([(RS, 10), (AR, 20)], [("all_reduce", 12 + i) for i in range(4)], [0, 0, 0, 1]),
        ([(RS, 10), (RS, 15), (AR, 20)], [("all_reduce", 21 + i) for i in range(5)],
         [0, 0, 1, 1, 2]),
        ([(RS, 10), (RS, 15)], [("all_reduce", 21 + i) for i in range(3)], [0, 1, -1]),
        ([(RS, 10), (AR, 20)], [("all_reduce", 21), ("reduce_scatter", 22)], [1, 0]),
    ],
)  # fmt: skip
def test_each_operation_has_its_request(requests, operations, found):
    assert matched(requests, operations) == found
