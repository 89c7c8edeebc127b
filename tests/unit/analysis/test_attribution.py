"""When a traced launch can be attributed, and what is said where it cannot."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution, attribute, why_not
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result


def launch(*left_out):
    """Two ranks that reduce once, without the blocks of some phases."""
    record = [make_traced_record(r, make_trace([make_operation(50, 75)])) for r in range(2)]
    kept = [[b for b in one.blocks if b.phase not in left_out] for one in record]
    return make_traced_result(
        *(one.model_copy(update={"blocks": b}) for one, b in zip(record, kept, strict=True))
    )


@pytest.mark.parametrize("left_out", [("paired",), ("bare",), ("paired", "bare")])
def test_without_either_of_the_steps_beside_the_traced_ones_there_is_no_attribution(left_out):
    assert why_not(launch(*left_out)) == "there are no clean steps next to the traced ones"
    assert attribute(launch(*left_out)) is None


def test_with_both_there_is_one():
    assert why_not(launch()) is None and attribute(launch()) is not None


@pytest.mark.parametrize(
    ("kind", "wire", "payload"),
    [
        ("all_reduce", 1500, 1000),
        ("all_gather", 750, 250),
        ("reduce_scatter", 750, 1000),
        ("all_to_all", 750, 1000),
        ("broadcast", 750, 1000),
        ("reduce", 750, 1000),
        ("send", 1000, 1000),
        ("recv", 0, 0),
        ("barrier", 0, 0),
    ],
)
def test_what_a_rank_of_four_sends_and_hands_over_of_a_thousand_bytes(kind, wire, payload):
    """By the ring's law; of operations with a root the mean over the ranks."""
    trace = make_trace([make_operation(50, 75, kind=kind, num_bytes=1000, group_size=4)])
    found = LaunchAttribution(make_traced_result(*(make_traced_record(r, trace) for r in range(4))))
    assert (found.wire_bytes(0), found.payload_bytes(0)) == (wire, payload)
